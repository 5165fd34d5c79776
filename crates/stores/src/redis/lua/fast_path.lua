-- The fast path, for most of the load: to acquire a free key without a queue, and to release its only lease through the node that
-- it was granted through. The outcome is that of the general path, which everything else takes.

-- Excludes repeated attempts, calls that rejoin the queue, keys with tombstones of abandoned calls, and keys that are not counted.
local function acquire_free(command, key)
  local state = key.state
  local holders = state[LEASES]
  if
    state[WAITS]
    or command[6] ~= ''
    or command[11] ~= 0
    or type(holders) == 'number'
    or holders[1]
    or state[TOMBSTONES_UNTIL] > now
    or is_call(key)
  then
    return nil
  end
  local fence, owner, expires = mint_above(state[LAST_FENCE]), command[3], now + command[7]
  if not fence then
    return nil
  end
  outdate_releases(key, owner)
  state[LAST_FENCE], state[SHARE] = fence, command[8]
  holders[1] = { fence, now, expires, owner, command[4], command[5], '', command[2], 0, node, false, command[8] }
  save(key, expires)
  return { 'granted', true, false, fence }
end

local function release_only(command, key)
  local state = key.state
  local holders = state[LEASES]
  local lease = type(holders) == 'table' and holders[1]
  if
    not lease
    or holders[2]
    or state[WAITS]
    or lease[LOCKS]
    or lease[OWNER] ~= command[2]
    or lease[FENCE] ~= command[3]
    or lease[EXPIRES] <= now
    or lease[CONFIRM] ~= 0
    or lease[LEASE_NODES] ~= node
    or state[APART]
  then
    return nil
  end
  holders[1] = nil
  remember_release(key, lease, false)
  save(key, 0)
  return { 'done', true, false, pack(lease), lease[EXPIRES] }
end

local FAST_PATHS = { acquire_free, false, release_only }
