//! The id of a request, and what all names on the wire have in common: they are checked when they are parsed, are at most 256
//! bytes, and are cheap to clone.

use smol_str::SmolStr;

/// Why a text is not a [`RequestId`], [`FunctionName`](crate::FunctionName) or [`Urn`](crate::Urn).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The text is empty.
    #[error("{what} must not be empty")]
    Empty {
        /// What kind of name was expected, with its article.
        what: &'static str,
    },
    /// The text has more bytes than are allowed.
    #[error("{what} must be at most {limit} bytes long, and this one has {actual}")]
    TooLong {
        /// What kind of name was expected, with its article.
        what: &'static str,
        /// The most bytes allowed.
        limit: usize,
        /// The bytes of the text.
        actual: usize,
    },
    /// The text does not have the form of such a name.
    #[error("{what} must be {form}")]
    Malformed {
        /// What kind of name was expected, with its article.
        what: &'static str,
        /// The form it must have, in words.
        form: &'static str,
    },
}

/// The bounds that every name has, whatever its form.
pub(crate) fn check_length(
    text: &str,
    what: &'static str,
    limit: usize,
) -> Result<(), InvalidName> {
    if text.is_empty() {
        Err(InvalidName::Empty { what })
    } else if text.len() > limit {
        Err(InvalidName::TooLong {
            what,
            limit,
            actual: text.len(),
        })
    } else {
        Ok(())
    }
}

/// Gives a newtype over `SmolStr` with a `check(&str) -> Result<(), InvalidName>` everything that a name needs.
macro_rules! name {
    ($name:ident) => {
        impl $name {
            /// Parses a name, or says why the text is not one.
            pub fn parse(text: &str) -> Result<Self, $crate::InvalidName> {
                Self::check(text)?;
                Ok(Self(text.into()))
            }

            /// The text, as it is on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl ::std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::InvalidName;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::check(&text)?;
                Ok(Self(text.into()))
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                Self::try_from(text).map_err(::serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use name;

/// The client's name for a request, which its answer repeats: 1 to 256 bytes of any text.
///
/// It may hold control characters, so it must be escaped before it goes into a header or a log line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(SmolStr);

name!(RequestId);

impl RequestId {
    const MAX_BYTES: usize = 256;

    fn check(text: &str) -> Result<(), InvalidName> {
        check_length(text, "a request id", Self::MAX_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_has_1_to_256_bytes() {
        assert!(RequestId::parse("").is_err());
        assert!(RequestId::parse("r").is_ok());
        assert!(RequestId::parse(&"r".repeat(256)).is_ok());
        assert!(RequestId::parse(&"r".repeat(257)).is_err());
        assert!(RequestId::parse(&"é".repeat(128)).is_ok());
        let error = RequestId::parse(&"é".repeat(129)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a request id must be at most 256 bytes long, and this one has 258"
        );
    }

    #[test]
    fn names_are_plain_strings_in_json_and_are_checked_when_read() {
        let id: RequestId = serde_json::from_str(r#""req_1""#).unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""req_1""#);
        assert!(serde_json::from_str::<RequestId>(r#""""#).is_err());
        assert!(serde_json::from_str::<RequestId>("7").is_err());
    }
}
