//! What tests stand on: processes that end with their test, `forrst serve`, a real Redis alone or in company, and a link
//! between the two that can be broken; and [`history`], which says whether what locks did on that ground can be true.
//!
//! Everything outside of [`asynchronous`] and [`history`] blocks, and all of it panics where a test would. What is started ends when it is dropped, also by a panic.

#![allow(
    clippy::missing_panics_doc,
    reason = "to panic is how a test's ground says that it is not as the test needs it"
)]

pub mod asynchronous;
pub mod history;
mod http;
mod patience;
mod process;
mod proxy;
mod redis;
mod serve;
mod wire;

pub use http::{post, request};
pub use patience::{PATIENCE, until, until_for};
pub use process::Process;
pub use proxy::{Proxy, Traffic, Way};
pub use redis::{
    Certificates, RedisCluster, RedisOptions, RedisReplicas, RedisServer, SharedRedis,
    redis_program,
};
pub use serve::{Node, Running, Serve};
pub use wire::{Answer, Lock, Shown, list, moment};
