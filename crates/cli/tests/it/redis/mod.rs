//! Several real servers on one real Redis: their guarantees hold while Redis, the link to it, or one of them fails.

mod changed_link;
mod dead_nodes;
mod failing_over;
mod lost_memory;
mod lost_redis;
pub(crate) mod nodes;
mod order;
pub(crate) mod protected;
mod set_up;
mod sharing;
mod silent_channel;
mod store_wait;
