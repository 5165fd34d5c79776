//! What goes wrong around a Redis, and what that may cost: time, never a lock.

mod batches;
mod cluster;
mod fences;
mod full;
mod full_queues;
mod functions;
pub(crate) mod ground;
mod keyspace;
mod late_commands;
mod lost_answers;
mod many_holders;
mod replaced_primaries;
mod replicas;
mod resharding;
mod stalled;
mod strict;
mod switch;
mod unknown_waiters;
mod waiters;
