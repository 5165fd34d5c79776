-- One step on one lock: forrst_lock::model in Lua, for exclusive locks on single keys.
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
-- What the step has done to leases, in this order, and what the caller's waiters are told.
local transitions, woken = {}, {}
local changed = false

-- Lua would write large numbers as 1.79e+12.
local function int(number)
  return string.format('%.0f', number)
end

local function load()
  local it = redis.call('HMGET', LOCK, 'owner', 'fence', 'acquired', 'expires', 'attempt', 'calls', 'confirm',
    'releases', 'caller', 'note')
  if it[1] and it[1] ~= '' then
    holder = {
      owner = it[1], fence = tonumber(it[2]), acquired = tonumber(it[3]), expires = tonumber(it[4]),
      attempt = it[5], calls = it[6], confirm = tonumber(it[7]), caller = it[9], note = it[10],
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

-- When something has to be done about a lease.
local function due(of)
  return math.min(of.confirm or of.expires, of.expires)
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
      'expires', int(holder.expires), 'attempt', holder.attempt, 'calls', holder.calls,
      'confirm', holder.confirm and int(holder.confirm) or '', 'caller', holder.caller,
      'note', holder.note, 'releases', packed)
    redis.call('PEXPIREAT', LOCK, int(holder.expires + FORGOTTEN_AFTER))
    redis.call('ZADD', NAMES, 0, NAME)
    redis.call('ZADD', ENDS, int(due(holder)), NAME)
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
  return { of.owner, of.caller, of.note, int(of.fence), int(of.acquired), int(of.expires) }
end

-- The node that runs the step reports it, and no other does. `time` is when something would have had to be done about the
-- lease; of a grant, by when it has to be confirmed.
local function report(kind, of, time, waited_since)
  table.insert(transitions, {
    kind, time and int(time) or '', waited_since and int(waited_since) or '', unpack(lease(of)),
  })
end

-- Ends the lease, and remembers nothing of it.
local function finish(cause)
  local ended = holder
  report(cause, ended, due(ended))
  holder = nil
  changed = true
  return ended
end

-- Whether this call was given the lease, and can roll it back. `calls` has the tickets of all of them, with commas; it is empty
-- when they are too many to be told apart.
local function is_held_by_call(ticket)
  return holder and string.find(holder.calls, ticket, 1, true)
end

local function add_call(ticket)
  if holder.calls ~= '' and not is_held_by_call(ticket) then
    local is_full = #holder.calls >= MAX_CALLS * (#ticket + 1) - 1
    holder.calls = is_full and '' or holder.calls .. ',' .. ticket
    changed = true
  end
end

-- Whether there are others that may have told the owner of the lease.
local function remove_call(ticket)
  local left = {}
  for call in string.gmatch(holder.calls, '%x+') do
    if call ~= ticket then
      table.insert(left, call)
    end
  end
  holder.calls = table.concat(left, ',')
  changed = true
  return #left > 0
end

-- The node of the waiter that was granted this lease knows of it.
local function confirmed()
  if holder.confirm then
    report('confirmed', holder, holder.confirm)
    holder.confirm = nil
    changed = true
  end
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

local function grant(to, fence, waited_since, confirm)
  -- An owner whose new lease runs out must learn that, and not that an older one was released.
  for _, release in ipairs(releases) do
    release[5] = release[5] and release[1] ~= to.owner
  end
  holder = {
    owner = to.owner, caller = to.caller, note = to.note, fence = fence, acquired = now, expires = now + to.ttl,
    attempt = to.attempt, calls = to.ticket, confirm = confirm,
  }
  report('granted', holder, confirm, waited_since)
  changed = true
end

local function end_lease(forced)
  local ended = finish(forced and 'forced' or 'released')
  if #releases == REMEMBERED_RELEASES then
    table.remove(releases, 1)
  end
  table.insert(releases, { ended.owner, ended.fence, now + RELEASE_MEMORY, forced, true })
  return ended
end

-- The field in WAITERS that finds a waiting attempt. Tickets are fields there, too; they have no colon.
local function attempt_field(owner, attempt)
  return #owner .. ':' .. owner .. attempt
end

local function add_waiter(waiter, seq)
  redis.call('ZADD', QUEUE, int(seq), waiter.ticket)
  redis.call('HSET', WAITERS, waiter.ticket,
    cmsgpack.pack({ waiter.owner, waiter.attempt, waiter.ttl, waiter['until'], waiter.node, waiter.caller, waiter.since,
      waiter.note }))
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
    note = it[8], ticket = ticket,
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

-- A waiter whose time is over leaves the queue, and so does one whose node has gone: should that node live after all, it finds
-- this waiter missing and puts it back in its place. The waiter if it stays.
local function prune(ticket)
  local waiter = find_waiter(ticket)
  local is_there = waiter and node_is_alive(waiter.node)
  if is_there and waiter['until'] > now then
    return waiter
  end
  remove_waiter(ticket)
  if is_there then
    tell(waiter, 'timed_out')
  end
end

-- Whether so many wait, not counting those of the first that have gone.
local function is_full(max_queue)
  if redis.call('ZCARD', QUEUE) < max_queue then
    return false
  end
  for _, ticket in ipairs(redis.call('ZRANGE', QUEUE, 0, PRUNED_AT_ONCE - 1)) do
    prune(ticket)
  end
  return redis.call('ZCARD', QUEUE) >= max_queue
end

-- Those at the head of the queue whose time is over leave it, and the next one gets the lock if it is free.
local function hand_over()
  while true do
    local ticket = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    if not ticket then
      return
    end
    local waiter = prune(ticket)
    if waiter and holder then
      return
    end
    if waiter then
      remove_waiter(ticket)
      local fence = mint()
      if fence then
        -- Nobody runs under this lease before its node has said that it knows of it. So a node that has just died
        -- costs a moment, and not the whole ttl.
        local must_confirm = waiter.node ~= NODE or MUST_CONFIRM
        grant(waiter, fence, waiter.since, must_confirm and now + CONFIRM_WITHIN or nil)
        tell(waiter, 'granted')
      else
        tell(waiter, 'exhausted')
      end
    end
  end
end

local function expire()
  if holder and holder.expires <= now then
    finish('expired')
  elseif holder and due(holder) <= now then
    finish('unconfirmed')
  end
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

-- A command acts on a lease that was there before the step, so what is free is handed over after it; but before a newcomer is
-- considered.
local function step(command, hands_over_first)
  load()
  expire()
  if hands_over_first then
    hand_over()
  end
  local outcome = command()
  if not hands_over_first then
    hand_over()
  end
  save()
  return { int(now), outcome, transitions, woken }
end
