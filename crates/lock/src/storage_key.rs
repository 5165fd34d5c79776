//! The key of a lock in a store that limits the length of its keys: the name itself, or a hash if it is too long.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::LockName;

/// The key of a lock in a store that limits the length of its keys.
///
/// A name that fits is used unchanged, after the store's prefix. A longer one becomes the prefix, `sha256:` and the first 16
/// bytes of its SHA-256 in base64url. Every name starts with `lock:`, so the two forms never collide, nor do they with the
/// store's own keys if those start with something else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StorageKey(String);

impl StorageKey {
    const HASHED: &'static str = "sha256:";
    const HASH_CHARACTERS: usize = 22;

    /// The longest prefix that leaves room for a hash in `max_bytes`.
    pub const fn max_prefix(max_bytes: usize) -> usize {
        max_bytes.saturating_sub(Self::HASHED.len() + Self::HASH_CHARACTERS)
    }

    /// The key for `name` in a store whose keys have at most `max_bytes`.
    ///
    /// The prefix is configuration, checked at start against [`StorageKey::max_prefix`].
    pub fn new(prefix: &str, name: &LockName, max_bytes: usize) -> Self {
        debug_assert!(prefix.len() <= Self::max_prefix(max_bytes));
        if prefix.len() + name.as_str().len() <= max_bytes {
            return Self(format!("{prefix}{name}"));
        }
        let hash = URL_SAFE_NO_PAD.encode(&Sha256::digest(name.as_str())[..16]);
        Self(format!("{prefix}{}{hash}", Self::HASHED))
    }

    /// The key itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::LockKey;

    fn name(key: &str) -> LockName {
        LockName::global(&LockKey::parse(key).unwrap())
    }

    #[test]
    fn a_name_that_fits_is_not_hashed() {
        assert_eq!(
            StorageKey::new("app:", &name("a"), 36).as_str(),
            "app:lock:a"
        );
        let fits = name(&"k".repeat(27));
        assert_eq!(
            StorageKey::new("app:", &fits, 36).as_str(),
            format!("app:{fits}")
        );
    }

    #[test]
    fn a_longer_name_is_hashed_and_fits() {
        let key = StorageKey::new("app:", &name(&"k".repeat(28)), 36);
        assert!(key.as_str().starts_with("app:sha256:"), "{key:?}");
        assert!(key.as_str().len() <= 36);
        assert_eq!(key, StorageKey::new("app:", &name(&"k".repeat(28)), 36));
        // Fixed, so that a new version of the server finds the locks of the old one.
        assert_eq!(key.as_str(), "app:sha256:CV7hi_MGcL85PZi6COt3SA");
    }

    #[test]
    fn no_two_names_share_a_key() {
        let keys: HashSet<String> = (1..=512)
            .flat_map(|length| {
                ["x", "y", "sha256:"].map(|part| part.repeat(length)[..length].to_owned())
            })
            .collect();
        let stored: HashSet<StorageKey> = keys
            .iter()
            .map(|key| StorageKey::new("p:", &name(key), 64))
            .collect();
        assert_eq!(stored.len(), keys.len());
    }

    #[test]
    fn a_callers_key_cannot_pretend_to_be_a_hash() {
        let hashed = StorageKey::new("", &name(&"k".repeat(512)), 64);
        // A name always starts with `lock:`, and a hashed key never does.
        let forged = StorageKey::new("", &name(hashed.as_str()), 64);
        assert_ne!(hashed, forged);
    }
}
