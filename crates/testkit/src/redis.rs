//! Runs the installed Redis, or Valkey: one server, a cluster, or a primary with replicas and sentinels.

mod clock;
mod cluster;

mod replicas;
mod resp;
mod server;
mod shared;

use std::ffi::OsString;
use std::process::Command;

pub use cluster::RedisCluster;
pub use replicas::RedisReplicas;
pub use server::{RedisOptions, RedisServer};
pub use shared::SharedRedis;

/// The program to test with: `redis-server`, unless `FORRST_TEST_REDIS` names another.
pub fn redis_program() -> OsString {
    std::env::var_os("FORRST_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

fn assert_installed() {
    let program = redis_program();
    let version = Command::new(&program).arg("--version").output();
    assert!(
        version.is_ok_and(|version| version.status.success()),
        "{} is not installed: run `./test`, or `apt-get install redis-server`",
        program.display()
    );
}
