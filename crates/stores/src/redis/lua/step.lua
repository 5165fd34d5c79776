-- One step of forrst_lock::model, from ending leases that are due to granting waiting claims.

-- Reports the transition that the outcome itself describes. If there are others as well, 0 stands for it in the list.
local function report_outcome()
  if transitions then
    transitions[#transitions + 1] = 0
  end
  has_outcome_transition = true
end

-- `time`: of a grant, by when it has to be confirmed; otherwise, when the lease was due.
local function report(kind, key, lease, time, waited_since)
  transitions = transitions or { has_outcome_transition and 0 or nil }
  transitions[#transitions + 1] = { kind, key.id, pack(lease), time, waited_since or 0 }
  return #transitions
end

local function notify_node(other, message)
  notifications = notifications or {}
  notifications[#notifications + 1] = { other, message }
end

-- Notifies the nodes through which a lease was granted, except this one.
local function notify_lease_nodes(lease, message)
  local nodes = lease[LEASE_NODES]
  if nodes == node then
    return
  end
  for at = 1, #nodes, #node do
    local other = sub(nodes, at, at + #node - 1)
    if other ~= node then
      notify_node(other, message)
    end
  end
end

local function unsettle(locks)
  if locks then
    for i = 1, #locks, 2 do
      unsettled[#unsettled + 1] = locks[i]
    end
  end
end

local function remember_release(key, lease, forced)
  local owner, fence = lease[OWNER], lease[FENCE]
  local has_newer = find_release(key, owner, function(release)
    return release[R_FENCE] > fence
  end)
  if not has_newer and lease_count(key) > 0 then
    has_newer = find_lease(key, format('o%03d%s', #owner, owner), function(other)
      return other[OWNER] == owner and other[FENCE] > fence
    end)
  end
  local memory = is_call(key) and CALL_MEMORY or release_memory
  add_release(key, { owner, fence, now + memory, forced, not has_newer, lease[ATTEMPT] })
end

-- Ends a lease, on all its keys. They remember it if it is released or forced.
local function end_lease(key, lease, cause)
  local locks = lease[LOCKS]
  local is_remembered = cause == 'released' or cause == 'forced'
  if locks then
    local fence = lease[FENCE]
    for i = 1, #locks, 2 do
      local one = load_key(locks[i], locks)
      local own = lease_with_fence(one, fence)
      -- A state that was deleted or evicted must not keep the lease on the other keys.
      if own then
        remove(one, own)
      end
      if is_remembered then
        remember_release(one, lease, cause == 'forced')
      end
    end
    unsettle(locks)
  else
    remove(key, lease)
    if is_remembered then
      remember_release(key, lease, cause == 'forced')
    end
  end
  if is_remembered then
    notify_lease_nodes(lease, { LEASE_ENDED, key.id, lease[FENCE] })
  end
end

-- Ends the leases on this key that are due: expired or unconfirmed. Returns whether there were any.
local function expire(key)
  local is_any = false
  while lease_count(key) > 0 do
    local lease = first_due(key)
    if due(lease) > now then
      break
    end
    local is_live = lease[EXPIRES] > now
    if is_live and in_grace_period() then
      -- Its node may have had no chance to confirm it. Leases that are due later may have expired: `lease_for_owner` ignores them.
      break
    end
    local cause = is_live and 'unconfirmed' or 'expired'
    report(cause, key, lease, due(lease))
    end_lease(key, lease, cause)
    is_any = true
  end
  return is_any
end

-- A call has left the queue. If it is of this node, the reply says so, otherwise a message to its node.
local function wake(ticket, other, kind, ...)
  if other == node then
    woken = woken or {}
    woken[#woken + 1] = { ticket, kind, ... }
  else
    notify_node(other, { kind, ticket, ... })
  end
end

-- After a fail-over a deadline may be by the clock of another server, until the call's node has put it back.
local function has_timed_out(until_then)
  return until_then <= now and (meta[M_FOREIGN_CLOCK_UNTIL] or 0) <= now
end

local function still_waits(other, until_then)
  return not has_timed_out(until_then) and not is_dead(other)
end

-- Keeps some of the calls of a claim. Without calls, the claim leaves all its queues. Returns whether it does.
local function retain_calls(claim, is_kept)
  local calls, left = claim.fields[C_CALLS], {}
  for at = 1, #calls, 3 do
    if is_kept(calls[at], calls[at + 1], calls[at + 2]) then
      left[#left + 1], left[#left + 2], left[#left + 3] = calls[at], calls[at + 1], calls[at + 2]
    end
  end
  if #left == 0 then
    dequeue(claim)
    unsettle(claim.fields[C_LOCKS])
  elseif #left < #calls then
    touch_claim(claim)
    claim.fields[C_CALLS] = left
  end
  return #left == 0
end

-- Removes the calls of a claim that have timed out, and those of dead nodes. Returns whether none are left.
local function prune(key, claim)
  local fields = claim.fields
  local calls = fields[C_CALLS]
  local has_ended_call = false
  for at = 1, #calls, 3 do
    has_ended_call = has_ended_call or not still_waits(calls[at + 1], calls[at + 2])
  end
  if not has_ended_call then
    return false
  end
  local blocked, retry_at = obstacle(fields[C_LOCKS], key, fields[C_SHARE], claim.position)
  for at = 1, #calls, 3 do
    local other, until_then = calls[at + 1], calls[at + 2]
    -- A node that comes back notices that it was considered dead, and puts its calls back.
    if has_timed_out(until_then) and not is_dead(other) then
      wake(calls[at], other, TIMED_OUT, blocked, retry_at)
    end
  end
  return retain_calls(claim, function(_, other, until_then)
    return still_waits(other, until_then)
  end)
end

-- Removes claims before a position that no call waits for any more. Returns whether there were any.
local function prune_before(key, position)
  local is_any = false
  while true do
    local first = next_claim(key)
    if not first or first.position >= position or not prune(key, first) then
      return is_any
    end
    is_any = true
  end
end

local function grant_on_key(key, lease, share)
  outdate_releases(key, lease[OWNER])
  key.state[LAST_FENCE] = lease[FENCE]
  key.state[SHARE] = share
  insert(key, lease)
end

local function copy(lease)
  local other = {}
  for field = 1, LEASE_SHARE do
    other[field] = lease[field]
  end
  return other
end

local function grant_lease(locks, key, share, lease)
  if not locks then
    return grant_on_key(key, lease, share)
  end
  for i = 1, #locks, 2 do
    grant_on_key(load_key(locks[i], locks), copy(lease), locks[i + 1])
  end
end

-- A fence that is larger than every earlier one of these keys; nil if there are no more.
local function mint(locks, key)
  if not locks then
    return mint_above(key.state[LAST_FENCE])
  end
  local last = 0
  for i = 1, #locks, 2 do
    last = math.max(last, load_key(locks[i], locks).state[LAST_FENCE])
  end
  return mint_above(last)
end

-- Grants the first claim in a queue, if possible. Returns whether it has left.
local function grant_waiting(key, claim)
  local fields, position = claim.fields, claim.position
  local locks = fields[C_LOCKS]
  if locks then
    for i = 1, #locks, 2 do
      local one = load_key(locks[i], locks)
      -- Another claim may be grantable now.
      local has_expired = expire(one)
      if prune_before(one, position) or has_expired then
        unsettled[#unsettled + 1] = one.id
      end
      if not is_unblocked(one, locks[i + 1], position) then
        return false
      end
    end
  elseif not has_room_for(key, fields[C_SHARE]) then
    return false
  end
  if budget == 0 then
    unfinished[key.id] = true
    mark_dirty(key)
    return false
  end
  budget = budget - 1
  local fence = mint(locks, key)
  dequeue(claim)
  unsettle(locks)
  local calls = fields[C_CALLS]
  if not fence then
    for at = 1, #calls, 3 do
      wake(calls[at], calls[at + 1], EXHAUSTED)
    end
    return true
  end
  local is_known, tickets, nodes = false, {}, {}
  for at = 1, #calls, 3 do
    local other = calls[at + 1]
    tickets[#tickets + 1] = calls[at]
    is_known = is_known or other == node
    if not nodes[other] then
      nodes[other] = true
      nodes[#nodes + 1] = other
    end
  end
  -- Nothing runs under this lease before its node has confirmed it. So a node that has just died delays the others for seconds, and
  -- not for the whole ttl.
  local confirm = (must_confirm or not is_known) and now + CONFIRM_WITHIN or 0
  local lease = {
    fence, now, now + fields[C_TTL], fields[C_OWNER], fields[C_CALLER], fields[C_NOTE], fields[C_ATTEMPT],
    table.concat(tickets), confirm, table.concat(nodes), locks, fields[C_SHARE],
  }
  grant_lease(locks, key, fields[C_SHARE], lease)
  local number = report('granted', key, lease, confirm, fields[C_SINCE])
  for at = 1, #calls, 3 do
    local other = calls[at + 1]
    if other == node then
      wake(calls[at], other, GRANTED, number)
    else
      wake(calls[at], other, GRANTED, key.id, fence)
    end
  end
  return true
end

local function settle_key(key)
  while true do
    local first = next_claim(key)
    if not first or not (prune(key, first) or grant_waiting(key, first)) then
      return
    end
  end
end

local function settle_others()
  while #unsettled > 0 do
    local key = load_key(table.remove(unsettled))
    expire(key)
    settle_key(key)
  end
end

-- Grants what can be granted at this key, and at others that this affects.
local function settle_from(key)
  if key.state[WAITS] then
    settle_key(key)
  end
  if #unsettled > 0 then
    settle_others()
  end
end

-- Changes a lease in each of its keys.
local function change(key, lease, apply)
  local locks, fence = lease[LOCKS], lease[FENCE]
  if not locks then
    touch_lease(key, lease)
    return apply(lease)
  end
  for i = 1, #locks, 2 do
    local one = load_key(locks[i], locks)
    local own = lease_with_fence(one, fence)
    touch_lease(one, own)
    apply(own)
  end
end

local function confirm_lease(key, lease)
  local confirm = lease[CONFIRM]
  if confirm == 0 then
    return
  end
  change(key, lease, function(own)
    own[CONFIRM] = 0
  end)
  report('confirmed', key, lease, confirm)
end

-- The lease that an owner refers to, or why there is none (invariant S3).
local function lease_for_owner(key, owner, fence)
  local one, other = leases_of_owner(key, owner)
  if fence ~= 0 then
    local lease = lease_with_fence(key, fence)
    if lease and lease[OWNER] == owner and lease[EXPIRES] > now then
      return lease
    end
  elseif one and one[EXPIRES] > now then
    return not other and one or nil, 'ambiguous'
  end
  if one then
    return nil, 'owned_by_another'
  end
  local why = find_release(key, owner, function(release)
    if fence == 0 and release[R_NEWEST] or release[R_FENCE] == fence then
      return release[R_FORCED] and 'taken_away' or 'already_released'
    end
  end)
  if why then
    return nil, why
  end
  return nil, lease_count(key) > 0 and 'owned_by_another' or 'not_found'
end
