//! The real server with a store that has to keep its word: killed at random moments, started twice, out of room.

mod connection;
mod crashes;
mod disk_full;
mod history;
mod lease;
mod load;
mod second_server;
mod server;
mod waiting;
mod wire;
