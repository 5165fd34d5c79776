//! Every store, alone and under the lock service.
#![cfg(not(shuttle))]

mod embedded;
mod memory;
mod postgres;
mod redis;
mod redis_commands;
mod redis_faults;
mod redis_nodes;
mod service;
mod service_faults;
mod two_nodes;
