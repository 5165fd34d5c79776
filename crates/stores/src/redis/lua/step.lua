-- One step of forrst_lock::model, from ending leases that are due to granting waiting claims.

-- Reports the transition that the outcome itself describes. If there are others before or after it, 0 stands for it in the list.
local function report_outcome()
  if transitions then
    transitions[#transitions + 1] = 0
  end
  has_outcome_transition = true
end

-- `time`: of a grant, by when it has to be confirmed; otherwise, when the lease was due.
local function report(kind, of, lease, time, waited_since)
  transitions = transitions or { has_outcome_transition and 0 or nil }
  transitions[#transitions + 1] = { kind, of.id, pack(lease), time, waited_since or 0 }
  return #transitions
end

local function tell(other, message)
  published = published or {}
  published[#published + 1] = { other, message }
end

-- The nodes through which a lease was granted, besides this one.
local function tell_holders(lease, message)
  local nodes = lease[NODES_OF]
  if nodes == node then
    return
  end
  for at = 1, #nodes, #node do
    local other = sub(nodes, at, at + #node - 1)
    if other ~= node then
      tell(other, message)
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

local function remember_release(of, lease, forced)
  local owner, fence = lease[OWNER], lease[FENCE]
  local has_newer = find_release(of, owner, function(release)
    return release[R_FENCE] > fence
  end)
  if not has_newer and count(of) > 0 then
    has_newer = find_lease(of, format('o%03d%s', #owner, owner), function(other)
      return other[OWNER] == owner and other[FENCE] > fence
    end)
  end
  add_release(of, { owner, fence, now + memory, forced, not has_newer, lease[ATTEMPT] })
end

-- Ends a lease, on all its keys. They remember it if it is released or forced.
local function finish(of, lease, cause)
  local locks = lease[LOCKS]
  local is_remembered = cause == 'released' or cause == 'forced'
  if locks then
    local fence = lease[FENCE]
    for i = 1, #locks, 2 do
      local one = key(locks[i], locks)
      local own = lease_of(one, fence)
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
    remove(of, lease)
    if is_remembered then
      remember_release(of, lease, cause == 'forced')
    end
  end
  if is_remembered then
    tell_holders(lease, { 5, of.id, lease[FENCE] })
  end
end

-- Ends the leases on this key that are due: expired or unconfirmed. Returns whether there were any.
local function expire(of)
  local is_any = false
  while count(of) > 0 do
    local lease = first_due(of)
    if due(lease) > now then
      break
    end
    local is_live = lease[EXPIRES] > now
    if is_live and is_quiet() then
      -- Its node may have had no chance to confirm it. Expired leases behind it are not used either: see `held_by`.
      break
    end
    local cause = is_live and 'unconfirmed' or 'expired'
    report(cause, of, lease, due(lease))
    finish(of, lease, cause)
    is_any = true
  end
  return is_any
end

-- A call has left the queue. If it is of this node, the answer says so, otherwise a message to its node.
local function wake(ticket, other, kind, ...)
  if other == node then
    woken = woken or {}
    woken[#woken + 1] = { ticket, kind, ... }
  else
    tell(other, { kind, ticket, ... })
  end
end

-- After a fail-over a deadline may be by another clock, until its node has put the call back.
local function is_over(until_then)
  return until_then <= now and (lane[4] or 0) <= now
end

local function stays(other, until_then)
  return not is_over(until_then) and not is_gone(other)
end

-- Keeps some of the calls of a claim, which leaves all its queues if none are left. Returns whether it does.
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
local function prune(of, claim)
  local fields = claim.fields
  local calls = fields[C_CALLS]
  local is_any_over = false
  for at = 1, #calls, 3 do
    is_any_over = is_any_over or not stays(calls[at + 1], calls[at + 2])
  end
  if not is_any_over then
    return false
  end
  local blocked, look_at = obstacle(fields[C_LOCKS], of, fields[C_SHARE], claim.position)
  for at = 1, #calls, 3 do
    local other, until_then = calls[at + 1], calls[at + 2]
    -- A node that comes back finds out itself that it was considered dead, and puts its calls back.
    if is_over(until_then) and not is_gone(other) then
      wake(calls[at], other, 2, blocked, look_at)
    end
  end
  return retain_calls(claim, function(_, other, until_then)
    return stays(other, until_then)
  end)
end

-- Removes claims before a position that no call waits for any more. Returns whether there were any.
local function prune_before(of, position)
  local is_any = false
  while true do
    local first = next_claim(of)
    if not first or first.position >= position or not prune(of, first) then
      return is_any
    end
    is_any = true
  end
end

local function begin(of, lease, share)
  begin_after_releases(of, lease[OWNER])
  of.state[LAST] = lease[FENCE]
  of.state[SHARE] = share
  insert(of, lease)
end

local function copy(lease)
  local other = {}
  for field = 1, PART do
    other[field] = lease[field]
  end
  return other
end

local function hold(locks, of, share, lease)
  if not locks then
    return begin(of, lease, share)
  end
  for i = 1, #locks, 2 do
    begin(key(locks[i], locks), copy(lease), locks[i + 1])
  end
end

-- A fence that is larger than every earlier one of these keys; nil if there are no more.
local function mint(locks, of)
  if not locks then
    return mint_above(of.state[LAST])
  end
  local last = 0
  for i = 1, #locks, 2 do
    last = math.max(last, key(locks[i], locks).state[LAST])
  end
  return mint_above(last)
end

-- Grants the first claim in a queue, if possible. Returns whether it has left.
local function grant_waiting(of, claim)
  local fields, position = claim.fields, claim.position
  local locks = fields[C_LOCKS]
  if locks then
    for i = 1, #locks, 2 do
      local one = key(locks[i], locks)
      -- Another claim may have waited for what ends there.
      local has_expired = expire(one)
      if prune_before(one, position) or has_expired then
        unsettled[#unsettled + 1] = one.id
      end
      if not is_open(one, locks[i + 1], position) then
        return false
      end
    end
  elseif not has_room_for(of, fields[C_SHARE]) then
    return false
  end
  if budget == 0 then
    more[of.id] = true
    mark(of)
    return false
  end
  budget = budget - 1
  local fence = mint(locks, of)
  dequeue(claim)
  unsettle(locks)
  local calls = fields[C_CALLS]
  if not fence then
    for at = 1, #calls, 3 do
      wake(calls[at], calls[at + 1], 4)
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
  -- Nothing runs under this lease before its node has confirmed it. So a node that has just died delays the others for
  -- seconds, and not for the whole ttl.
  local confirm = (must_confirm or not is_known) and now + CONFIRM_WITHIN or 0
  local lease = {
    fence, now, now + fields[C_TTL], fields[C_OWNER], fields[C_CALLER], fields[C_NOTE], fields[C_ATTEMPT],
    table.concat(tickets), confirm, table.concat(nodes), locks, fields[C_SHARE],
  }
  hold(locks, of, fields[C_SHARE], lease)
  local number = report('granted', of, lease, confirm, fields[C_SINCE])
  for at = 1, #calls, 3 do
    local other = calls[at + 1]
    if other == node then
      wake(calls[at], other, 1, number)
    else
      wake(calls[at], other, 1, of.id, fence)
    end
  end
  return true
end

local function settle_key(of)
  while true do
    local first = next_claim(of)
    if not first or not (prune(of, first) or grant_waiting(of, first)) then
      return
    end
  end
end

local function settle_others()
  while #unsettled > 0 do
    local of = key(table.remove(unsettled))
    expire(of)
    settle_key(of)
  end
end

-- Grants what can be granted at this key, and at others that this affects.
local function settle_from(of)
  if of.state[WAITS] then
    settle_key(of)
  end
  if #unsettled > 0 then
    settle_others()
  end
end

-- Changes a lease in each of its keys.
local function change(of, lease, apply)
  local locks, fence = lease[LOCKS], lease[FENCE]
  if not locks then
    touch_lease(of, lease)
    return apply(lease)
  end
  for i = 1, #locks, 2 do
    local one = key(locks[i], locks)
    local own = lease_of(one, fence)
    touch_lease(one, own)
    apply(own)
  end
end

local function confirmed(of, lease)
  local confirm = lease[CONFIRM]
  if confirm == 0 then
    return
  end
  change(of, lease, function(own)
    own[CONFIRM] = 0
  end)
  report('confirmed', of, lease, confirm)
end

-- The lease that an owner refers to, or why there is none (property S3).
local function held_by(of, owner, fence)
  local one, other = held_by_owner(of, owner)
  if fence ~= 0 then
    local lease = lease_of(of, fence)
    if lease and lease[OWNER] == owner and lease[EXPIRES] > now then
      return lease
    end
  elseif one and one[EXPIRES] > now then
    return not other and one or nil, 'ambiguous'
  end
  if one then
    return nil, 'owned_by_another'
  end
  local why = find_release(of, owner, function(release)
    if fence == 0 and release[R_NEWEST] or release[R_FENCE] == fence then
      return release[R_FORCED] and 'taken_away' or 'already_released'
    end
  end)
  if why then
    return nil, why
  end
  return nil, count(of) > 0 and 'owned_by_another' or 'not_found'
end
