-- The queue of a key: claims in its sorted set, each with the calls that wait for it.

local function claim_entries(claim)
  local fields, position = claim.fields, claim.position
  local entries = { 'q' .. position .. pack(fields) }
  if fields[C_ATTEMPT] ~= '' then
    entries[2] = pair_prefix('a', fields[C_OWNER], fields[C_ATTEMPT]) .. position
  end
  local calls = fields[C_CALLS]
  for at = 1, #calls, 3 do
    entries[#entries + 1] = 't' .. calls[at] .. position
  end
  return entries
end

-- Calls `apply` for each key of a claim: those in `locks` if there are several, otherwise `id`.
local function each_key(locks, id, apply)
  if not locks then
    return apply(load_key(id))
  end
  for i = 1, #locks, 2 do
    apply(load_key(locks[i], locks))
  end
end

local function position_of(arrival, ticket)
  return format('%016d', arrival) .. ticket
end

local function parse_claim(id, text)
  local position = sub(text, 2, 33)
  local claim = claims[position]
  if not claim then
    claim = { id = id, position = position, fields = unpack_one(sub(text, 34)), is_stored = true, entries = claim_entries }
    claims[position] = claim
  end
  return claim
end

-- The claim at a position; nil if it has left the queue.
local function claim_at(key, position)
  local claim = claims[position]
  if not claim then
    local rest = find_by_prefix(key, 'q' .. position, function(rest)
      return rest
    end)
    if not rest then
      return nil
    end
    claim = parse_claim(key.id, 'q' .. position .. rest)
  end
  return not claim.is_removed and claim or nil
end

-- The first claim in the queue. Entries of claims that have left it in this step are not read twice.
local function next_claim(key)
  if not key.state[WAITS] then
    return nil
  end
  local first
  repeat
    local text = key.head and key.head[key.head_at]
    if text then
      local claim = parse_claim(key.id, text)
      if claim.is_removed then
        key.head_at = key.head_at + 1
      else
        first = claim
      end
    elseif key.head and #key.head < key.head_size then
      break
    else
      local from = key.head and '(' .. key.head[#key.head] or '[q'
      key.head_size = key.head and 32 or 4
      key.head = call('ZRANGE', sorted_set(key), from, '(r', 'BYLEX', 'LIMIT', 0, key.head_size)
      key.head_at = 1
    end
  until first
  for _, claim in ipairs(key.joined or {}) do
    if not claim.is_removed and (not first or claim.position < first.position) then
      first = claim
    end
  end
  return first
end

local function change_wait_count(key, claim, delta)
  local waits = key.state[WAITS] or {}
  local from = claim.fields[C_NODE]
  local left = (waits[from] or 0) + delta
  waits[from] = left > 0 and left or nil
  key.state[WAITS] = next(waits) and waits or false
  if claim.fields[C_LOCKS] then
    key.state[SETS] = key.state[SETS] + delta
  end
end

local function enqueue(claim)
  claims[claim.position] = claim
  each_key(claim.fields[C_LOCKS], claim.id, function(key)
    touch(key, claim)
    key.joined = key.joined or {}
    table.insert(key.joined, claim)
    change_wait_count(key, claim, 1)
  end)
  has_joined = true
end

local function dequeue(claim)
  each_key(claim.fields[C_LOCKS], claim.id, function(key)
    touch(key, claim)
    change_wait_count(key, claim, -1)
  end)
  claim.is_removed = true
end

-- Has to be called before the calls of a claim are changed.
local function touch_claim(claim)
  each_key(claim.fields[C_LOCKS], claim.id, function(key)
    touch(key, claim)
  end)
end

local function waits_for(claim, ticket)
  local calls = claim.fields[C_CALLS]
  for at = 1, #calls, 3 do
    if calls[at] == ticket then
      return true
    end
  end
  return false
end

local function claim_of_call(key, ticket)
  if not key.state[WAITS] then
    return nil
  end
  return find_by_prefix(key, 't' .. ticket, function(position)
    local claim = claim_at(key, position)
    return claim and waits_for(claim, ticket) and claim or nil
  end)
end

local function claim_of_attempt(key, owner, attempt)
  if not key.state[WAITS] then
    return nil
  end
  return find_by_prefix(key, pair_prefix('a', owner, attempt), function(position)
    return claim_at(key, position)
  end)
end

local function waiting_count(key)
  local count = 0
  for _, some in pairs(key.state[WAITS] or {}) do
    count = count + some
  end
  return count
end
