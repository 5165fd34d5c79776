-- forrst_lock::model in Lua.
--
-- One FCALL runs a batch of commands of one node, in their order, each as one step of the model. A step works on copies of the
-- keys it concerns and writes them at its end, so a command that fails, or that needs a key which was not declared, has changed
-- nothing, and the others of its batch still run.
--
-- KEYS: the keys of the partition group (META, NODES, TOMBSTONES, COUNTERS), the expiry indexes of the partitions concerned, then
-- two for each lock: its state and its sorted set.
-- ARGV: the header, then one packed command each.

-- Set for each call.
local now, now_micros, node, channel, release_memory, must_confirm
-- Set by `begin_call`: they do not exist yet while the library is loaded.
local call, pack, unpack_one, unpack_limit, find, format, sub
local KEYS, META, NODES, TOMBSTONES, COUNTERS
-- The number of each lock by its state key, counted from 1; the index of the first one's keys, minus 2; the expiry index of each.
local lock_number, first_lock, expiry_index_of

-- Set for each command.
local keys -- those that were read, by state key; kept for the next command unless this one fails
local fetched -- the packed states of the locks when the call began
local claims -- those that were read or created, by position
local unsettled -- keys other than the command's own at which a claim may be grantable now
local dirty -- the keys that have to be written
local transitions, woken, notifications
local has_outcome_transition
local tombstones -- to be added to TOMBSTONES: calls that were abandoned before they arrived, and withdrawn attempts
-- Set for each call: how many more grants it may make, the keys that need more than that, and whether a call has joined a queue.
local budget, unfinished, has_joined

-- Lua would write large numbers as 1.79e+12, and `%.17g` is slow.
local function int(number)
  return format('%d', number)
end

-- Fails a command that needs an undeclared key, and records all keys that it is likely to need.
local needed
local function require_keys(locks, first)
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
