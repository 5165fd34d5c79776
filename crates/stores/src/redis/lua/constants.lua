-- Names for numbers. Lua allows 200 local variables and has to look each of them up, so `library.rs` substitutes these in the
-- source, as well as the names of limits.

-- A claim's share of a key: all of it, one of very many, or one of `n`.
EXCLUSIVE = 0
SHARED = -1

-- A lease ("holder" in the model).
FENCE = 1
ACQUIRED = 2
EXPIRES = 3
OWNER = 4
CALLER = 5
NOTE = 6
ATTEMPT = 7
-- The tickets of the calls that it was granted to, 16 bytes each; empty when they are too many.
CALLS = 8
-- When it ends unless its node has confirmed it; 0 if it need not be confirmed.
CONFIRM = 9
-- The names of the nodes of these calls, concatenated.
NODES_OF = 10
-- Its keys, each followed by its share; false if it has one key.
LOCKS = 11
-- Its share of that one key.
PART = 12

-- A claim that waits.
C_OWNER = 1
C_CALLER = 2
C_NOTE = 3
C_ATTEMPT = 4
C_TTL = 5
C_LOCKS = 6
C_SHARE = 7
C_SINCE = 8
-- Three fields each: ticket, node, until.
C_CALLS = 9
-- The node for which it is counted in WAITS.
C_NODE = 10

-- A remembered release.
R_OWNER = 1
R_FENCE = 2
R_UNTIL = 3
R_FORCED = 4
R_NEWEST = 5
R_ATTEMPT = 6

-- The state of a key.
-- Its largest fence.
LAST = 1
-- How its leases share it.
SHARE = 2
-- How many of its leases and claims are of several keys.
SETS = 3
-- How many claims of each node wait; false if there are none.
WAITS = 4
-- Until when GONE may contain a call for it, or an attempt.
GONE_UNTIL = 5
WITHDRAWN_UNTIL = 6
-- Its leases; their number if they are in its crowd.
HOLDERS = 7
RELEASES = 8
-- Its score in the expiry index; 0 if it is not there.
SCORE = 9
-- How many of its leases are counted at another key.
FOREIGN = 10
-- What it adds to the counts of leases and of reserved keys.
EXTRA = 11
RESERVED = 12
-- How many attempts were withdrawn lately; false if none was.
WITHDRAWN = 13
-- When its last claim arrived, in microseconds.
LAST_ARRIVAL = 14
RELEASES_UNTIL = 15