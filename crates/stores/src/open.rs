//! Opens the store that a URL names, and waits for it if it is not up yet.

mod check;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{LockStore, ReleaseMemory};

pub use self::check::{CheckError, Checked, check, migrate};

/// How long a call to a store takes at most, unless another time is set.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The options of a store besides its URL.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How long a call to the store takes at most. Then it fails, and the error says whether it may have run.
    pub store_timeout: Duration,
    /// How long [`open`] waits for a store that is not up yet, instead of failing at once. Only Postgres and Redis are waited for: the
    /// other stores are part of this process. Zero by default.
    pub store_wait: Duration,
    /// How long a release is remembered, in every kind of store.
    pub release_memory: ReleaseMemory,
    /// Which crashes the embedded store survives.
    #[cfg(feature = "embedded")]
    pub durability: crate::Durability,
    /// The options of a Postgres store.
    #[cfg(feature = "postgres")]
    pub postgres: crate::PostgresOptions,
    /// The options of a Redis store.
    #[cfg(feature = "redis")]
    pub redis: crate::RedisOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            store_timeout: STORE_TIMEOUT,
            store_wait: Duration::ZERO,
            release_memory: ReleaseMemory::default(),
            #[cfg(feature = "embedded")]
            durability: crate::Durability::default(),
            #[cfg(feature = "postgres")]
            postgres: crate::PostgresOptions::default(),
            #[cfg(feature = "redis")]
            redis: crate::RedisOptions::default(),
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no store of this kind.
    #[error(
        "there is no store `{0}`: the stores are `embedded:FOLDER`, `memory:`, `postgres://HOST/DATABASE` and `redis://HOST:PORT`"
    )]
    Unknown(String),
    /// The URL of an embedded store names no folder.
    #[error("`embedded:` needs a folder, as in `embedded:./forrst-data`")]
    NoFolder,
    /// The embedded store cannot be opened.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Embedded(#[from] crate::EmbeddedError),
    /// The Postgres cannot be used.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] crate::PostgresError),
    /// The Redis cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] crate::RedisError),
    /// The store was not up in time.
    #[error("gave up after {after:?}: {error}")]
    GaveUp {
        /// [`OpenOptions::store_wait`].
        after: Duration,
        /// Why the last attempt failed.
        error: Box<OpenError>,
    },
}

impl OpenError {
    /// Whether the store may just be starting, so that [`OpenOptions::store_wait`] helps.
    pub fn is_worth_waiting(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(error) => error.is_temporary(),
            #[cfg(feature = "redis")]
            Self::Redis(error) => error.is_temporary(),
            _ => false,
        }
    }
}

/// Opens the store that a URL names: `embedded:FOLDER`, `memory:`, `postgres://HOST/DATABASE`, or
/// `redis://HOST:PORT`, with other schemes for TLS (`rediss`),
/// clusters (`redis-cluster`) and sentinels (`redis-sentinel`).
///
/// With [`OpenOptions::store_wait`], connecting to a server that is not up yet is retried, at first after about 100 ms and later every
/// second, and the error is logged. Drop the future to stop waiting.
///
/// # Errors
///
/// When there is no such store, when it cannot be opened, or when it was not up in time.
pub async fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn LockStore>, OpenError> {
    match url.split_once(':') {
        #[cfg(feature = "memory")]
        Some(("memory", "")) => Ok(Arc::new(crate::MemoryStore::remembering(
            options.release_memory,
        ))),
        #[cfg(feature = "embedded")]
        Some(("embedded", "")) => Err(OpenError::NoFolder),
        #[cfg(feature = "embedded")]
        Some(("embedded", folder)) => {
            let embedded = crate::EmbeddedOptions {
                durability: options.durability,
                release_memory: options.release_memory,
                timeout: options.store_timeout,
            };
            Ok(Arc::new(crate::EmbeddedStore::open(folder, &embedded)?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            let postgres = postgres_options(options);
            let open = async || Ok(crate::PostgresStore::open(url, &postgres).await?);
            let store = waiting::until_open(url, options.store_wait, open).await?;
            Ok(Arc::new(store))
        }
        #[cfg(feature = "redis")]
        Some((scheme, _)) if scheme.starts_with("redis") || scheme.starts_with("valkey") => {
            let redis = crate::RedisOptions {
                release_memory: options.release_memory,
                timeout: options.store_timeout,
                ..options.redis.clone()
            };
            let open = async || Ok(crate::RedisStore::open(url, &redis).await?);
            let store = waiting::until_open(url, options.store_wait, open).await?;
            Ok(Arc::new(store))
        }
        _ => Err(OpenError::Unknown(url.to_owned())),
    }
}

#[cfg(feature = "postgres")]
fn postgres_options(options: &OpenOptions) -> crate::PostgresOptions {
    crate::PostgresOptions {
        release_memory: options.release_memory,
        timeout: options.store_timeout,
        ..options.postgres.clone()
    }
}

/// The URL of a store without its passwords, which are before the `@` or in the query.
pub fn url_without_secrets(url: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let address = match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://…@{address}"),
        _ => address.to_owned(),
    };
    let shown = query
        .split('&')
        .filter(|part| !part.is_empty() && !part.to_ascii_lowercase().contains("password"));
    let shown: Vec<&str> = shown.collect();
    if shown.is_empty() {
        address
    } else {
        format!("{address}?{}", shown.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_url_has_no_secrets() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
            ("redis://user:pa@ss@host:1", "redis://…@host:1"),
            ("rediss://:secret@host", "rediss://…@host"),
            (
                "redis-sentinel://u:p@a:1?sentinelServiceName=m&sentinelPassword=x&node=b:2",
                "redis-sentinel://…@a:1?sentinelServiceName=m&node=b:2",
            ),
            ("not a url", "not a url"),
        ] {
            assert_eq!(url_without_secrets(url), shown);
        }
    }
}
