//! Redis as it is installed here, or Valkey: one server, a cluster, a primary with replicas and sentinels.

mod certificates;
mod cluster;
mod port;
mod replicas;
mod resp;
mod server;

use std::ffi::OsString;

pub use certificates::Certificates;
pub use cluster::RedisCluster;
pub use replicas::RedisReplicas;
pub use server::{RedisOptions, RedisServer};

/// The program that is tested with: `redis-server`, unless `FORRST_TEST_REDIS` names another.
pub fn redis_program() -> OsString {
    std::env::var_os("FORRST_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}
