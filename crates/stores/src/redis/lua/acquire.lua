-- The command that acquires: from a repeated attempt or a rejoining call to a grant or a position in the queue.

local function parse_locks(command_keys, shares)
  if type(shares) ~= 'table' then
    return false, command_keys[1], shares
  end
  local locks = {}
  for i, key in ipairs(command_keys) do
    locks[2 * i - 1], locks[2 * i] = key.id, shares[i]
  end
  return locks, command_keys[1], nil
end

local function withdrawal_member(key, owner, attempt)
  return pair_prefix('w', owner, attempt) .. key.id
end

local function is_withdrawn(key, owner, attempt)
  if key.state[WITHDRAWN_UNTIL] <= now then
    return false
  end
  local until_then = call('ZSCORE', TOMBSTONES, withdrawal_member(key, owner, attempt))
  return until_then and tonumber(until_then) > now
end

-- Whether two claims are for the same keys and shares.
local function is_same(locks, share, other_locks, other_share)
  if not locks or not other_locks then
    return not locks and not other_locks and share == other_share
  end
  if #locks ~= #other_locks then
    return false
  end
  for i = 1, #locks do
    if locks[i] ~= other_locks[i] then
      return false
    end
  end
  return true
end

-- Until when searching a full queue again is pointless: by then a call in it may have timed out, or another node may be dead.
local no_room_until = {}

-- Removes claims that no call waits for any more from a full queue, until it has room.
local function make_room(key, max_queue)
  local in_vain = no_room_until[key.id] or 0
  if now < in_vain and in_vain <= now + DEFAULT_RETRY then
    return
  end
  local earliest, from = now + DEFAULT_RETRY, '[q'
  repeat
    local some = call('ZRANGE', sorted_set(key), from, '(r', 'BYLEX', 'LIMIT', 0, MAX_GRANTS)
    for _, text in ipairs(some) do
      local claim = parse_claim(key.id, text)
      -- A claim of several keys may need some that were not declared.
      if not claim.is_removed and (not claim.fields[C_LOCKS] or waiting_count(key) >= max_queue) then
        prune(key, claim)
      end
      local calls = claim.fields[C_CALLS]
      for i = 3, claim.is_removed and 0 or #calls, 3 do
        earliest = math.min(earliest, calls[i])
      end
    end
    local has_room = waiting_count(key) < max_queue
    from = #some > 0 and '(' .. some[#some]
  until has_room or not from
  no_room_until[key.id] = waiting_count(key) >= max_queue and earliest or nil
end

