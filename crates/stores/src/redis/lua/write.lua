-- Writes the keys that a step has changed, with their expiry index and the counters.

local function write_sorted_set(key)
  local removed, added = {}, {}
  for record in pairs(key.changed) do
    for _, text in ipairs(record.before or {}) do
      removed[#removed + 1] = text
    end
    if not record.is_removed then
      for _, text in ipairs(record:entries()) do
        added[#added + 1] = '0'
        added[#added + 1] = text
      end
    end
  end
  -- First what frees memory. `unpack` is limited to some thousand values.
  for from = 1, #removed, 1000 do
    call('ZREM', sorted_set(key), unpack(removed, from, math.min(from + 999, #removed)))
  end
  for from = 1, #added, 1000 do
    call('ZADD', sorted_set(key), unpack(added, from, math.min(from + 999, #added)))
  end
end

-- Called when all keys are written: a record may be in the sorted sets of several.
local function mark_stored(key)
  for record in pairs(key.changed) do
    record.is_stored, record.before = true, nil
  end
  key.changed, key.joined, key.unsaved, key.records, key.head, key.dues = nil, nil, nil, nil, nil, nil
end

-- The score of this key in the expiry index: when it has to be settled, or 0 for never.
local function score_of(key)
  local state = key.state
  if unfinished[key.id] then
    return now
  elseif lease_count(key) > 0 then
    return due(first_due(key))
  elseif state[WAITS] then
    -- The key is reserved.
    local until_then, first = now, next_claim(key)
    local calls = first and first.fields[C_CALLS] or {}
    for at = 3, #calls, 3 do
      until_then = math.max(until_then, calls[at])
    end
    return until_then
  end
  return 0
end

local function write_counts(key)
  local state = key.state
  local held = lease_count(key)
  local extra = held > 0 and held - state[FOREIGN] - 1 or 0
  local apart = held > 0 and is_call(key) and 'calls' or held == 0 and state[WAITS] and 'reserved' or false
  if extra ~= state[EXTRA] then
    call('HINCRBY', COUNTERS, 'leases', int(extra - state[EXTRA]))
    state[EXTRA] = extra
  end
  if apart ~= state[APART] then
    if state[APART] then
      call('HINCRBY', COUNTERS, state[APART], -1)
    end
    if apart then
      call('HINCRBY', COUNTERS, apart, 1)
    end
    state[APART] = apart
  end
end

-- Until when the state of this key has to be kept; nil if it must not expire.
local function known_until(key)
  local state = key.state
  if state[WAITS] then
    return nil
  end
  -- The last fence has to be remembered for longer than `high` may be ahead of the time.
  local known = math.floor((state[LAST_FENCE] + FENCE_EPOCH) * FENCE_MICROS / 1000) + FENCE_MEMORY
  known = math.max(known, state[TOMBSTONES_UNTIL], state[WITHDRAWN_UNTIL], state[RELEASES_UNTIL])
  if has_many_leases(key) then
    -- The sorted set does not expire, so the state must not either.
    return nil
  end
  for _, lease in ipairs(state[LEASES]) do
    known = math.max(known, lease[EXPIRES] + EXPIRED_LEASE_RETENTION)
  end
  return known
end

-- Writes the state of a key, and its score in the expiry index.
local function save(key, score)
  local state = key.state
  local before = state[SCORE]
  state[SCORE] = score
  local known = known_until(key)
  if known and known <= now then
    call('DEL', key.id)
    key.is_new = true
  else
    local text = pack_state(state)
    -- A value of another type was read as nil: it must not be overwritten.
    local how = key.is_new and 'NX' or 'XX'
    local is_written
    if known then
      is_written = call('SET', key.id, text, how, 'PXAT', int(known))
    else
      is_written = call('SET', key.id, text, how)
    end
    if not is_written then
      error('there is something else at ' .. key.id)
    end
    key.is_new = false
  end
  local expiry_index = KEYS[4 + expiry_index_of[key.number]]
  if score == 0 and before ~= 0 then
    call('ZREM', expiry_index, key.id)
  elseif score ~= before then
    call('ZADD', expiry_index, int(score), key.id)
  end
end

local function write(key)
  -- Before the sorted set is written, because the score depends on what has changed there.
  local score = score_of(key)
  if key.changed then
    write_sorted_set(key)
  end
  write_counts(key)
  save(key, score)
end
