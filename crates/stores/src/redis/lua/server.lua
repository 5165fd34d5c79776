-- What a partition group keeps about its server: the server's instance id, its fences, and which nodes are alive.

-- The run id of this server process; the group's name for the server begins with it. A server that takes over, or that was stopped
-- while another one did, finds another process in META. Other versions of this library, and this one after a FUNCTION FLUSH, find
-- the same.
local process
local function find_process()
  if not process then
    process = sub(string.match(call('INFO', 'server'), 'run_id:(%x+)'), 1, 12)
  end
end

local instance -- the current group's name for this server
-- When each group was last called here.
local last_called = {}
-- By group, the last call of each node: { number, the keys of commands that have to be sent again, or false for all keys }.
local last_calls = {}
-- Those of the current group.
local group_calls

-- The fields of META.
local meta
local meta_is_dirty, is_behind, fence_by_time
-- Computed at most once in a call.
local is_node_dead, grace_period

-- Fences follow the time, at 100 per millisecond. `high` is above every fence that this group has ever granted. It is written a few
-- seconds ahead of the time, and so only every few seconds. As long as the time is no further behind `high` than that, a fence by
-- the time is larger than all earlier ones, because a key remembers its last fence for longer. Otherwise (the clock was set back,
-- or another server may have been ahead) fences continue from `high`.
local function open_group(group_id, floor)
  local packed = call('GET', META)
  meta = packed and unpack_one(packed) or { '', 0, 0, 0 }
  meta_is_dirty = false
  fence_by_time = math.min(math.floor(now_micros / FENCE_MICROS) - FENCE_EPOCH, FENCE_BY_TIME_MAX)
  local high = math.max(meta[M_HIGH], floor + 1)
  local before = last_called[group_id]
  find_process()
  local is_other = sub(meta[M_INSTANCE], 1, 12) ~= process
  if is_other or not before or now - before > MAX_CALL_GAP then
    if is_other then
      if meta[M_INSTANCE] ~= '' then
        -- The nodes notice the new name, and put all their calls back at their positions. The times in META were by the clock of
        -- the previous server.
        meta[M_GRACE_UNTIL], meta[M_FOREIGN_CLOCK_UNTIL] = now + NODE_TTL, now + NODE_TTL
      end
      -- A new name even for a server that was here before: it may have lost what it granted then.
      meta[M_INSTANCE] = process .. format('%x', now_micros)
    end
    high = math.max(high, fence_by_time + FENCE_MARGIN)
    meta_is_dirty = true
  end
  instance = meta[M_INSTANCE]
  last_called[group_id] = now
  last_calls[group_id] = last_calls[group_id] or {}
  group_calls = last_calls[group_id]
  if high < fence_by_time + FENCE_WINDOW / 2 then
    high = fence_by_time + FENCE_WINDOW
  end
  is_behind = high > fence_by_time + FENCE_WINDOW
  meta_is_dirty = meta_is_dirty or high ~= meta[M_HIGH]
  meta[M_HIGH] = high
  is_node_dead, grace_period = {}, nil
end

local function close_group()
  if meta_is_dirty then
    call('SET', META, pack(meta))
  end
end

local function mint_above(last)
  local fence = math.max(is_behind and meta[M_HIGH] or fence_by_time, last + 1)
  if fence > FENCE_MAX then
    return nil
  end
  if fence >= meta[M_HIGH] then
    meta[M_HIGH] = is_behind and fence + 1 or fence + FENCE_WINDOW
    meta_is_dirty = true
  end
  return fence
end

-- Whether it is too early to consider a node dead, or a grant unconfirmed: if no node has sent a heartbeat for a while, the server
-- was unavailable, and the nodes need time to send one.
local function in_grace_period()
  if grace_period == nil then
    local newest = call('ZRANGE', NODES, -1, -1, 'WITHSCORES')[2]
    grace_period = meta[M_GRACE_UNTIL] > now or tonumber(newest or 0) < now + NODE_TTL - NODE_SILENCE
  end
  return grace_period
end

local function is_dead(other)
  if other == node then
    return false
  end
  local known = is_node_dead[other]
  if known == nil then
    known = tonumber(call('ZSCORE', NODES, other) or 0) <= now and not in_grace_period()
    is_node_dead[other] = known
  end
  return known
end

local function is_alive()
  return tonumber(call('ZSCORE', NODES, node) or 0) > now
end

local function mark_alive()
  call('ZADD', NODES, int(now + NODE_TTL), node)
end

-- The heartbeat of a node. Returns how many messages it was sent so far, whether it counted as alive, and which nodes are dead.
local function heartbeat()
  local newest = tonumber(call('ZRANGE', NODES, -1, -1, 'WITHSCORES')[2] or 0)
  if newest < now + NODE_TTL - NODE_SILENCE then
    meta[M_GRACE_UNTIL] = now + NODE_TTL
    meta_is_dirty = true
  elseif newest > now + NODE_TTL then
    -- The clock was set back, which must not prolong the time for which a node counts as alive.
    for _, other in ipairs(call('ZRANGE', NODES, '(' .. int(now + NODE_TTL), '+inf', 'BYSCORE')) do
      call('ZADD', NODES, int(now + NODE_TTL), other)
    end
  end
  for _, other in ipairs(call('ZRANGE', NODES, '-inf', int(now - NODE_RETENTION), 'BYSCORE', 'LIMIT', 0, 16)) do
    call('ZREM', NODES, other)
    call('HDEL', COUNTERS, other)
    group_calls[other] = nil
  end
  call('ZREMRANGEBYSCORE', TOMBSTONES, '-inf', int(now))
  grace_period = nil
  local was_alive = is_alive()
  mark_alive()
  local dead = in_grace_period() and {} or call('ZRANGE', NODES, '-inf', int(now), 'BYSCORE')
  return tonumber(call('HGET', COUNTERS, node) or 0), was_alive, dead
end
