-- Who waits, the next one first; at most ARGV[5] of them.
local waiting = {}
for _, ticket in ipairs(redis.call('ZRANGE', QUEUE, 0, ARGV[5] - 1)) do
  local waiter = find_waiter(ticket)
  if waiter then
    table.insert(waiting, { waiter.owner, waiter.caller, int(waiter.since), int(waiter['until']) })
  end
end
return { int(now), waiting, {}, {} }
