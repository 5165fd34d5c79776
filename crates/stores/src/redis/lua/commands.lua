-- The other commands. Each gets its keys, and returns a list: a code, two fields for the transitions and the woken calls (filled in
-- by `run_one`), then the values that belong to the code.

-- { 2, ticket, lifetime of a tombstone }. Rolls a call back. If there is nothing to roll back, the call may not have arrived yet: a
-- tombstone makes it fail when it does.
local function abandon(command, key)
  local ticket = command[2]
  local lease = lease_count(key) > 0 and lease_of_call(key, ticket)
  if lease then
    if #lease[CALLS] > 16 then
      change(key, lease, function(own)
        local calls = own[CALLS]
        for at = 1, #calls, 16 do
          if sub(calls, at, at + 15) == ticket then
            own[CALLS] = sub(calls, 1, at - 1) .. sub(calls, at + 16)
            break
          end
        end
      end)
      return { 'nothing', false, false }
    end
    report_outcome()
    local time = due(lease)
    end_lease(key, lease, 'abandoned')
    return { 'returned', false, false, pack(lease), time }
  end
  local claim = claim_of_call(key, ticket)
  if claim then
    local fields = claim.fields
    local blocked, retry_at = obstacle(fields[C_LOCKS], key, fields[C_SHARE], claim.position)
    retain_calls(claim, function(other)
      return other ~= ticket
    end)
    return { 'left_queue', false, false, blocked, retry_at }
  end
  local until_then = now + command[3]
  tombstones[#tombstones + 1] = { until_then, ticket }
  key.state[TOMBSTONES_UNTIL] = math.max(key.state[TOMBSTONES_UNTIL], until_then)
  mark_dirty(key)
  return { 'nothing', false, false }
end

-- { 3, owner, fence or 0 }
local function release(command, key)
  local lease, why = lease_for_owner(key, command[2], command[3])
  if not lease then
    return { why, false, false }
  end
  report_outcome()
  local time = due(lease)
  end_lease(key, lease, 'released')
  return { 'done', false, false, pack(lease), time }
end

-- { 4, owner, fence or 0, ttl }
local function extend(command, key)
  local lease, why = lease_for_owner(key, command[2], command[3])
  if not lease then
    return { why, false, false }
  end
  local before, expires = due(lease), now + command[4]
  change(key, lease, function(own)
    own[EXPIRES] = expires
    -- An owner that extends its lease knows that it has it.
    own[CONFIRM] = 0
  end)
  report_outcome()
  notify_lease_nodes(lease, { LEASE_CHANGED, key.id, lease[FENCE], expires })
  return { 'done', false, false, pack(lease_with_fence(key, lease[FENCE])), before }
end

-- { 5, fences }
local function force_release(command, key)
  local meant, fences = command[2], all_fences(key)
  local is_meant = {}
  for _, fence in ipairs(meant) do
    is_meant[fence] = true
  end
  local ended = {}
  for _, fence in ipairs(fences) do
    if #meant == 0 or is_meant[fence] then
      local lease = lease_with_fence(key, fence)
      report('forced', key, lease, due(lease))
      end_lease(key, lease, 'forced')
      ended[#ended + 1] = pack(lease)
    end
  end
  if #ended == 0 then
    return { #fences > 0 and 'owned_by_another' or 'not_found', false, false }
  end
  return { 'done', false, false, ended }
end

-- { period, how many attempts were withdrawn in it, how many in the period before }. Together these are at least those that still
-- have a tombstone.
local function withdrawn_lately(key)
  local period = math.floor(now / WITHDRAWAL_TTL)
  local lately = key.state[WITHDRAWN] or { period, 0, 0 }
  if lately[1] == period then
    return lately
  end
  return { period, 0, lately[1] == period - 1 and lately[2] or 0 }
end

-- { 6, owner, attempt }
local function withdraw(command, key)
  local owner, attempt = command[2], command[3]
  local lately = withdrawn_lately(key)
  local is_new = not is_withdrawn(key, owner, attempt)
  if is_new and lately[2] + lately[3] >= MAX_WITHDRAWALS then
    return { 'too_many', false, false }
  end
  local answer = { 'unknown', false, false }
  local lease = lease_count(key) > 0 and lease_of_attempt(key, owner, attempt)
  local claim = not lease and claim_of_attempt(key, owner, attempt)
  if lease then
    report_outcome()
    local time = due(lease)
    end_lease(key, lease, 'released')
    answer = { 'held', false, false, pack(lease), time }
  elseif claim and not prune(key, claim) then
    local calls = claim.fields[C_CALLS]
    for at = 1, #calls, 3 do
      wake(calls[at], calls[at + 1], WITHDRAWN_ATTEMPT)
    end
    retain_calls(claim, function()
      return false
    end)
    answer = { 'waiting', false, false }
  end
  local until_then = now + WITHDRAWAL_TTL
  lately[2] = lately[2] + (is_new and 1 or 0)
  key.state[WITHDRAWN], key.state[WITHDRAWN_UNTIL] = lately, until_then
  mark_dirty(key)
  tombstones[#tombstones + 1] = { until_then, withdrawal_member(key, owner, attempt) }
  return answer
end

-- { 7, fence }
local function confirm(command, key)
  local lease = lease_with_fence(key, command[2])
  if not lease then
    return { 'not_found', false, false }
  end
  confirm_lease(key, lease)
  return { 'done', false, false, pack(lease_with_fence(key, command[2])) }
end

-- { 8, tickets, whether to settle the key first }. Returns which of these calls have a lease by now, and which are not in the
-- queue, because a message was lost or their node was considered dead.
local function settle(command, key)
  if key.is_new then
    -- The state of a key whose leases were never swept expires, but its entry in the expiry index does not.
    call('ZREM', KEYS[4 + expiry_index_of[key.number]], key.id)
  end
  local first = next_claim(key)
  local retry_at = now
  if first then
    local fields = first.fields
    local _, at = obstacle(fields[C_LOCKS], key, fields[C_SHARE], first.position)
    retry_at = at
  end
  local granted, missing = {}, {}
  for _, ticket in ipairs(command[2]) do
    local lease = lease_count(key) > 0 and lease_of_call(key, ticket)
    if lease then
      confirm_lease(key, lease)
      granted[#granted + 1] = ticket
      granted[#granted + 1] = pack(lease_with_fence(key, lease[FENCE]))
    elseif not claim_of_call(key, ticket) then
      missing[#missing + 1] = ticket
    end
  end
  return { 'settled', false, false, waiting_count(key), retry_at, granted, missing }
end

-- A command on one key. Leases that are due are ended before it, and waiting claims are granted after it.
local function on_one(apply)
  return function(command, command_keys)
    local key = command_keys[1]
    if lease_count(key) > 0 then
      expire(key)
    end
    local answer = apply(command, key)
    settle_from(key)
    return answer
  end
end

local COMMANDS = {
  acquire,
  on_one(abandon),
  on_one(release),
  on_one(extend),
  on_one(force_release),
  on_one(withdraw),
  on_one(confirm),
  -- Its answer is the state after the key is settled.
  function(command, command_keys)
    if command[3] then
      expire(command_keys[1])
      settle_from(command_keys[1])
    end
    return settle(command, command_keys[1])
  end,
}

