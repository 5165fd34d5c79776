-- Writes the keys that a step has changed, with their expiry index and the counters.

local function write_crowd(of)
  local removed, added = {}, {}
  for record in pairs(of.changed) do
    for _, text in ipairs(record.before or {}) do
      removed[#removed + 1] = text
    end
    if not record.is_removed then
      for _, text in ipairs(record:texts()) do
        added[#added + 1] = '0'
        added[#added + 1] = text
      end
    end
  end
  -- First what frees memory. `unpack` is limited to some thousand values.
  for from = 1, #removed, 1000 do
    call('ZREM', crowd(of), unpack(removed, from, math.min(from + 999, #removed)))
  end
  for from = 1, #added, 1000 do
    call('ZADD', crowd(of), unpack(added, from, math.min(from + 999, #added)))
  end
end

-- Called when all keys are written: a record may be in the crowds of several.
local function stored(of)
  for record in pairs(of.changed) do
    record.is_stored, record.before = true, nil
  end
  of.changed, of.joined, of.unsaved, of.records, of.head, of.dues = nil, nil, nil, nil, nil, nil
end

-- The score of this key in the expiry index, which is when it has to be settled; 0 for never.
local function score_of(of)
  local state = of.state
  if more[of.id] then
    return now
  elseif count(of) > 0 then
    return due(first_due(of))
  elseif state[WAITS] then
    -- The key is reserved.
    local until_then, first = now, next_claim(of)
    local calls = first and first.fields[C_CALLS] or {}
    for at = 3, #calls, 3 do
      until_then = math.max(until_then, calls[at])
    end
    return until_then
  end
  return 0
end

local function write_counts(of)
  local state = of.state
  local held = count(of)
  local extra = held > 0 and held - state[FOREIGN] - 1 or 0
  local reserved = held == 0 and state[WAITS] and 1 or 0
  if extra ~= state[EXTRA] then
    call('HINCRBY', NEWS, 'leases', int(extra - state[EXTRA]))
    state[EXTRA] = extra
  end
  if reserved ~= state[RESERVED] then
    call('HINCRBY', NEWS, 'reserved', int(reserved - state[RESERVED]))
    state[RESERVED] = reserved
  end
end

-- Until when the state of this key has to be kept; nil if without end.
local function known_until(of)
  local state = of.state
  if state[WAITS] then
    return nil
  end
  -- The last fence has to be remembered for longer than `high` may be ahead of the time.
  local known = math.floor((state[LAST] + FENCE_EPOCH) * FENCE_MICROS / 1000) + FENCE_MEMORY
  known = math.max(known, state[GONE_UNTIL], state[WITHDRAWN_UNTIL], state[RELEASES_UNTIL])
  if is_many(of) then
    -- The crowd does not expire, so the state must not either.
    return nil
  end
  for _, lease in ipairs(state[HOLDERS]) do
    known = math.max(known, lease[EXPIRES] + FORGOTTEN_AFTER)
  end
  return known
end

-- Writes the state of a key, and its score in the expiry index.
local function save(of, score)
  local state = of.state
  local before = state[SCORE]
  state[SCORE] = score
  local known = known_until(of)
  if known and known <= now then
    call('DEL', of.id)
    of.is_new = true
  else
    local text = state_text(state)
    -- A value of another type was read as none: it is not overwritten.
    local how = of.is_new and 'NX' or 'XX'
    local is_written
    if known then
      is_written = call('SET', of.id, text, how, 'PXAT', int(known))
    else
      is_written = call('SET', of.id, text, how)
    end
    if not is_written then
      error('there is something else at ' .. of.id)
    end
    of.is_new = false
  end
  local ends = KEYS[4 + ends_of[of.number]]
  if score == 0 and before ~= 0 then
    call('ZREM', ends, of.id)
  elseif score ~= before then
    call('ZADD', ends, int(score), of.id)
  end
end

local function write(of)
  -- Before the crowd is written, because it depends on what has changed there.
  local score = score_of(of)
  if of.changed then
    write_crowd(of)
  end
  write_counts(of)
  save(of, score)
end
