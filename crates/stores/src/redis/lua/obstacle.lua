-- What blocks a claim: leases, and claims before it.

local function has_room_for(key, share)
  local held = lease_count(key)
  if held == 0 then
    return true
  end
  local as = key.state[SHARE]
  return as == share and as ~= EXCLUSIVE and (as == SHARED or held < as)
end

-- Whether neither an earlier claim nor a lease at this key blocks a claim. A claim without a position is behind all others.
local function is_unblocked(key, share, position)
  if key.state[WAITS] then
    if not position then
      return false
    end
    local first = next_claim(key)
    if first and first.position < position then
      return false
    end
  end
  return has_room_for(key, share)
end

-- The keys that block a claim on one key (`key`) or several (`locks`).
local function blocked_by(locks, key, share, position)
  local blocked = {}
  if not locks then
    if not is_unblocked(key, share, position) then
      blocked[1] = key.id
    end
    return blocked
  end
  for i = 1, #locks, 2 do
    if not is_unblocked(load_key(locks[i], locks), locks[i + 1], position) then
      blocked[#blocked + 1] = locks[i]
    end
  end
  return blocked
end

-- When the first of the leases that block this key is due. If the key is only reserved, these are leases on other keys, found by
-- following claims, each of which is older than the previous one.
local function next_end(key)
  for _ = 1, MAX_FOLLOWED do
    if lease_count(key) > 0 then
      return due(first_due(key))
    end
    local first = next_claim(key)
    if not first then
      break
    end
    local fields = first.fields
    local blocked = blocked_by(fields[C_LOCKS], key, fields[C_SHARE], first.position)
    local earliest
    for _, id in ipairs(blocked) do
      local other = load_key(id)
      if lease_count(other) > 0 then
        local at = due(first_due(other))
        earliest = math.min(earliest or at, at)
      end
    end
    if earliest then
      return earliest
    end
    if not blocked[1] then
      break
    end
    key = load_key(blocked[1])
  end
  return now + DEFAULT_RETRY
end

-- The keys that block a claim, and when to retry.
local function obstacle(locks, key, share, position)
  local blocked = blocked_by(locks, key, share, position)
  local retry_at
  for _, id in ipairs(blocked) do
    local at = next_end(load_key(id))
    retry_at = math.min(retry_at or at, at)
  end
  return blocked, retry_at or now
end
