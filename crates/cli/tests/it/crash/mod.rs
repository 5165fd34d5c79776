//! The durability of the real server with its embedded store: killed at random moments, started twice, out of disk space.
//!
//! `FORRST_CRASHES` sets how often it is killed, and `FORRST_SEED`, which a run prints, the random load.

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
