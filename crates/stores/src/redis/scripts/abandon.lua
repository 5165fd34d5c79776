-- Takes back what a call has brought. If it has brought nothing, it may still be on its way: then it is marked, and comes to
-- nothing when it arrives.
local ticket = ARGV[5]

return step(function()
  if is_held_by_call(ticket) then
    if remove_call(ticket) then
      return { 'nothing' }
    end
    return { 'returned', unpack(lease(finish('abandoned'))) }
  end
  if remove_waiter(ticket) then
    return { 'left_queue', int(holder and holder.expires or now) }
  end
  redis.call('SET', UNDONE, '1', 'PX', UNDONE_TTL)
  return { 'nothing' }
end)
