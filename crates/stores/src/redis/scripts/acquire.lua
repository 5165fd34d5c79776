-- Takes the lock or joins the queue. `seq` and `until` are given by a node that puts a waiter back in its place.
local me = {
  owner = ARGV[5], attempt = ARGV[6], ticket = ARGV[7], ttl = tonumber(ARGV[8]), caller = ARGV[13], node = NODE,
}
local timeout, max_ahead, seq = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
me['until'] = tonumber(ARGV[12])

local function granted()
  return { 'granted', unpack(lease(holder)) }
end

local function repeats_holder()
  return me.attempt ~= '' and holder.attempt == me.attempt and holder.owner == me.owner
end

-- Arrival by time in microseconds, so that it also orders those who come back into an empty queue.
local function last_place()
  local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
  return math.max(now_micros, tonumber(last or 0) + 1)
end

local function join_queue()
  local queued_as = redis.call('ZSCORE', QUEUE, me.ticket)
  if not queued_as then
    local earlier = me.attempt ~= '' and redis.call('HGET', WAITERS, attempt_field(me.owner, me.attempt))
    local is_back = seq ~= nil
    if is_back and (earlier or me['until'] <= now) then
      return { earlier and 'superseded' or 'timed_out' }
    elseif earlier then
      seq = tonumber(redis.call('ZSCORE', QUEUE, earlier))
      tell(remove_waiter(earlier), 'superseded')
    elseif not is_back then
      if redis.call('ZCARD', QUEUE) >= max_ahead then
        return { 'full', int(holder.expires) }
      end
      seq = last_place()
    end
    me['until'] = me['until'] or now + timeout
    -- The place says when it came.
    me.since = math.min(math.floor(seq / 1000), now)
    add_waiter(me, seq)
    queued_as = seq
  end
  show_life()
  return { 'queued', int(holder.expires), int(queued_as), int(me['until'] or now + timeout) }
end

return step(function()
  if redis.call('EXISTS', UNDONE) == 1 then
    return { 'undone' }
  end
  hand_over()
  if not holder then
    local fence = mint()
    if not fence then
      return { 'exhausted' }
    end
    grant(me, fence)
    return granted()
  end
  if holder.ticket == me.ticket then
    holder.confirm = nil
    changed = true
    return granted()
  end
  if repeats_holder() then
    -- Whichever of the two calls is given up, the other one may have told the owner.
    holder.ticket = ''
    holder.confirm = nil
    changed = true
    return granted()
  end
  if not timeout then
    return { 'held', int(holder.expires) }
  end
  return join_queue()
end)
