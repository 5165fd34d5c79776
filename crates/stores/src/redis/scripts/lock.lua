-- One step on one lock: forrst_lock::state in Lua.
--
-- Every script is this text followed by one command. All keys are of one partition, so they live on one server
-- of a cluster.

local LOCK, QUEUE, WAITERS, PARTITION, NAMES, ENDS, NODES, UNDONE = unpack(KEYS)
local NAME, NODE, CHANNEL, MUST_CONFIRM = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

local time = redis.call('TIME')
local now_micros = time[1] * 1000000 + time[2]
local now = math.floor(now_micros / 1000)

local holder
-- The releases that are remembered, the newest last: { owner, fence, until, forced, newest of its owner }.
local releases = {}
local expired, woken = {}, {}
local changed = false

-- Lua would write large numbers as 1.79e+12.
local function int(number)
  return string.format('%.0f', number)
end

local function load()
  local it = redis.call('HMGET', LOCK, 'owner', 'fence', 'acquired', 'expires', 'attempt', 'ticket', 'confirm',
    'releases', 'caller')
  if it[1] and it[1] ~= '' then
    holder = {
      owner = it[1], fence = tonumber(it[2]), acquired = tonumber(it[3]), expires = tonumber(it[4]),
      attempt = it[5], ticket = it[6], confirm = tonumber(it[7]), caller = it[9],
    }
  end
  if it[8] and it[8] ~= '' then
    for _, release in ipairs(cmsgpack.unpack(it[8])) do
      if release[3] > now then
        table.insert(releases, release)
      end
    end
  end
end

