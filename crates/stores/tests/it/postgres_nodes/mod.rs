//! Several nodes on one Postgres: what they notice of each other when messages, the server and nodes fail.

mod dead_nodes;
pub(crate) mod fixture;
mod lost_messages;
mod outages;
mod random_faults;
