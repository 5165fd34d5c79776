//! The lock stores: one module and one cargo feature for each.
//!
//! Every store fulfils the contract of [`forrst_lock::LockStore`] and passes its suite.

#[cfg(feature = "memory")]
mod clock;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(any(feature = "embedded", feature = "memory"))]
mod fences;
#[cfg(feature = "embedded")]
mod journal;
#[cfg(feature = "memory")]
mod memory;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod reply;
#[cfg(any(feature = "embedded", feature = "memory", feature = "postgres"))]
mod report;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod server_clock;
#[cfg(feature = "memory")]
mod sync;
#[cfg(any(feature = "embedded", feature = "memory"))]
mod table;

#[cfg(feature = "embedded")]
pub use embedded::{Durability, EmbeddedError, EmbeddedOptions, EmbeddedStore};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
pub use open::{
    CheckError, Checked, OpenError, OpenOptions, STORE_TIMEOUT, check, migrate, open,
    url_without_secrets,
};
#[cfg(feature = "postgres")]
pub use postgres::{ConnectError, PostgresError, PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
pub use redis::{RedisError, RedisOptions, RedisStore};
