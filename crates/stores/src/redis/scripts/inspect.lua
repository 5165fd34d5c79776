-- Looks and changes nothing.
load()
expire()
return { int(now), { redis.call('ZCARD', QUEUE), unpack(holder and lease(holder) or {}) }, {}, {} }
