-- The functions that nodes call.

-- Writes what a command has changed.
local function write_all()
  for _, key in ipairs(dirty) do
    write(key)
  end
  for _, key in ipairs(dirty) do
    if key.changed then
      mark_stored(key)
    end
    key.head, key.is_dirty = nil, nil
  end
  for _, entry in ipairs(tombstones) do
    call('ZADD', TOMBSTONES, int(entry[1]), entry[2])
  end
end

local function run_one(command, numbers)
  local command_keys
  if type(numbers) == 'table' then
    command_keys = {}
    for i, number in ipairs(numbers) do
      command_keys[i] = load_key(KEYS[first_lock + 2 * number])
    end
  else
    local key = load_key(KEYS[first_lock + 2 * numbers])
    local fast_path = FAST_PATHS[command[1]]
    local answer = fast_path and fast_path(command, key)
    if answer then
      return answer
    end
    command_keys = { key }
  end
  claims, unsettled, dirty, tombstones = {}, {}, {}, {}
  transitions, woken, has_outcome_transition = nil, nil, false
  local answer = COMMANDS[command[1]](command, command_keys)
  if #unsettled > 0 then
    settle_others()
  end
  write_all()
  -- If the only transition is that of the outcome, a flag stands for the list.
  answer[2] = transitions or has_outcome_transition
  answer[3] = woken or false
  return answer
end

-- A command that fails has changed nothing in Redis, but possibly the copies of the keys, so these are dropped.
local function try_one(command, numbers, messages)
  notifications = nil
  local is_done, answer = pcall(run_one, command, numbers)
  if not is_done then
    local error = answer
    answer = needed and { 'need', false, false, needed } or { 'failed', false, false, tostring(error) }
    keys, fetched, needed = {}, {}, nil
    return answer
  end
  if notifications then
    for _, message in ipairs(notifications) do
      local other = message[1]
      if not messages[other] then
        messages[other] = {}
        messages[#messages + 1] = other
      end
      table.insert(messages[other], message[2])
    end
  end
  return answer
end

-- Whether a command is about one of these keys. `false` stands for all keys.
local function concerns(ids, numbers)
  if not ids then
    return true
  elseif not next(ids) then
    return false
  elseif type(numbers) ~= 'table' then
    return ids[KEYS[first_lock + 2 * numbers]] or false
  end
  for _, number in ipairs(numbers) do
    if ids[KEYS[first_lock + 2 * number]] then
      return true
    end
  end
  return false
end

-- A command has to be sent again, and so do the commands behind it on its keys.
local function send_again(ids, numbers, others)
  for _, number in ipairs(type(numbers) == 'table' and numbers or { numbers }) do
    ids[KEYS[first_lock + 2 * number]] = true
  end
  for _, id in ipairs(others) do
    ids[id] = true
  end
end

-- ARGV[1]: { node, channel, release memory, must confirm, floor of fences, number of the database,
--   number of expiry indexes, the expiry index of each lock, for each command: not after, the lock or locks it names,
--   number of the call, whether the one before it was not answered when it was sent }
-- Returns { now, instance, whether this node was considered dead, locks that have to be settled further,
--   a reply for each command: { code, transitions, woken, … } }
local function run(key_names, arguments)
  begin_call(key_names)
  META, NODES, TOMBSTONES, COUNTERS = key_names[1], key_names[2], key_names[3], key_names[4]
  local header = { unpack_one(arguments[1]) }
  node, channel, release_memory, must_confirm = header[1], header[2], header[3], header[4]
  open_group(header[6] .. META, header[5])
  budget, unfinished, has_joined = MAX_GRANTS, {}, false
  first_lock, lock_number, expiry_index_of = 3 + header[7], {}, header[8]
  local ids = {}
  for number = 1, #expiry_index_of do
    local id = key_names[first_lock + 2 * number]
    ids[number] = id
    lock_number[id] = number
  end
  fetched = ids[1] and call('MGET', unpack(ids)) or {}
  local messages, answers, commands = {}, {}, header[9]
  -- The keys of commands that have to be sent again. A call that was sent before the previous one was answered starts with the
  -- keys of that one; if that one has not run, all commands have to be sent again.
  local again = {}
  if header[11] then
    local before = group_calls[node]
    again = before and before[1] == header[10] - 1 and before[2]
  end
  group_calls[node] = { header[10], again }
  for i = 2, #arguments do
    local command, numbers = { unpack_one(arguments[i]) }, commands[2 * i - 2]
    local answer
    if concerns(again, numbers) then
      answer = { 'behind', false, false }
      if again then
        send_again(again, numbers, {})
      end
    elseif commands[2 * i - 3] < now then
      answer = { 'late', false, false }
      send_again(again, numbers, {})
    elseif command[1] == HEARTBEAT then
      answer = { 'heartbeat', false, false, heartbeat() }
    else
      answer = try_one(command, numbers, messages)
      if answer[1] == 'need' then
        send_again(again, numbers, answer[4])
      end
    end
    answers[i - 1] = answer
  end
  local was_dead = has_joined and not is_alive()
  if was_dead then
    mark_alive()
  end
  for _, other in ipairs(messages) do
    local number = call('HINCRBY', COUNTERS, other, 1)
    call('PUBLISH', channel .. other, pack({ number, META, messages[other] }))
  end
  close_group()
  local unfinished_ids = {}
  for id in pairs(unfinished) do
    unfinished_ids[#unfinished_ids + 1] = id
  end
  return pack({ now, instance, was_dead, unfinished_ids, answers })
end

redis.register_function({ function_name = PREFIX .. '_run', callback = run })
-- Runs on a server that is full, for batches without acquires.
redis.register_function({ function_name = PREFIX .. '_run_full', callback = run, flags = { 'allow-oom' } })
redis.register_function({ function_name = PREFIX .. '_read', callback = read, flags = { 'no-writes' } })
redis.register_function({ function_name = PREFIX .. '_due', callback = due_locks, flags = { 'no-writes' } })
redis.register_function({ function_name = PREFIX .. '_counts', callback = counts, flags = { 'no-writes' } })
redis.register_function({ function_name = PREFIX .. '_touch', callback = touch_replicas, flags = { 'allow-oom' } })
