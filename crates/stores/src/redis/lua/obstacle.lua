-- What blocks a claim: leases, and claims before it.

local function has_room_for(of, share)
  local held = count(of)
  if held == 0 then
    return true
  end
  local as = of.state[SHARE]
  return as == share and as ~= EXCLUSIVE and (as == SHARED or held < as)
end

-- Whether neither an earlier claim nor a lease at this key blocks a claim. A claim without a position is behind all others.
local function is_open(of, share, position)
  if of.state[WAITS] then
    if not position then
      return false
    end
    local first = next_claim(of)
    if first and first.position < position then
      return false
    end
  end
  return has_room_for(of, share)
end

-- The keys that block a claim on one key (`of`) or several (`locks`).
local function blocked_by(locks, of, share, position)
  local blocked = {}
  if not locks then
    if not is_open(of, share, position) then
      blocked[1] = of.id
    end
    return blocked
  end
  for i = 1, #locks, 2 do
    if not is_open(key(locks[i], locks), locks[i + 1], position) then
      blocked[#blocked + 1] = locks[i]
    end
  end
  return blocked
end

-- When the first of the leases is due that block this key. If the key is only reserved, these are leases on other keys, found by
-- following claims, each of which is older than the one before.
local function next_end(of)
  for _ = 1, MAX_FOLLOWED do
    if count(of) > 0 then
      return due(first_due(of))
    end
    local first = next_claim(of)
    if not first then
      break
    end
    local fields = first.fields
    local blocked = blocked_by(fields[C_LOCKS], of, fields[C_SHARE], first.position)
    local earliest
    for _, id in ipairs(blocked) do
      local other = key(id)
      if count(other) > 0 then
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
    of = key(blocked[1])
  end
  return now + LOOK_AGAIN
end

-- The keys that block a claim, and when to retry.
local function obstacle(locks, of, share, position)
  local blocked = blocked_by(locks, of, share, position)
  local look_at
  for _, id in ipairs(blocked) do
    local at = next_end(key(id))
    look_at = math.min(look_at or at, at)
  end
  return blocked, look_at or now
end
