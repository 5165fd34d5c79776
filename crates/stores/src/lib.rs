//! Where locks are kept: one module and one cargo feature for each store.
//!
//! Every store fulfils the contract of [`forrst_lock::LockStore`] and passes its suite.

mod clock;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "memory")]
mod memory;
mod open;
#[cfg(feature = "redis")]
mod redis;
mod sync;
mod table;

#[cfg(feature = "embedded")]
pub use embedded::{Durability, EmbeddedError, EmbeddedStore};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
pub use open::{OpenError, OpenOptions, open, url_without_secrets};
#[cfg(feature = "redis")]
pub use redis::{RedisError, RedisOptions, RedisStore};
