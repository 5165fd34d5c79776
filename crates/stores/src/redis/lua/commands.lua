-- The other commands. Each gets its keys, and answers a list: a code, two fields for the transitions and the woken calls (filled in
-- by `run_one`), then what belongs to the code.

-- { 2, ticket, for how long it is remembered }. Rolls a call back. If there is nothing to roll back, it may not have arrived yet: it
-- is marked, and then has no effect when it arrives.
local function abandon(command, of)
  local ticket = command[2]
  local lease = count(of) > 0 and held_by_call(of, ticket)
  if lease then
    if #lease[CALLS] > 16 then
      change(of, lease, function(own)
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
    finish(of, lease, 'abandoned')
    return { 'returned', false, false, pack(lease), time }
  end
  local claim = awaited_by_call(of, ticket)
  if claim then
    local fields = claim.fields
    local blocked, look_at = obstacle(fields[C_LOCKS], of, fields[C_SHARE], claim.position)
    retain_calls(claim, function(other)
      return other ~= ticket
    end)
    return { 'left_queue', false, false, blocked, look_at }
  end
  local until_then = now + command[3]
  marks[#marks + 1] = { until_then, ticket }
  of.state[GONE_UNTIL] = math.max(of.state[GONE_UNTIL], until_then)
  mark(of)
  return { 'nothing', false, false }
end

-- { 3, owner, fence or 0 }
local function release(command, of)
  local lease, why = held_by(of, command[2], command[3])
  if not lease then
    return { why, false, false }
  end
  report_outcome()
  local time = due(lease)
  finish(of, lease, 'released')
  return { 'done', false, false, pack(lease), time }
end

-- { 4, owner, fence or 0, ttl }
local function extend(command, of)
  local lease, why = held_by(of, command[2], command[3])
  if not lease then
    return { why, false, false }
  end
  local before, expires = due(lease), now + command[4]
  change(of, lease, function(own)
    own[EXPIRES] = expires
    -- An owner that extends its lease knows of it.
    own[CONFIRM] = 0
  end)
  report_outcome()
  tell_holders(lease, { 6, of.id, lease[FENCE], expires })
  return { 'done', false, false, pack(lease_of(of, lease[FENCE])), before }
end

-- { 5, fences }
local function force_release(command, of)
  local meant, fences = command[2], all_fences(of)
  local is_meant = {}
  for _, fence in ipairs(meant) do
    is_meant[fence] = true
  end
  local ended = {}
  for _, fence in ipairs(fences) do
    if #meant == 0 or is_meant[fence] then
      local lease = lease_of(of, fence)
      report('forced', of, lease, due(lease))
      finish(of, lease, 'forced')
      ended[#ended + 1] = pack(lease)
    end
  end
  if #ended == 0 then
    return { #fences > 0 and 'owned_by_another' or 'not_found', false, false }
  end
  return { 'done', false, false, ended }
end

-- { period, how many attempts were withdrawn in it, and in the one before }: at least those that are still remembered.
local function withdrawn_lately(of)
  local period = math.floor(now / WITHDRAWAL_TTL)
  local lately = of.state[WITHDRAWN] or { period, 0, 0 }
  if lately[1] == period then
    return lately
  end
  return { period, 0, lately[1] == period - 1 and lately[2] or 0 }
end

-- { 6, owner, attempt }
local function withdraw(command, of)
  local owner, attempt = command[2], command[3]
  local lately = withdrawn_lately(of)
  local is_new = not is_withdrawn(of, owner, attempt)
  if is_new and lately[2] + lately[3] >= MAX_WITHDRAWALS then
    return { 'too_many', false, false }
  end
  local answer = { 'unknown', false, false }
  local lease = count(of) > 0 and held_by_attempt(of, owner, attempt)
  local claim = not lease and awaited_by_attempt(of, owner, attempt)
  if lease then
    report_outcome()
    local time = due(lease)
    finish(of, lease, 'released')
    answer = { 'held', false, false, pack(lease), time }
  elseif claim and not prune(of, claim) then
    local calls = claim.fields[C_CALLS]
    for at = 1, #calls, 3 do
      wake(calls[at], calls[at + 1], 3)
    end
    retain_calls(claim, function()
      return false
    end)
    answer = { 'waiting', false, false }
  end
  local until_then = now + WITHDRAWAL_TTL
  lately[2] = lately[2] + (is_new and 1 or 0)
  of.state[WITHDRAWN], of.state[WITHDRAWN_UNTIL] = lately, until_then
  mark(of)
  marks[#marks + 1] = { until_then, withdrawn_text(of, owner, attempt) }
  return answer
end

-- { 7, fence }
local function confirm(command, of)
  local lease = lease_of(of, command[2])
  if not lease then
    return { 'not_found', false, false }
  end
  confirmed(of, lease)
  return { 'done', false, false, pack(lease_of(of, command[2])) }
end

-- { 8, tickets, whether to settle the key first }. Answers which of these calls have a lease by now, and which are not in the queue,
-- because a message was lost or their node was considered dead.
local function settle(command, of)
  if of.is_new then
    -- The state of a key whose leases were not swept expires, and leaves its entry behind.
    call('ZREM', KEYS[4 + ends_of[of.number]], of.id)
  end
  local first = next_claim(of)
  local look_at = now
  if first then
    local fields = first.fields
    local _, at = obstacle(fields[C_LOCKS], of, fields[C_SHARE], first.position)
    look_at = at
  end
  local granted, missing = {}, {}
  for _, ticket in ipairs(command[2]) do
    local lease = count(of) > 0 and held_by_call(of, ticket)
    if lease then
      confirmed(of, lease)
      granted[#granted + 1] = ticket
      granted[#granted + 1] = pack(lease_of(of, lease[FENCE]))
    elseif not awaited_by_call(of, ticket) then
      missing[#missing + 1] = ticket
    end
  end
  return { 'settled', false, false, waiting_count(of), look_at, granted, missing }
end

-- A command on one key. Before it, expired leases are ended; after it, what is free is granted.
local function on_one(apply)
  return function(command, command_keys)
    local of = command_keys[1]
    if count(of) > 0 then
      expire(of)
    end
    local answer = apply(command, of)
    settle_from(of)
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