local function save()
  if not changed then
    return
  end
  -- A full Redis refuses a script whose first change takes room. This one takes none: what is held can be given back.
  redis.call('ZREM', ENDS, NAME)
  local last = releases[#releases]
  local packed = last and cmsgpack.pack(releases) or ''
  if holder then
    redis.call('HSET', LOCK, 'owner', holder.owner, 'fence', int(holder.fence), 'acquired', int(holder.acquired),
      'expires', int(holder.expires), 'attempt', holder.attempt, 'ticket', holder.ticket,
      'confirm', holder.confirm and int(holder.confirm) or '', 'caller', holder.caller,
      'releases', packed)
    redis.call('PEXPIREAT', LOCK, int(holder.expires + FORGOTTEN_AFTER))
    redis.call('ZADD', NAMES, 0, NAME)
    redis.call('ZADD', ENDS, int(holder.confirm or holder.expires), NAME)
  else
    if last then
      redis.call('HSET', LOCK, 'owner', '', 'releases', packed)
      redis.call('PEXPIREAT', LOCK, int(last[3]))
    else
      redis.call('DEL', LOCK)
    end
    redis.call('ZREM', NAMES, NAME)
  end
end

local function lease(of)
  return { of.owner, of.caller, int(of.fence), int(of.acquired), int(of.expires) }
end

-- What the time says, and never further ahead of it than the margin: then whatever was forgotten, by a crash, a fail-over or
-- a FLUSHALL, the next fence is past it, because it is later. A server that counts for the first time may have a clock
-- that is behind that of the last one, so it adds the margin.
local function mint()
  local counter = redis.call('HMGET', PARTITION, 'fence', 'server')
  local info = redis.pcall('INFO', 'replication')
  local server = type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
  local by_time = math.floor((now_micros - FENCE_EPOCH * 1000) / (1000 / FENCES_PER_MILLISECOND))
  if counter[2] ~= server then
    by_time = by_time + FENCE_MARGIN
  end
  local fence = math.max(tonumber(counter[1] or 0) + 1, math.min(by_time, FENCE_BY_TIME_MAX))
  if fence > FENCE_MAX then
    return nil
  end
  redis.call('HSET', PARTITION, 'fence', int(fence), 'server', server)
  return fence
end

local function grant(to, fence)
  -- An owner whose new lease runs out must learn that, and not that an older one was released.
  for _, release in ipairs(releases) do
    release[5] = release[5] and release[1] ~= to.owner
  end
  holder = {
    owner = to.owner, caller = to.caller, fence = fence, acquired = now, expires = now + to.ttl,
    attempt = to.attempt, ticket = to.ticket,
  }
  changed = true
end

local function end_lease(forced)
  local ended = holder
  if #releases == REMEMBERED_RELEASES then
    table.remove(releases, 1)
  end
  table.insert(releases, { ended.owner, ended.fence, now + RELEASE_MEMORY, forced, true })
  holder = nil
  changed = true
  return ended
end

-- The field in WAITERS that finds a waiting attempt. Tickets are fields there, too; they have no colon.
local function attempt_field(owner, attempt)
  return #owner .. ':' .. owner .. attempt
end

local function add_waiter(waiter, seq)
  redis.call('ZADD', QUEUE, int(seq), waiter.ticket)
  redis.call('HSET', WAITERS, waiter.ticket,
    cmsgpack.pack({ waiter.owner, waiter.attempt, waiter.ttl, waiter['until'], waiter.node, waiter.caller, waiter.since }))
  if waiter.attempt ~= '' then
    redis.call('HSET', WAITERS, attempt_field(waiter.owner, waiter.attempt), waiter.ticket)
  end
end

local function find_waiter(ticket)
  local packed = redis.call('HGET', WAITERS, ticket)
  if not packed then
    return nil
  end
  local it = cmsgpack.unpack(packed)
  return {
    owner = it[1], attempt = it[2], ttl = it[3], ['until'] = it[4], node = it[5], caller = it[6], since = it[7],
    ticket = ticket,
  }
end

local function remove_waiter(ticket)
  redis.call('ZREM', QUEUE, ticket)
  local waiter = find_waiter(ticket)
  if not waiter then
    return nil
  end
  redis.call('HDEL', WAITERS, ticket)
  if waiter.attempt ~= '' then
    redis.call('HDEL', WAITERS, attempt_field(waiter.owner, waiter.attempt))
  end
  return waiter
end

local function node_is_alive(node)
  return node == NODE or tonumber(redis.call('ZSCORE', NODES, node) or 0) > now
end

-- The caller's node has waiters in this partition, and lives. Those that have long been silent are forgotten, and that
-- first: see save.
local function show_life()
  redis.call('ZREMRANGEBYSCORE', NODES, '-inf', int(now - FORGOTTEN_AFTER))
  redis.call('ZADD', NODES, int(now + NODE_TTL), NODE)
end

-- Those of the caller's node are told in the answer, the others through their node's channel.
local function tell(waiter, kind)
  local news = { waiter.ticket, kind, unpack(kind == 'granted' and lease(holder) or {}) }
  if waiter.node == NODE then
    table.insert(woken, news)
  else
    redis.call('PUBLISH', CHANNEL .. waiter.node, cjson.encode({ NAME, unpack(news) }))
  end
end

local function hand_over()
  while not holder do
    local ticket = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    if not ticket then
      return
    end
    local waiter = remove_waiter(ticket)
    if not waiter or not node_is_alive(waiter.node) then
      -- Passed by. Should that node live after all, it finds this waiter missing and puts it back in its place.
    elseif waiter['until'] <= now then
      tell(waiter, 'timed_out')
    else
      local fence = mint()
      if fence then
        grant(waiter, fence)
        -- Nobody runs under this lease before its node has said that it knows of it. So a node that has just died
        -- costs a moment, and not the whole ttl.
        if waiter.node ~= NODE or MUST_CONFIRM then
          holder.confirm = math.min(now + CONFIRM_WITHIN, holder.expires)
        end
        tell(waiter, 'granted')
      else
        tell(waiter, 'exhausted')
      end
    end
  end
end

local function expire()
  if not holder then
    return
  end
  if holder.expires <= now then
    expired = lease(holder)
  elseif not (holder.confirm and holder.confirm <= now) then
    return
  end
  holder = nil
  changed = true
end

local function is_mine(owner, fence)
  return holder.owner == owner and (fence == '' or holder.fence == tonumber(fence))
end

-- Why there is no lease of this owner to act on; nothing when there is one.
local function not_held(owner, fence)
  if holder and holder.owner == owner then
    return not is_mine(owner, fence) and 'owned_by_another'
  end
  for place = #releases, 1, -1 do
    local release = releases[place]
    local is_meant = fence == '' and release[5] or release[2] == tonumber(fence)
    if release[1] == owner and is_meant then
      return release[4] and 'taken_away' or 'already_released'
    end
  end
  return holder and 'owned_by_another' or 'not_found'
end

local function step(command)
  load()
  expire()
  local outcome = command()
  hand_over()
  save()
  return { int(now), outcome, expired, woken }
end
