-- forrst_lock::model in Lua.
--
-- One FCALL runs a batch of commands of one node, in their order, each as one step of the model. A step works on copies of the
-- keys it concerns and writes them at its end, so a command that fails, or that needs a key which was not declared, has changed
-- nothing, and the others of its batch still run.
--
-- KEYS: the keys that the lane has once (META, NODES, GONE, NEWS), the expiry indexes of the partitions concerned, then two for each
-- lock: its state and its crowd.
-- ARGV: the header, then one packed command each.

-- Set for each call.
local now, now_micros, node, channel, memory, must_confirm
-- Not available yet while the library is loaded.
local call, pack, unpack_one, unpack_limit, find, format, sub
local KEYS, META, NODES, GONE, NEWS
-- The number of each lock by its state key, counted from 1; the index of the first one's keys, minus 2; the expiry index of each.
local lock_number, first_lock, ends_of

-- Set for each command.
local keys -- those that were read, by state key; kept for the next command unless this one fails
local fetched -- the packed states of the locks when the call began
local claims -- those that were read or created, by position
local unsettled -- other keys than the command's own at which something may be granted now
local dirty -- the keys that have to be written
local transitions, woken, published
local has_outcome_transition
local marks -- to be added to GONE: calls that were abandoned before they arrived, and withdrawn attempts
-- Set for each call: how many more grants it may make, the keys at which there are more, and whether a call has joined a queue.
local budget, more, has_joined

-- Lua would write large numbers as 1.79e+12, and `%.17g` is slow.
local function int(number)
  return format('%d', number)
end

-- Ends a command that needs a key which was not declared, with all keys that it is likely to need.
local needed
local function need(locks, first)
  needed = {}
  for i = first or 1, #locks, 2 do
    needed[#needed + 1] = locks[i]
  end
  error('need')
end

local function begin_call(key_names)
  call, find, format, sub = redis.call, string.find, string.format, string.sub
  pack, unpack_one, unpack_limit = cmsgpack.pack, cmsgpack.unpack, cmsgpack.unpack_limit
  local time = call('TIME')
  now_micros = time[1] * 1000000 + time[2]
  now = math.floor(now_micros / 1000)
  KEYS = key_names
  keys, claims, fetched = {}, {}, {}
end
