-- Takes back what a call has brought. If it has brought nothing, it may still be on its way: then it is marked, and comes to
-- nothing when it arrives.
local ticket = ARGV[5]

return step(function()
  if holder and holder.ticket == ticket then
    holder = nil
    changed = true
  elseif not remove_waiter(ticket) then
    redis.call('SET', UNDONE, '1', 'PX', UNDONE_TTL)
  end
  return {}
end)
