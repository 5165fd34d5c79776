//! What goes wrong around a Redis, and what that may cost: time, never a lock.

mod fences;
mod full;
pub(crate) mod ground;
mod keyspace;
mod lost_answers;
mod replicas;
mod resharding;
mod stalled;
mod strict;
mod waiters;
