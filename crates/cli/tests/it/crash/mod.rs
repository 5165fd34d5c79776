//! The real server with a store that has to keep its word: killed at random moments, started twice, out of room.
//!
//! `FORRST_CRASHES` says how often it is killed, and `FORRST_SEED`, which a run prints, what is done meanwhile.

mod connection;
mod crashes;
mod disk_full;
mod history;
mod lease;
mod load;
mod operation;
mod second_server;
mod server;
mod waiting;
