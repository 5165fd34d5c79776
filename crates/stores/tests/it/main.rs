//! Every store, alone and under the lock service.
#![cfg(not(shuttle))]

mod calls;
mod embedded;
mod memory;
mod nodes;
mod postgres;
mod postgres_faults;
mod postgres_nodes;
mod random_tasks;
mod redis;
mod redis_commands;
mod redis_faults;
mod redis_nodes;
mod service;
mod service_faults;
mod two_nodes;
