//! The secret of a store, with which keys and owners are hashed before they are shown.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::digest::Key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How much of a hash is shown: 96 bits, 16 characters.
const SHOWN: usize = 12;

/// The secret of a store. The log, events and answers show keys and owners as hashes with it.
///
/// Without a secret, a hash could be reversed by hashing guesses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new random secret.
    ///
    /// # Panics
    ///
    /// If the operating system has no random numbers.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        Self(bytes)
    }

    /// A secret that was stored.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes to store. They must not be shown.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 96 bits of the HMAC-SHA256 of the text, in base64url. Texts of different kinds, such as `key` and `owner`, have
    /// different hashes.
    pub fn hash(&self, kind: &str, text: &str) -> String {
        // HMAC pads a shorter key with zeros.
        let mut key = Key::<Hmac<Sha256>>::default();
        key[..self.0.len()].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&key);
        mac.update(kind.as_bytes());
        mac.update(&[0]);
        mac.update(text.as_bytes());
        URL_SAFE_NO_PAD.encode(&mac.finalize().into_bytes()[..SHOWN])
    }
}

/// Does not show the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_secret_kind_and_text() {
        let secret = Secret::random();
        let hash = secret.hash("key", "k");
        assert_eq!(hash, secret.hash("key", "k"));
        assert_eq!(hash.len(), 16);
        for other in [
            Secret::random().hash("key", "k"),
            secret.hash("owner", "k"),
            secret.hash("key", "l"),
        ] {
            assert_ne!(hash, other);
        }
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    /// Nodes of different versions that share a store must show the same hashes.
    #[test]
    fn the_construction_does_not_change() {
        let hash = Secret::from_bytes([7; 32]).hash("key", "lock:k");
        assert_eq!(hash, "WE5ZBbt8dHT99UPW");
    }
}
