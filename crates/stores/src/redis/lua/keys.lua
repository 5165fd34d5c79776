-- The state of a key, and its crowd: a sorted set that exists only if needed, with the queue, and the leases if they are many.
-- All scores are 0, so that its entries are sorted as strings and serve as several indexes:
--   q position claim          the claims in their order       t ticket position       a owner attempt position
--   f fence lease             the leases                      d due fence             h ticket fence
--   b owner attempt fence     o owner fence

-- A short list is unpacked faster as the values behind its first byte, into a table that is allocated for all of them.
local function lease_from(text)
  return { select(2, unpack_limit(text, PART, 1)) }
end

local function state_from(text)
  local state = { select(2, unpack_limit(text, RELEASES_UNTIL, 1)) }
  local holders = state[HOLDERS]
  if type(holders) == 'table' then
    for i = 1, #holders do
      holders[i] = lease_from(holders[i])
    end
  end
  return state
end

local function state_text(state)
  local holders = state[HOLDERS]
  if type(holders) == 'number' then
    return pack(state)
  end
  local texts = {}
  for i = 1, #holders do
    texts[i] = pack(holders[i])
  end
  state[HOLDERS] = texts
  local text = pack(state)
  state[HOLDERS] = holders
  return text
end

local function key(id, others)
  local it = keys[id]
  if it then
    return it
  end
  local number = lock_number[id]
  if not number then
    need(others or { id })
  end
  local packed = fetched[number]
  if packed == nil then
    packed = call('GET', id)
  end
  it = {
    id = id,
    number = number,
    is_new = not packed,
    state = packed and state_from(packed) or { 0, 0, 0, false, 0, 0, {}, '', 0, 0, 0, 0, false, 0, 0 },
  }
  keys[id] = it
  return it
end

local function mark(of)
  if not of.is_dirty then
    of.is_dirty = true
    dirty[#dirty + 1] = of
  end
end

local function crowd(of)
  return KEYS[first_lock + 2 * of.number + 1]
end

-- The first result of `accept` that is not nil, for the entries of a crowd between `from` and `to`.
local function seek(of, from, to, accept)
  local offset = 0
  while true do
    local some = call('ZRANGE', crowd(of), '[' .. from, '(' .. to, 'BYLEX', 'LIMIT', offset, offset == 0 and 1 or 16)
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

-- The same for the rest of the entries that begin with a prefix.
local function behind(of, prefix, accept)
  return seek(of, prefix, string.char(string.byte(prefix) + 1), function(text)
    if sub(text, 1, #prefix) ~= prefix then
      return false
    end
    return accept(sub(text, #prefix + 1))
  end) or nil
end

local function of_two(letter, one, other)
  return format('%s%03d%s%03d%s', letter, #one, one, #other, other)
end

-- Has to be called before a record (a claim or a lease) in a crowd is changed: at the end of the step its old entries are removed
-- and its new ones added.
local function touch(of, record)
  mark(of)
  of.changed = of.changed or {}
  if not of.changed[record] then
    of.changed[record] = true
    if record.lease then
      of.unsaved = of.unsaved or {}
      of.unsaved[record] = true
    end
    if record.is_stored and not record.before then
      record.before = record:texts()
    end
  end
end
