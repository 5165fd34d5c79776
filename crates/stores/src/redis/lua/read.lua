-- Read-only functions, and the one that `WAIT` for replicas needs.

local function is_waiting(claim)
  local calls = claim.fields[C_CALLS]
  for at = 1, #calls, 3 do
    if still_waits(calls[at + 1], calls[at + 2]) then
      return true
    end
  end
  return false
end

-- The largest fence of the live leases in a sorted set.
local function last_fence(key, most)
  local to = '(g'
  while true do
    local some = call('ZRANGE', sorted_set(key), to, '[f', 'BYLEX', 'REV', 'LIMIT', 0, most)
    for _, text in ipairs(some) do
      if parse_lease(sub(text, 17))[EXPIRES] > now then
        return tonumber(sub(text, 2, 16))
      end
    end
    if #some == 0 then
      return 0
    end
    to = '(' .. some[#some]
  end
end

-- { number of live leases, how they share the key, how many wait, the first leases, the largest fence if it is not among them }
local function inspect(key, most)
  local live, shown = 0, {}
  if has_many_leases(key) then
    live = call('ZLEXCOUNT', sorted_set(key), format('[d%016d', now + 1), '(e')
    local from = '[f'
    while #shown < most and #shown < live do
      local some = call('ZRANGE', sorted_set(key), from, '(g', 'BYLEX', 'LIMIT', 0, most)
      if #some == 0 then
        break
      end
      for _, text in ipairs(some) do
        if #shown < most and parse_lease(sub(text, 17))[EXPIRES] > now then
          shown[#shown + 1] = sub(text, 17)
        end
      end
      from = '(' .. some[#some]
    end
  else
    for _, lease in ipairs(key.state[LEASES]) do
      if lease[EXPIRES] > now then
        live = live + 1
        shown[live] = pack(lease)
      end
    end
  end
  local waiting = 0
  for other, some in pairs(key.state[WAITS] or {}) do
    waiting = waiting + (is_dead(other) and 0 or some)
  end
  local last = live > #shown and last_fence(key, most) or 0
  return { live, key.state[SHARE], waiting, shown, last }
end

-- For each claim { owner, caller, note, since, until }, in the order of the queue.
local function queue(key, most)
  local shown, from = {}, '[q'
  while key.state[WAITS] and #shown < most do
    local some = call('ZRANGE', sorted_set(key), from, '(r', 'BYLEX', 'LIMIT', 0, most)
    if #some == 0 then
      break
    end
    for _, text in ipairs(some) do
      local claim = parse_claim(key.id, text)
      if #shown < most and is_waiting(claim) then
        local fields, until_then = claim.fields, 0
        for at = 3, #fields[C_CALLS], 3 do
          until_then = math.max(until_then, fields[C_CALLS][at])
        end
        shown[#shown + 1] = { fields[C_OWNER], fields[C_CALLER], fields[C_NOTE], fields[C_SINCE], until_then }
      end
    end
    from = '(' .. some[#some]
  end
  return shown
end

-- KEYS: META, NODES, then two for each lock. ARGV: the node, `queue` or `inspect`, how many leases or claims.
local function read(key_names, arguments)
  begin_call(key_names)
  META, NODES = key_names[1], key_names[2]
  node = arguments[1]
  local packed = call('GET', META)
  meta = packed and unpack_one(packed) or { '', 0, 0, 0 }
  is_node_dead, grace_period = {}, nil
  first_lock, lock_number = 1, {}
  local answers, what, most = {}, arguments[2] == 'queue' and queue or inspect, tonumber(arguments[3])
  for number = 1, #key_names / 2 - 1 do
    local id = key_names[first_lock + 2 * number]
    lock_number[id] = number
    answers[number] = what(load_key(id), most)
  end
  return pack({ now, answers })
end

-- KEYS: expiry indexes. Up to ARGV[1] locks that are due, those of the first index first.
local function due_locks(key_names, arguments)
  begin_call(key_names)
  local found, most = {}, tonumber(arguments[1])
  for _, expiry_index in ipairs(key_names) do
    local left = most - #found
    if left <= 0 then
      break
    end
    -- An index that cannot be read must not keep the others from being swept.
    local due = redis.pcall('ZRANGE', expiry_index, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, left)
    for _, id in ipairs(due) do
      found[#found + 1] = id
    end
  end
  return found
end

-- KEYS: COUNTERS, then expiry indexes. Returns how many keys are held, by how many leases, and how many are reserved.
local function counts(key_names)
  begin_call(key_names)
  local extra = call('HMGET', key_names[1], 'leases', 'reserved', 'calls')
  local leases, reserved, calls = tonumber(extra[1] or 0), tonumber(extra[2] or 0), tonumber(extra[3] or 0)
  local known = 0
  for i = 2, #key_names do
    known = known + call('ZCARD', key_names[i])
  end
  local held = known - reserved - calls
  return { held, held + leases, reserved }
end

-- KEYS: META, a key to write. Returns the server's instance id, and gives a WAIT on the same connection something to wait for. Extensions
-- need it on a full server too.
local function touch_replicas(key_names)
  begin_call(key_names)
  call('SET', key_names[2], '', 'PX', 60000)
  local packed = call('GET', key_names[1])
  local name = packed and unpack_one(packed)[1] or ''
  find_process()
  return sub(name, 1, 12) == process and name or ''
end
