-- The leases of a key, which are in its state or, if they are many, in its crowd; and its remembered releases.

-- When a lease expires, or has to be confirmed.
local function due(lease)
  local confirm, expires = lease[CONFIRM], lease[EXPIRES]
  return confirm ~= 0 and confirm < expires and confirm or expires
end

local function lease_texts(record)
  local lease = record.lease
  local fence = format('%015d', lease[FENCE])
  local texts = {
    'f' .. fence .. pack(lease),
    format('d%016d%s', due(lease), fence),
    format('o%03d%s%s', #lease[OWNER], lease[OWNER], fence),
  }
  if lease[ATTEMPT] ~= '' then
    texts[#texts + 1] = of_two('b', lease[OWNER], lease[ATTEMPT]) .. fence
  end
  for at = 1, #lease[CALLS], 16 do
    texts[#texts + 1] = 'h' .. sub(lease[CALLS], at, at + 15) .. fence
  end
  return texts
end

local function is_many(of)
  return type(of.state[HOLDERS]) == 'number'
end

local function count(of)
  local holders = of.state[HOLDERS]
  return type(holders) == 'number' and holders or #holders
end

-- The record of a lease in a crowd.
local function record_of(of, fence)
  of.records = of.records or {}
  local record = of.records[fence]
  if record == nil then
    local text = behind(of, format('f%015d', fence), function(rest)
      return rest
    end)
    record = text and { lease = lease_from(text), is_stored = true, texts = lease_texts } or false
    of.records[fence] = record
  end
  return record and not record.is_removed and record or nil
end

local function add_record(of, lease)
  of.records = of.records or {}
  local record = { lease = lease, texts = lease_texts }
  of.records[lease[FENCE]] = record
  touch(of, record)
end

-- The lease of this fence.
local function lease_of(of, fence)
  if is_many(of) then
    local record = record_of(of, fence)
    return record and record.lease
  end
  for _, lease in ipairs(of.state[HOLDERS]) do
    if lease[FENCE] == fence then
      return lease
    end
  end
end

-- Before a lease is changed.
local function touch_lease(of, lease)
  mark(of)
  if is_many(of) then
    touch(of, record_of(of, lease[FENCE]))
  end
end

local function insert(of, lease)
  local state = of.state
  local holders = state[HOLDERS]
  mark(of)
  if type(holders) == 'number' then
    state[HOLDERS] = holders + 1
    add_record(of, lease)
  elseif #holders == MANY then
    state[HOLDERS] = MANY + 1
    for _, other in ipairs(holders) do
      add_record(of, other)
    end
    add_record(of, lease)
  else
    holders[#holders + 1] = lease
  end
  local locks = lease[LOCKS]
  if locks then
    state[SETS] = state[SETS] + 1
    if locks[1] ~= of.id then
      state[FOREIGN] = state[FOREIGN] + 1
    end
  end
end

local function remove(of, lease)
  local state = of.state
  mark(of)
  if is_many(of) then
    local record = record_of(of, lease[FENCE])
    touch(of, record)
    record.is_removed = true
    of.unsaved[record] = nil
    local left = state[HOLDERS] - 1
    state[HOLDERS] = left == 0 and {} or left
  else
    local holders = state[HOLDERS]
    for i, other in ipairs(holders) do
      if other[FENCE] == lease[FENCE] then
        table.remove(holders, i)
        break
      end
    end
  end
  local locks = lease[LOCKS]
  if locks then
    state[SETS] = state[SETS] - 1
    if locks[1] ~= of.id then
      state[FOREIGN] = state[FOREIGN] - 1
    end
  end
end

-- The lease in a crowd that is due first, among those that this step has not changed. Entries in front of it are not read twice.
local function first_stored_due(of)
  while true do
    local text = of.dues and of.dues[of.due_at]
    if text then
      local fence = tonumber(sub(text, 18))
      local found = record_of(of, fence)
      if found and not (of.changed or {})[found] then
        return found.lease
      end
      of.due_at = of.due_at + 1
    elseif of.dues and #of.dues < of.due_size then
      return nil
    else
      local from = of.dues and '(' .. of.dues[#of.dues] or '[d'
      of.due_size = of.dues and MANY or 1
      of.dues = call('ZRANGE', crowd(of), from, '(e', 'BYLEX', 'LIMIT', 0, of.due_size)
      of.due_at = 1
    end
  end
end

-- The lease that is due first.
local function first_due(of)
  local first
  if is_many(of) then
    for record in pairs(of.unsaved or {}) do
      if not first or due(record.lease) < due(first) then
        first = record.lease
      end
    end
    local stored = first_stored_due(of)
    return stored and (not first or due(stored) < due(first)) and stored or first
  end
  for _, lease in ipairs(of.state[HOLDERS]) do
    if not first or due(lease) < due(first) then
      first = lease
    end
  end
  return first
end

-- The first lease that is accepted; in a crowd, among those of the entries that consist of the prefix and a fence.
local function find_lease(of, prefix, accept)
  if not is_many(of) then
    for _, lease in ipairs(of.state[HOLDERS]) do
      if accept(lease) then
        return lease
      end
    end
    return nil
  end
  for record in pairs(of.unsaved or {}) do
    if accept(record.lease) then
      return record.lease
    end
  end
  return behind(of, prefix, function(fence)
    local record = record_of(of, tonumber(fence))
    return record and accept(record.lease) and record.lease or nil
  end)
end

local function has_call(lease, ticket)
  local calls = lease[CALLS]
  for at = 1, #calls, 16 do
    if sub(calls, at, at + 15) == ticket then
      return true
    end
  end
  return false
end

local function held_by_call(of, ticket)
  return find_lease(of, 'h' .. ticket, function(lease)
    return has_call(lease, ticket)
  end)
end

local function held_by_attempt(of, owner, attempt)
  return find_lease(of, of_two('b', owner, attempt), function(lease)
    return lease[ATTEMPT] == attempt and lease[OWNER] == owner
  end)
end

-- Up to two leases of an owner.
local function held_by_owner(of, owner)
  if not is_many(of) then
    local one
    for _, lease in ipairs(of.state[HOLDERS]) do
      if lease[OWNER] == owner then
        if one then
          return one, lease
        end
        one = lease
      end
    end
    return one
  end
  local prefix = format('o%03d%s', #owner, owner)
  local one = find_lease(of, prefix, function(lease)
    return lease[OWNER] == owner
  end)
  local other = one and find_lease(of, prefix, function(lease)
    return lease[OWNER] == owner and lease[FENCE] ~= one[FENCE]
  end)
  return one, other
end

-- The fences of all leases, the smallest first.
local function all_fences(of)
  local fences = {}
  if is_many(of) then
    for _, text in ipairs(call('ZRANGE', crowd(of), '[f', '(g', 'BYLEX')) do
      local fence = tonumber(sub(text, 2, 16))
      if record_of(of, fence) then
        fences[#fences + 1] = fence
      end
    end
  else
    for _, lease in ipairs(of.state[HOLDERS]) do
      fences[#fences + 1] = lease[FENCE]
    end
  end
  return fences
end

-- The remembered releases of a key are one string, so that they cost little while they are not read: their number, then for each
-- until when it is remembered, its length, and its fields.
local function release_text(release)
  local fields = pack(release)
  return format('%016d%04d', release[R_UNTIL], #fields) .. fields
end

-- The first result of `apply`, for the releases of an owner, the newest first.
local function find_release(of, owner, apply)
  local all = of.state[RELEASES]
  if not find(all, owner, 1, true) then
    return nil
  end
  local own, at = {}, 3
  while at < #all do
    local length = tonumber(sub(all, at + 16, at + 19))
    local release = unpack_one(sub(all, at + 20, at + 19 + length))
    if release[R_OWNER] == owner and release[R_UNTIL] > now then
      own[#own + 1] = { release, at }
    end
    at = at + 20 + length
  end
  for i = #own, 1, -1 do
    local found = apply(own[i][1], own[i][2])
    if found then
      return found
    end
  end
end

-- An owner whose new lease has expired must not be answered that an older one was released.
local function begin_after_releases(of, owner)
  find_release(of, owner, function(release, at)
    release[R_NEWEST] = false
    -- Its length does not change.
    local all, text = of.state[RELEASES], release_text(release)
    of.state[RELEASES] = sub(all, 1, at - 1) .. text .. sub(all, at + #text)
  end)
end

local function add_release(of, release)
  local state = of.state
  local all = state[RELEASES]
  local count, kept = tonumber(sub(all, 1, 2)) or 0, sub(all, 3)
  while count == REMEMBERED_RELEASES or count > 0 and tonumber(sub(kept, 1, 16)) <= now do
    count, kept = count - 1, sub(kept, 21 + tonumber(sub(kept, 17, 20)))
  end
  state[RELEASES] = format('%02d', count + 1) .. kept .. release_text(release)
  state[RELEASES_UNTIL] = math.max(state[RELEASES_UNTIL], release[R_UNTIL])
end
