-- The leases of a key, which are in its state or, if there are many, in its sorted set; and its remembered releases.

-- When a lease ends if nothing happens: at its expiry, or earlier if it has to be confirmed.
local function due(lease)
  local confirm, expires = lease[CONFIRM], lease[EXPIRES]
  return confirm ~= 0 and confirm < expires and confirm or expires
end

local function lease_entries(record)
  local lease = record.lease
  local fence = format('%015d', lease[FENCE])
  local entries = {
    'f' .. fence .. pack(lease),
    format('d%016d%s', due(lease), fence),
    format('o%03d%s%s', #lease[OWNER], lease[OWNER], fence),
  }
  if lease[ATTEMPT] ~= '' then
    entries[#entries + 1] = pair_prefix('b', lease[OWNER], lease[ATTEMPT]) .. fence
  end
  for at = 1, #lease[CALLS], 16 do
    entries[#entries + 1] = 'h' .. sub(lease[CALLS], at, at + 15) .. fence
  end
  return entries
end

local function has_many_leases(key)
  return type(key.state[LEASES]) == 'number'
end

local function lease_count(key)
  local holders = key.state[LEASES]
  return type(holders) == 'number' and holders or #holders
end

-- The record of a lease in a sorted set.
local function record_of(key, fence)
  key.records = key.records or {}
  local record = key.records[fence]
  if record == nil then
    local text = find_by_prefix(key, format('f%015d', fence), function(rest)
      return rest
    end)
    record = text and { lease = parse_lease(text), is_stored = true, entries = lease_entries } or false
    key.records[fence] = record
  end
  return record and not record.is_removed and record or nil
end

local function add_record(key, lease)
  key.records = key.records or {}
  local record = { lease = lease, entries = lease_entries }
  key.records[lease[FENCE]] = record
  touch(key, record)
end

-- The lease with this fence.
local function lease_with_fence(key, fence)
  if has_many_leases(key) then
    local record = record_of(key, fence)
    return record and record.lease
  end
  for _, lease in ipairs(key.state[LEASES]) do
    if lease[FENCE] == fence then
      return lease
    end
  end
end

-- Has to be called before a lease is changed.
local function touch_lease(key, lease)
  mark_dirty(key)
  if has_many_leases(key) then
    touch(key, record_of(key, lease[FENCE]))
  end
end

local function insert(key, lease)
  local state = key.state
  local holders = state[LEASES]
  mark_dirty(key)
  if type(holders) == 'number' then
    state[LEASES] = holders + 1
    add_record(key, lease)
  elseif #holders == MAX_INLINE_LEASES then
    state[LEASES] = MAX_INLINE_LEASES + 1
    for _, other in ipairs(holders) do
      add_record(key, other)
    end
    add_record(key, lease)
  else
    holders[#holders + 1] = lease
  end
  local locks = lease[LOCKS]
  if locks then
    state[SETS] = state[SETS] + 1
    if locks[1] ~= key.id then
      state[FOREIGN] = state[FOREIGN] + 1
    end
  end
end

local function remove(key, lease)
  local state = key.state
  mark_dirty(key)
  if has_many_leases(key) then
    local record = record_of(key, lease[FENCE])
    touch(key, record)
    record.is_removed = true
    key.unsaved[record] = nil
    local left = state[LEASES] - 1
    state[LEASES] = left == 0 and {} or left
  else
    local holders = state[LEASES]
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
    if locks[1] ~= key.id then
      state[FOREIGN] = state[FOREIGN] - 1
    end
  end
end

-- The lease in a sorted set that is due first, among those that this step has not changed. Entries before it are not read twice.
local function first_stored_due(key)
  while true do
    local text = key.dues and key.dues[key.due_at]
    if text then
      local fence = tonumber(sub(text, 18))
      local found = record_of(key, fence)
      if found and not (key.changed or {})[found] then
        return found.lease
      end
      key.due_at = key.due_at + 1
    elseif key.dues and #key.dues < key.due_size then
      return nil
    else
      local from = key.dues and '(' .. key.dues[#key.dues] or '[d'
      key.due_size = key.dues and MAX_INLINE_LEASES or 1
      key.dues = call('ZRANGE', sorted_set(key), from, '(e', 'BYLEX', 'LIMIT', 0, key.due_size)
      key.due_at = 1
    end
  end
end

-- The lease that is due first.
local function first_due(key)
  local first
  if has_many_leases(key) then
    for record in pairs(key.unsaved or {}) do
      if not first or due(record.lease) < due(first) then
        first = record.lease
      end
    end
    local mark_stored = first_stored_due(key)
    return mark_stored and (not first or due(mark_stored) < due(first)) and mark_stored or first
  end
  for _, lease in ipairs(key.state[LEASES]) do
    if not first or due(lease) < due(first) then
      first = lease
    end
  end
  return first
end

-- The first lease that is accepted; in a sorted set, among those with an entry that consists of the prefix and a fence.
local function find_lease(key, prefix, accept)
  if not has_many_leases(key) then
    for _, lease in ipairs(key.state[LEASES]) do
      if accept(lease) then
        return lease
      end
    end
    return nil
  end
  for record in pairs(key.unsaved or {}) do
    if accept(record.lease) then
      return record.lease
    end
  end
  return find_by_prefix(key, prefix, function(fence)
    local record = record_of(key, tonumber(fence))
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

local function lease_of_call(key, ticket)
  return find_lease(key, 'h' .. ticket, function(lease)
    return has_call(lease, ticket)
  end)
end

local function lease_of_attempt(key, owner, attempt)
  return find_lease(key, pair_prefix('b', owner, attempt), function(lease)
    return lease[ATTEMPT] == attempt and lease[OWNER] == owner
  end)
end

-- Up to two leases of an owner.
local function leases_of_owner(key, owner)
  if not has_many_leases(key) then
    local one
    for _, lease in ipairs(key.state[LEASES]) do
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
  local one = find_lease(key, prefix, function(lease)
    return lease[OWNER] == owner
  end)
  local other = one and find_lease(key, prefix, function(lease)
    return lease[OWNER] == owner and lease[FENCE] ~= one[FENCE]
  end)
  return one, other
end

-- The fences of all leases, the smallest first.
local function all_fences(key)
  local fences = {}
  if has_many_leases(key) then
    for _, text in ipairs(call('ZRANGE', sorted_set(key), '[f', '(g', 'BYLEX')) do
      local fence = tonumber(sub(text, 2, 16))
      if record_of(key, fence) then
        fences[#fences + 1] = fence
      end
    end
  else
    for _, lease in ipairs(key.state[LEASES]) do
      fences[#fences + 1] = lease[FENCE]
    end
  end
  return fences
end

-- The remembered releases of a key are one string, so that they cost little while they are not read: their number, then for each
-- the time until which it is remembered, its length, and its fields.
local function pack_release(release)
  local fields = pack(release)
  return format('%016d%04d', release[R_UNTIL], #fields) .. fields
end

-- The first result of `apply` that is not false, for the releases of an owner, the newest first.
local function find_release(key, owner, apply)
  local all = key.state[RELEASES]
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

-- Notes that the releases of an owner are older than its new lease: when that has expired, `release` must not answer that an
-- earlier lease was released.
local function outdate_releases(key, owner)
  find_release(key, owner, function(release, at)
    release[R_NEWEST] = false
    -- Its length does not change.
    local all, text = key.state[RELEASES], pack_release(release)
    key.state[RELEASES] = sub(all, 1, at - 1) .. text .. sub(all, at + #text)
  end)
end

-- Whether a key is that of a call (LockName::call), and not of a lock.
local function is_call(key)
  local at = find(key.id, '}:call:', 1, true)
  -- The first brace ends the hash tag; the name of a lock may have others.
  return at ~= nil and at == find(key.id, '}:', 1, true)
end

local function add_release(key, release)
  local state = key.state
  local all = state[RELEASES]
  local count, kept = tonumber(sub(all, 1, 2)) or 0, sub(all, 3)
  while count == REMEMBERED_RELEASES or count > 0 and tonumber(sub(kept, 1, 16)) <= now do
    count, kept = count - 1, sub(kept, 21 + tonumber(sub(kept, 17, 20)))
  end
  state[RELEASES] = format('%02d', count + 1) .. kept .. pack_release(release)
  state[RELEASES_UNTIL] = math.max(state[RELEASES_UNTIL], release[R_UNTIL])
end
