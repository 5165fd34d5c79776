//! A store by its URL.

use std::sync::Arc;

use forrst_lock::LockStore;

/// What a store can be told besides its URL.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// What the embedded store survives.
    #[cfg(feature = "embedded")]
    pub durability: crate::Durability,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no store of this kind.
    #[error("there is no store `{0}`: the stores are `embedded:FOLDER` and `memory:`")]
    Unknown(String),
    /// An embedded store needs a place.
    #[error("`embedded:` needs a folder, as in `embedded:./forrst-data`")]
    NoFolder,
    /// The embedded store cannot be opened.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Embedded(#[from] crate::EmbeddedError),
}

/// Opens the store that a URL names: `embedded:FOLDER` or `memory:`.
///
/// # Errors
///
/// When there is no such store, or when it cannot be opened.
pub fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn LockStore>, OpenError> {
    match url.split_once(':') {
        #[cfg(feature = "memory")]
        Some(("memory", "")) => Ok(Arc::new(crate::MemoryStore::new())),
        #[cfg(feature = "embedded")]
        Some(("embedded", "")) => Err(OpenError::NoFolder),
        #[cfg(feature = "embedded")]
        Some(("embedded", folder)) => {
            let store = crate::EmbeddedStore::open(folder, options.durability)?;
            Ok(Arc::new(store))
        }
        _ => Err(OpenError::Unknown(url.to_owned())),
    }
}
