//! Several nodes on one Redis: what they notice of each other when messages, servers, clocks and nodes fail.

mod clocks;
mod dead_nodes;
mod fixture;
mod idle_cost;
mod late_requests;
mod loss_notices;
mod lost_messages;
mod outages;
mod random_faults;
mod rollbacks;
mod watches;
