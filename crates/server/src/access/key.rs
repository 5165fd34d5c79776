//! API keys, and their hashes. The server keeps only hashes, and compares them in constant time.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// An API key in plain text: shown once to its caller, and never stored.
pub struct ApiKey(String);

impl ApiKey {
    /// Lets a scanner find keys that were committed or logged by mistake.
    pub(super) const PREFIX: &str = "forrst_";

    /// A fresh key of 256 random bits.
    ///
    /// # Errors
    ///
    /// If the system has no source of randomness.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self(format!("{}{}", Self::PREFIX, hex(&bytes))))
    }

    /// The text that the caller sends.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the server keeps.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// The SHA-256 of a key. A key has 256 random bits, so no slow hash is needed against guessing.
#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }
}

/// Takes the same time wherever the hashes differ.
impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

impl FromStr for KeyHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "must be `sha256:` and 64 hexadecimal digits, as `forrst key new` prints it";
        let digits = text.strip_prefix("sha256:").ok_or(EXPECTED)?;
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(EXPECTED);
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| EXPECTED)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| EXPECTED)?;
        }
        Ok(Self(hash))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_back_as_it_is_shown() {
        let key = ApiKey::random().unwrap();
        let hash: KeyHash = key.hash().to_string().parse().unwrap();
        assert_eq!(hash, key.hash());
        assert_ne!(hash, ApiKey::random().unwrap().hash());
        assert_eq!(key.reveal().len(), "forrst_".len() + 64);
    }

    #[test]
    fn an_invalid_hash_is_refused() {
        let too_long = format!("sha256:{}", "a".repeat(65));
        let not_ascii = format!("sha256:{}", "é".repeat(32));
        for text in ["", "sha256:", "sha256:xyz", "md5:00", &too_long, &not_ascii] {
            assert!(text.parse::<KeyHash>().is_err(), "{text}");
        }
    }

    #[test]
    fn neither_a_key_nor_its_hash_is_shown_by_accident() {
        let key = ApiKey::random().unwrap();
        let shown = format!("{key:?} {:?}", key.hash());
        assert_eq!(shown, "ApiKey(…) KeyHash(…)");
    }
}
