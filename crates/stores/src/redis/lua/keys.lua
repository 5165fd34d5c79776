-- The state of a key, and its sorted set: its queue, and its leases if there are more than the state has room for. It exists only
-- while it is not empty. All its scores are 0, so its entries are sorted as strings and serve as several indexes:
--   q position claim          the claims in their order       t ticket position       a owner attempt position
--   f fence lease             the leases                      d due fence             h ticket fence
--   b owner attempt fence     o owner fence

-- A short list unpacks faster as the values behind its first byte, into a table that is allocated with room for all of them.
local function parse_lease(text)
  return { select(2, unpack_limit(text, LEASE_SHARE, 1)) }
end

local function parse_state(text)
  local state = { select(2, unpack_limit(text, RELEASES_UNTIL, 1)) }
  local holders = state[LEASES]
  if type(holders) == 'table' then
    for i = 1, #holders do
      holders[i] = parse_lease(holders[i])
    end
  end
  return state
end

local function pack_state(state)
  local holders = state[LEASES]
  if type(holders) == 'number' then
    return pack(state)
  end
  local entries = {}
  for i = 1, #holders do
    entries[i] = pack(holders[i])
  end
  state[LEASES] = entries
  local text = pack(state)
  state[LEASES] = holders
  return text
end

local function load_key(id, others)
  local key = keys[id]
  if key then
    return key
  end
  local number = lock_number[id]
  if not number then
    require_keys(others or { id })
  end
  local packed = fetched[number]
  if packed == nil then
    packed = call('GET', id)
  end
  key = {
    id = id,
    number = number,
    is_new = not packed,
    state = packed and parse_state(packed) or { 0, 0, 0, false, 0, 0, {}, '', 0, 0, 0, false, false, 0, 0 },
  }
  keys[id] = key
  return key
end

local function mark_dirty(key)
  if not key.is_dirty then
    key.is_dirty = true
    dirty[#dirty + 1] = key
  end
end

local function sorted_set(key)
  return KEYS[first_lock + 2 * key.number + 1]
end

-- The first result of `accept` that is not nil, for the entries of a sorted set between `from` and `to`.
local function find_between(key, from, to, accept)
  local offset = 0
  while true do
    local some = call('ZRANGE', sorted_set(key), '[' .. from, '(' .. to, 'BYLEX', 'LIMIT', offset, offset == 0 and 1 or 16)
    for _, text in ipairs(some) do
      local found = accept(text)
      if found ~= nil then
        return found
      end
    end
    if #some == 0 then
      return nil
    end
    offset = offset + #some
  end
end

-- The same for the entries that begin with a prefix. `accept` gets what follows the prefix.
local function find_by_prefix(key, prefix, accept)
  return find_between(key, prefix, string.char(string.byte(prefix) + 1), function(text)
    if sub(text, 1, #prefix) ~= prefix then
      return false
    end
    return accept(sub(text, #prefix + 1))
  end) or nil
end

local function pair_prefix(letter, one, other)
  return format('%s%03d%s%03d%s', letter, #one, one, #other, other)
end

-- Has to be called before a record (a claim or a lease) of a sorted set is changed: at the end of the step its old entries are
-- removed and its new ones added.
local function touch(key, record)
  mark_dirty(key)
  key.changed = key.changed or {}
  if not key.changed[record] then
    key.changed[record] = true
    if record.lease then
      key.unsaved = key.unsaved or {}
      key.unsaved[record] = true
    end
    if record.is_stored and not record.before then
      record.before = record:entries()
    end
  end
end
