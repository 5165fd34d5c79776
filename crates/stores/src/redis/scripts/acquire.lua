-- Takes the lock or joins the queue. `seq` and `until` are given by a node that puts a waiter back in its place.
local me = {
  owner = ARGV[5], attempt = ARGV[6], ticket = ARGV[7], ttl = tonumber(ARGV[8]), caller = ARGV[13],
  note = ARGV[14], node = NODE,
}
local timeout, max_queue, seq = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
me['until'] = tonumber(ARGV[12])

local function granted()
  return { 'granted', unpack(lease(holder)) }
end

-- Whether this call was given the lease before, or repeats the attempt that was.
local function has_it()
  return holder and holder.owner == me.owner and holder.attempt == me.attempt
    and (me.attempt ~= '' or is_held_by_call(me.ticket))
end

-- Arrival by time in microseconds, so that it also orders those who come back into an empty queue.
local function last_place()
  local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
  return math.max(now_micros, tonumber(last or 0) + 1)
end

-- The place says when it came.
local function since()
  return math.min(math.floor(seq / 1000), now)
end

local function join_queue()
  local queued_as = redis.call('ZSCORE', QUEUE, me.ticket)
  if not queued_as then
    local earlier = me.attempt ~= '' and redis.call('HGET', WAITERS, attempt_field(me.owner, me.attempt))
    local is_back = seq ~= nil
    -- The calls of an attempt do not share its position yet, as they do in the model: the newest call has it, and for the
    -- others the wait is over.
    if is_back and earlier then
      return { 'timed_out' }
    elseif earlier then
      seq = tonumber(redis.call('ZSCORE', QUEUE, earlier))
      tell(remove_waiter(earlier), 'timed_out')
    elseif not is_back then
      if is_full(max_queue) then
        return { 'full', int(holder.expires) }
      end
      seq = last_place()
    end
    me['until'] = me['until'] or now + timeout
    me.since = since()
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
  if has_it() then
    add_call(me.ticket)
    confirmed()
    return granted()
  end
  if me['until'] and me['until'] <= now then
    return { 'timed_out' }
  end
  if not holder then
    local fence = mint()
    if not fence then
      return { 'exhausted' }
    end
    grant(me, fence, seq and since())
    return granted()
  end
  if not timeout then
    return { 'held', int(holder.expires) }
  end
  return join_queue()
end, true)
