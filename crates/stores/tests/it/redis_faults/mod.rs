//! Faults of Redis and of the connections to it, which may cost time, but never a lock.

mod batches;
mod cluster;
mod fences;
pub(crate) mod fixture;
mod full;
mod full_queues;
mod functions;
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
