-- Who waits, the next one first; at most ARGV[5] of them. Those who have given up, or whose node is dead, stay in the queue until
-- it is their turn, but wait no more.
local waiting = {}
for _, ticket in ipairs(redis.call('ZRANGE', QUEUE, 0, ARGV[5] - 1)) do
  local waiter = find_waiter(ticket)
  if waiter and waiter['until'] > now and node_is_alive(waiter.node) then
    table.insert(waiting, { waiter.owner, waiter.caller, waiter.note, int(waiter.since), int(waiter['until']) })
  end
end
return { int(now), waiting, {}, {} }
