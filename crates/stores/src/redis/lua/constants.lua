-- Names for numbers. `library.rs` substitutes them in the source, together with the limits that it defines: Lua allows only 200
-- local variables, and looks each of them up at run time.

-- A claim's share of a key. A limit is stored as itself.
EXCLUSIVE = 0
SHARED = -1

-- The fields of a lease.
FENCE = 1
ACQUIRED = 2
EXPIRES = 3
OWNER = 4
CALLER = 5
NOTE = 6
ATTEMPT = 7
-- The tickets of the calls that it was granted to, 16 bytes each; empty if there are too many.
CALLS = 8
-- When it ends unless its node has confirmed it by then; 0 if no confirmation is needed.
CONFIRM = 9
-- The names of the nodes of these calls, concatenated.
LEASE_NODES = 10
-- Its keys, each followed by the share of it; false if it has one key.
LOCKS = 11
-- Its share of that one key. The last field: a lease has as many.
LEASE_SHARE = 12

-- The fields of a claim that waits.
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

-- The fields of a remembered release.
R_OWNER = 1
R_FENCE = 2
R_UNTIL = 3
R_FORCED = 4
R_NEWEST = 5
R_ATTEMPT = 6

-- The fields of a key's state.
-- Its largest fence.
LAST_FENCE = 1
-- How its leases share it.
SHARE = 2
-- How many of its leases and claims are of several keys.
SETS = 3
-- How many claims of each node wait; false if there are none.
WAITS = 4
-- Until when TOMBSTONES may contain an abandoned call for it, or a withdrawn attempt.
TOMBSTONES_UNTIL = 5
WITHDRAWN_UNTIL = 6
-- Its leases; their number if they are in its sorted set.
LEASES = 7
RELEASES = 8
-- Its score in the expiry index; 0 if it is not there.
SCORE = 9
-- How many of its leases are counted at another of their keys.
FOREIGN = 10
-- What it adds to the count of leases.
EXTRA = 11
-- The counter of keys that are in the expiry index and not held: `reserved`, or `calls` for a call under way; false for a lock.
APART = 12
-- How many attempts were withdrawn lately, see `withdrawn_lately`; false if none was.
WITHDRAWN = 13
-- When the latest claim arrived, in microseconds.
LAST_ARRIVAL = 14
-- The last field. `parse_state` relies on there being at most 15.
RELEASES_UNTIL = 15

-- The fields of META.
-- The group's name for its server.
M_INSTANCE = 1
-- An upper bound of the fences.
M_HIGH = 2
-- Until when no node is considered dead.
M_GRACE_UNTIL = 3
-- Until when deadlines may be by the clock of another server.
M_FOREIGN_CLOCK_UNTIL = 4

-- How a call has left its queue.
GRANTED = 1
TIMED_OUT = 2
WITHDRAWN_ATTEMPT = 3
EXHAUSTED = 4
-- The other notifications between nodes: about a lease that was granted through the recipient.
LEASE_ENDED = 5
LEASE_CHANGED = 6

-- The only command that is not about keys.
HEARTBEAT = 9
