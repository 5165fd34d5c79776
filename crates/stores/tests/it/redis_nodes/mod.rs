//! Several nodes on one Redis: what they learn of each other, whatever becomes of messages, servers, clocks and nodes.

mod clocks;
mod dead_nodes;
mod ground;
mod idle_cost;
mod late_requests;
mod loss_notices;
mod lost_messages;
mod outages;
mod random_faults;
mod rollbacks;
