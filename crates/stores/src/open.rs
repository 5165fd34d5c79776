//! A store by its URL.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{LockStore, ReleaseMemory};

/// How long a call to a store takes at most, unless another time is set.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The options of a store besides its URL.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How long a call to the store takes at most: then it fails, and the error says whether something may have been done all
    /// the same.
    pub store_timeout: Duration,
    /// How long a release is remembered, in every kind of store.
    pub release_memory: ReleaseMemory,
    /// What the embedded store survives.
    #[cfg(feature = "embedded")]
    pub durability: crate::Durability,
    /// How to use a Redis.
    #[cfg(feature = "redis")]
    pub redis: crate::RedisOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            store_timeout: STORE_TIMEOUT,
            release_memory: ReleaseMemory::default(),
            #[cfg(feature = "embedded")]
            durability: crate::Durability::default(),
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
        "there is no store `{0}`: the stores are `embedded:FOLDER`, `memory:` and `redis://HOST:PORT`"
    )]
    Unknown(String),
    /// An embedded store needs a place.
    #[error("`embedded:` needs a folder, as in `embedded:./forrst-data`")]
    NoFolder,
    /// The embedded store cannot be opened.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Embedded(#[from] crate::EmbeddedError),
    /// The Redis cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] crate::RedisError),
}

/// Opens the store that a URL names: `embedded:FOLDER`, `memory:`, or `redis://HOST:PORT` and its relatives for TLS
/// (`rediss`), clusters (`redis-cluster`) and sentinels (`redis-sentinel`).
///
/// # Errors
///
/// When there is no such store, or when it cannot be opened.
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
        #[cfg(feature = "redis")]
        Some((scheme, _)) if scheme.starts_with("redis") || scheme.starts_with("valkey") => {
            let redis = crate::RedisOptions {
                release_memory: options.release_memory,
                timeout: options.store_timeout,
                ..options.redis.clone()
            };
            Ok(Arc::new(crate::RedisStore::open(url, &redis).await?))
        }
        _ => Err(OpenError::Unknown(url.to_owned())),
    }
}

/// The URL of a store as it may be shown: passwords stand before the `@`, or in the query.
pub fn url_without_secrets(url: &str) -> String {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let place = match (place.split_once("://"), place.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://…@{place}"),
        _ => place.to_owned(),
    };
    let shown = query
        .split('&')
        .filter(|part| !part.is_empty() && !part.to_ascii_lowercase().contains("password"));
    let shown: Vec<&str> = shown.collect();
    if shown.is_empty() {
        place
    } else {
        format!("{place}?{}", shown.join("&"))
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
