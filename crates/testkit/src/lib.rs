//! Test fixtures: processes that end with their test, `forrst serve`, a real Redis (one server, a cluster, or a primary with replicas), a real Postgres,
//! and a proxy between the two that can break connections; and [`history`], which checks whether what locks did is correct.
//!
//! Everything except [`asynchronous`] and [`history`] blocks, and panics where a test would. What was started is stopped when it is
//! dropped, also by a panic.

#![allow(
    clippy::missing_panics_doc,
    reason = "a fixture that cannot be set up fails the test"
)]

pub mod asynchronous;
mod certificates;
pub mod history;
mod http;
mod patience;
mod port;
mod postgres;
mod process;
mod proxy;
mod redis;
mod serve;
mod wire;

pub use certificates::Certificates;
pub use http::{post, request};
pub use patience::{PATIENCE, until, until_for};
pub use postgres::{PostgresOptions, PostgresServer, SharedPostgres};
pub use process::Process;
pub use proxy::{Proxy, Traffic, Way};
pub use redis::{
    RedisCluster, RedisOptions, RedisReplicas, RedisServer, SharedRedis, redis_program,
};
pub use serve::{Node, Running, Serve};
pub use wire::{Answer, Lock, Shown, list, moment};
