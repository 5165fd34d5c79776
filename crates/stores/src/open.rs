//! A store by its URL.

use std::sync::Arc;

use forrst_lock::LockStore;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no store of this kind.
    #[error("there is no store `{0}`: the stores are `memory:`")]
    Unknown(String),
}

/// Opens the store that a URL names.
///
/// # Errors
///
/// When there is no such store.
pub fn open(url: &str) -> Result<Arc<dyn LockStore>, OpenError> {
    match url {
        #[cfg(feature = "memory")]
        "memory:" => Ok(Arc::new(crate::MemoryStore::new())),
        unknown => Err(OpenError::Unknown(unknown.to_owned())),
    }
}
