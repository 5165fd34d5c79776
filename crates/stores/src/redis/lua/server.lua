-- What a lane keeps of its server: its name, its fences, and which nodes are alive.

-- The run id of this server process, with which the lane's name for it begins. A server that takes over, or that was stopped while
-- another one did, finds another process in META. Other versions of this library, and this one after a FUNCTION FLUSH, find
-- the same.
local process
local function find_process()
  if not process then
    process = sub(string.match(call('INFO', 'server'), 'run_id:(%x+)'), 1, 12)
  end
end

local instance -- the current lane's name for this server
-- When each lane was last called here.
local last_called = {}
-- By lane, the last call of each node: { number, the keys of commands that have to be sent again, or false for all keys }.
local last_calls = {}
-- Those of the current lane.
local calls_here

-- { instance, high, until when no node is considered dead, until when deadlines may be by another server's clock } as in META
local lane
local lane_is_dirty, is_behind, by_time
-- Known for the rest of the call.
local is_node_gone, quiet

-- Fences follow the time, at 100 per millisecond. `high` is above every fence that this lane has ever granted. It is written a few
-- seconds ahead of the time, and so only every few seconds. While the time is not behind it by more than that, the time
-- gives a fence that is larger than all before it, because a key remembers its last fence for longer. Otherwise (the clock was set
-- back, or another server may have been ahead) fences continue from `high`.
local function open_lane(lane_id, floor)
  local packed = call('GET', META)
  lane = packed and unpack_one(packed) or { '', 0, 0, 0 }
  lane_is_dirty = false
  by_time = math.min(math.floor(now_micros / FENCE_MICROS) - FENCE_EPOCH, FENCE_BY_TIME_MAX)
  local high = math.max(lane[2], floor + 1)
  local before = last_called[lane_id]
  find_process()
  local is_other = sub(lane[1], 1, 12) ~= process
  if is_other or not before or now - before > STOOD_STILL then
    if is_other then
      if lane[1] ~= '' then
        -- The nodes notice the new name, and put all their calls back at their positions. These times were by the clock of the
        -- server before.
        lane[3], lane[4] = now + NODE_TTL, now + NODE_TTL
      end
      -- A new name even for a server that was here before: it may have lost what it granted then.
      lane[1] = process .. format('%x', now_micros)
    end
    high = math.max(high, by_time + FENCE_MARGIN)
    lane_is_dirty = true
  end
  instance = lane[1]
  last_called[lane_id] = now
  last_calls[lane_id] = last_calls[lane_id] or {}
  calls_here = last_calls[lane_id]
  if high < by_time + FENCE_WINDOW / 2 then
    high = by_time + FENCE_WINDOW
  end
  is_behind = high > by_time + FENCE_WINDOW
  lane_is_dirty = lane_is_dirty or high ~= lane[2]
  lane[2] = high
  is_node_gone, quiet = {}, nil
end

local function close_lane()
  if lane_is_dirty then
    call('SET', META, pack(lane))
  end
end

local function mint_above(last)
  local fence = math.max(is_behind and lane[2] or by_time, last + 1)
  if fence > FENCE_MAX then
    return nil
  end
  if fence >= lane[2] then
    lane[2] = is_behind and fence + 1 or fence + FENCE_WINDOW
    lane_is_dirty = true
  end
  return fence
end

-- Whether it is too early to consider a node dead, or a grant unconfirmed: no node has sent a heartbeat for a while, so it was the
-- server that was away, and the nodes need time to send one.
local function is_quiet()
  if quiet == nil then
    local newest = call('ZRANGE', NODES, -1, -1, 'WITHSCORES')[2]
    quiet = lane[3] > now or tonumber(newest or 0) < now + NODE_TTL - NODE_SILENCE
  end
  return quiet
end

local function is_gone(other)
  if other == node then
    return false
  end
  local known = is_node_gone[other]
  if known == nil then
    known = tonumber(call('ZSCORE', NODES, other) or 0) <= now and not is_quiet()
    is_node_gone[other] = known
  end
  return known
end

local function is_alive()
  return tonumber(call('ZSCORE', NODES, node) or 0) > now
end

local function show_life()
  call('ZADD', NODES, int(now + NODE_TTL), node)
end

-- The heartbeat of a node. Returns how many messages it was sent so far, whether it counted as alive, and which nodes are dead.
local function beat()
  local newest = tonumber(call('ZRANGE', NODES, -1, -1, 'WITHSCORES')[2] or 0)
  if newest < now + NODE_TTL - NODE_SILENCE then
    lane[3] = now + NODE_TTL
    lane_is_dirty = true
  elseif newest > now + NODE_TTL then
    -- The clock was set back, which must not prolong how long a node counts as alive.
    for _, other in ipairs(call('ZRANGE', NODES, '(' .. int(now + NODE_TTL), '+inf', 'BYSCORE')) do
      call('ZADD', NODES, int(now + NODE_TTL), other)
    end
  end
  for _, other in ipairs(call('ZRANGE', NODES, '-inf', int(now - NODE_FORGOTTEN), 'BYSCORE', 'LIMIT', 0, 16)) do
    call('ZREM', NODES, other)
    call('HDEL', NEWS, other)
    calls_here[other] = nil
  end
  call('ZREMRANGEBYSCORE', GONE, '-inf', int(now))
  quiet = nil
  local was_alive = is_alive()
  show_life()
  local gone = is_quiet() and {} or call('ZRANGE', NODES, '-inf', int(now), 'BYSCORE')
  return tonumber(call('HGET', NEWS, node) or 0), was_alive, gone
end
