-- Only the step itself. The caller's first waiters are named after ARGV[4]: it hears which of them holds the lock by now,
-- and which are not in the queue, because a message was lost or its node was taken for dead.
return step(function()
  local granted, missing = {}, {}
  for place = 5, #ARGV do
    local ticket = ARGV[place]
    if is_held_by_call(ticket) then
      confirmed()
      granted = { ticket, 'granted', unpack(lease(holder)) }
    elseif not redis.call('ZSCORE', QUEUE, ticket) then
      table.insert(missing, ticket)
    end
  end
  if #ARGV > 4 then
    show_life()
  end
  if not holder then
    -- A lease that nobody swept away in time is gone by itself, and its name is left.
    redis.call('ZREM', NAMES, NAME)
    redis.call('ZREM', ENDS, NAME)
  end
  return { int(holder and holder.expires or now), redis.call('ZCARD', QUEUE), granted, missing }
end, true)