-- { 1, ticket, owner, caller, note, attempt, ttl, share or shares, timeout, max_queue, arrival, its ticket, until }
local function acquire(command, command_keys)
  local ticket, owner, attempt, ttl = command[2], command[3], command[6], command[7]
  local timeout, max_queue, arrival, again_until = command[9], command[10], command[11], command[13]
  local locks, key, share = parse_locks(command_keys, command[8])
  local is_again = arrival ~= 0
  local position = is_again and position_of(arrival, command[12]) or nil

  for _, one in ipairs(command_keys) do
    if lease_count(one) > 0 then
      expire(one)
    end
  end
  for _, one in ipairs(command_keys) do
    settle_from(one)
  end

  for _, one in ipairs(command_keys) do
    if one.state[TOMBSTONES_UNTIL] > now and call('ZSCORE', TOMBSTONES, ticket) then
      return { 'abandoned', false, false }
    end
  end

  if attempt ~= '' or is_again then
    for _, one in ipairs(command_keys) do
      if attempt ~= '' and is_withdrawn(one, owner, attempt) then
        return { 'withdrawn', false, false }
      end
      if is_again and attempt ~= '' then
        local is_released = find_release(one, owner, function(release)
          return release[R_ATTEMPT] == attempt
        end)
        if is_released then
          return { 'withdrawn', false, false }
        end
      end
    end
    for _, one in ipairs(command_keys) do
      local lease = attempt ~= '' and lease_of_attempt(one, owner, attempt) or is_again and lease_of_call(one, ticket)
      if lease then
        if not is_same(locks, share, lease[LOCKS], lease[LEASE_SHARE]) then
          return { 'another_attempt', false, false }
        end
        local nodes = lease[LEASE_NODES]
        local is_new_node = not string.find(nodes, node, 1, true)
        local is_new_call = lease[CALLS] ~= '' and not has_call(lease, ticket)
        if is_new_node or is_new_call then
          change(one, lease, function(own)
            if is_new_call then
              own[CALLS] = #own[CALLS] >= 16 * MAX_CALLS and '' or own[CALLS] .. ticket
            end
            if is_new_node then
              own[LEASE_NODES] = nodes .. node
            end
          end)
        end
        confirm_lease(one, lease)
        return { 'again', false, false, pack(lease_with_fence(one, lease[FENCE])) }
      end
    end
    if is_again and again_until <= now then
      return { 'timed_out', false, false }
    end
    for _, one in ipairs(command_keys) do
      local claim = attempt ~= '' and claim_of_attempt(one, owner, attempt) or is_again and claim_of_call(one, ticket)
      if claim then
        local fields = claim.fields
        if not is_same(locks, share, fields[C_LOCKS], fields[C_SHARE]) then
          return { 'another_attempt', false, false }
        end
        if not prune(one, claim) then
          local blocked, retry_at = obstacle(locks, key, share, claim.position)
          if timeout < 0 then
            return { 'held', false, false, blocked, retry_at }
          end
          local calls, others = fields[C_CALLS], {}
          for at = 1, #calls, 3 do
            if calls[at] ~= ticket then
              others[#others + 1], others[#others + 2], others[#others + 3] = calls[at], calls[at + 1], calls[at + 2]
            end
          end
          if #others >= 3 * MAX_CALLS then
            return { 'full', false, false, blocked, retry_at }
          end
          local until_then = is_again and again_until or now + timeout
          touch_claim(claim)
          others[#others + 1], others[#others + 2], others[#others + 3] = ticket, node, until_then
          fields[C_CALLS] = others
          has_joined = true
          return {
            'queued', false, false, blocked, retry_at, tonumber(sub(claim.position, 1, 16)), sub(claim.position, 17), until_then,
          }
        end
      end
    end
  end

  if not blocked_by(locks, key, share, position)[1] then
    local fence = mint(locks, key)
    if not fence then
      return { 'exhausted', false, false }
    end
    local lease = { fence, now, now + ttl, owner, command[4], command[5], attempt, ticket, 0, node, locks, share or 0 }
    grant_lease(locks, key, share, lease)
    report_outcome()
    return { 'granted', false, false, fence }
  end
  local blocked, retry_at = obstacle(locks, key, share, position)
  if timeout < 0 then
    return { 'held', false, false, blocked, retry_at }
  end
  if not is_again then
    for _, one in ipairs(command_keys) do
      if waiting_count(one) >= max_queue then
        make_room(one, max_queue)
        if waiting_count(one) >= max_queue then
          return { 'full', false, false, blocked, retry_at }
        end
      end
    end
    arrival = now_micros
    for _, one in ipairs(command_keys) do
      arrival = math.max(arrival, one.state[LAST_ARRIVAL] + 1)
    end
    for _, one in ipairs(command_keys) do
      one.state[LAST_ARRIVAL] = arrival
    end
    position = position_of(arrival, ticket)
    again_until = now + timeout
  end
  enqueue({
    id = key.id,
    position = position,
    entries = claim_entries,
    fields = {
      owner, command[4], command[5], attempt, ttl, locks, share or 0, math.min(math.floor(arrival / 1000), now),
      { ticket, node, again_until }, node,
    },
  })
  return { 'queued', false, false, blocked, retry_at, arrival, sub(position, 17), again_until }
end
