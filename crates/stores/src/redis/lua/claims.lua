-- The queue of a key: claims in its crowd, each with the calls that wait for it.

local function claim_texts(claim)
  local fields, position = claim.fields, claim.position
  local texts = { 'q' .. position .. pack(fields) }
  if fields[C_ATTEMPT] ~= '' then
    texts[2] = of_two('a', fields[C_OWNER], fields[C_ATTEMPT]) .. position
  end
  local calls = fields[C_CALLS]
  for at = 1, #calls, 3 do
    texts[#texts + 1] = 't' .. calls[at] .. position
  end
  return texts
end

-- Calls `apply` for each key of a claim: those in `locks` if there are several, otherwise `id`.
local function each_key(locks, id, apply)
  if not locks then
    return apply(key(id))
  end
  for i = 1, #locks, 2 do
    apply(key(locks[i], locks))
  end
end

local function position_of(arrival, ticket)
  return format('%016d', arrival) .. ticket
end

local function claim_from(id, text)
  local position = sub(text, 2, 33)
  local claim = claims[position]
  if not claim then
    claim = { id = id, position = position, fields = unpack_one(sub(text, 34)), is_stored = true, texts = claim_texts }
    claims[position] = claim
  end
  return claim
end

-- The claim at a position; nil if it has left.
local function claim_at(of, position)
  local claim = claims[position]
  if not claim then
    local rest = behind(of, 'q' .. position, function(rest)
      return rest
    end)
    if not rest then
      return nil
    end
    claim = claim_from(of.id, 'q' .. position .. rest)
  end
  return not claim.is_removed and claim or nil
end

-- The first claim in the queue. Entries of claims that have left it in this step are not read twice.
local function next_claim(of)
  if not of.state[WAITS] then
    return nil
  end
  local first
  repeat
    local text = of.head and of.head[of.head_at]
    if text then
      local claim = claim_from(of.id, text)
      if claim.is_removed then
        of.head_at = of.head_at + 1
      else
        first = claim
      end
    elseif of.head and #of.head < of.head_size then
      break
    else
      local from = of.head and '(' .. of.head[#of.head] or '[q'
      of.head_size = of.head and 32 or 4
      of.head = call('ZRANGE', crowd(of), from, '(r', 'BYLEX', 'LIMIT', 0, of.head_size)
      of.head_at = 1
    end
  until first
  for _, claim in ipairs(of.joined or {}) do
    if not claim.is_removed and (not first or claim.position < first.position) then
      first = claim
    end
  end
  return first
end

local function wait_in(of, claim, by)
  local waits = of.state[WAITS] or {}
  local from = claim.fields[C_NODE]
  local left = (waits[from] or 0) + by
  waits[from] = left > 0 and left or nil
  of.state[WAITS] = next(waits) and waits or false
  if claim.fields[C_LOCKS] then
    of.state[SETS] = of.state[SETS] + by
  end
end

local function enqueue(claim)
  claims[claim.position] = claim
  each_key(claim.fields[C_LOCKS], claim.id, function(of)
    touch(of, claim)
    of.joined = of.joined or {}
    table.insert(of.joined, claim)
    wait_in(of, claim, 1)
  end)
  has_joined = true
end

local function dequeue(claim)
  each_key(claim.fields[C_LOCKS], claim.id, function(of)
    touch(of, claim)
    wait_in(of, claim, -1)
  end)
  claim.is_removed = true
end

-- Has to be called before the calls of a claim are changed.
local function touch_claim(claim)
  each_key(claim.fields[C_LOCKS], claim.id, function(of)
    touch(of, claim)
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

local function awaited_by_call(of, ticket)
  if not of.state[WAITS] then
    return nil
  end
  return behind(of, 't' .. ticket, function(position)
    local claim = claim_at(of, position)
    return claim and waits_for(claim, ticket) and claim or nil
  end)
end

local function awaited_by_attempt(of, owner, attempt)
  if not of.state[WAITS] then
    return nil
  end
  return behind(of, of_two('a', owner, attempt), function(position)
    return claim_at(of, position)
  end)
end

local function waiting_count(of)
  local count = 0
  for _, some in pairs(of.state[WAITS] or {}) do
    count = count + some
  end
  return count
end
