//! Identities: the token of an owner, the attempt of a caller, the ticket of one call, and the id of a node.

use std::fmt;
use std::sync::Arc;

use crate::name::{InvalidText, check};

/// A text of 1 to 255 bytes without control characters.
macro_rules! text {
    ($(#[$documentation:meta])* $name:ident) => {
        $(#[$documentation])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest text, in bytes.
            pub const MAX_BYTES: usize = 255;

            /// Validates a text that a caller sent.
            pub fn parse(raw: &str) -> Result<Self, InvalidText> {
                check(raw, Self::MAX_BYTES)?;
                Ok(Self(raw.into()))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

text! {
    /// The token that proves a lease: 1 to 255 bytes, no control characters.
    Owner
}

text! {
    /// The idempotency key of a call for a lock, repeated when the answer was lost: 1 to 255 bytes.
    ///
    /// The same owner with the same attempt receives the same lease, not a second one.
    Attempt
}

text! {
    /// The authenticated caller that took a lock: the name of an API key or a certificate, 1 to 255 bytes.
    ///
    /// It grants no rights to the lease; the [`Owner`]'s token does.
    Caller
}

text! {
    /// The token by which a caller can cancel its call: 1 to 255 bytes, no control characters.
    CallToken
}

text! {
    /// What a lock is held for, for people: 1 to 255 bytes. It is not secret.
    Note
}

impl Owner {
    /// A fresh UUID v4, for a caller that chose no owner.
    pub fn random() -> Self {
        let mut buffer = uuid::Uuid::encode_buffer();
        let text: &str = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
        Self(text.into())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One of the processes that share a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// The id of this name, which must be unique among the processes that share the store.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifies one call among those of all processes that share a store.
///
/// A call is rolled back by its ticket, which does not affect repetitions of the same [`Attempt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u128);

impl Ticket {
    /// A ticket that no other call has.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().as_u128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_1_to_255_bytes_without_control_characters() {
        assert!(Owner::parse("x").is_ok());
        assert!(Owner::parse(&"x".repeat(255)).is_ok());
        assert!(Owner::parse(&"x".repeat(256)).is_err());
        assert_eq!(Owner::parse(""), Err(InvalidText::Empty));
        assert!(Owner::parse("a\tb").is_err());
        assert!(Attempt::parse(&"x".repeat(256)).is_err());
    }

    #[test]
    fn a_random_owner_is_a_version_4_uuid() {
        let owner = Owner::random();
        let uuid = uuid::Uuid::parse_str(owner.as_str()).unwrap();
        assert_eq!(uuid.get_version_num(), 4);
        assert_ne!(owner, Owner::random());
    }
}
