-- Looks and changes nothing.
load()
expire()
if not holder then
  return { int(now), {}, {}, {} }
end
return { int(now), { redis.call('ZCARD', QUEUE), unpack(lease(holder)) }, {}, {} }
