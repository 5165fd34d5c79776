//! Semantic versions, and which versions of the protocol are supported.

use std::fmt;
use std::str::FromStr;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ErrorCode, ErrorObject, Pointer};

/// The `protocol.name` of every message.
pub const PROTOCOL_NAME: &str = "forrst";

/// The version of the protocol that every message written here carries.
pub static PROTOCOL_VERSION: Version = Version::new(0, 1, 0);

pub(crate) const PROTOCOL_VERSION_TEXT: &str = "0.1.0";

/// A strict semantic version, of a function or of the protocol: `2.0.0`, `1.0.0-beta.2`; at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(semver::Version);

/// Why a text is not a [`Version`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidVersion {
    /// It is not a semantic version.
    #[error("a version must be semantic like `1.0.0`: {0}")]
    NotSemantic(#[from] semver::Error),
    /// It has more bytes than are allowed.
    #[error("a version must be at most {limit} bytes long, and this one has {actual}")]
    TooLong {
        /// The most bytes allowed.
        limit: usize,
        /// The bytes of the text.
        actual: usize,
    },
}

impl Version {
    const MAX_BYTES: usize = 255;

    /// The release with these numbers.
    pub const fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self(semver::Version::new(major, minor, patch))
    }

    /// Parses a version, or says why the text is not one.
    pub fn parse(text: &str) -> Result<Self, InvalidVersion> {
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidVersion::TooLong {
                limit: Self::MAX_BYTES,
                actual: text.len(),
            });
        }
        Ok(Self(semver::Version::parse(text)?))
    }

    /// The first number, which changes with every incompatible change.
    pub fn major(&self) -> u64 {
        self.0.major
    }

    /// The tag of a pre-release: `beta.2` of `1.0.0-beta.2`. Empty for a release.
    pub fn pre_release(&self) -> &str {
        self.0.pre.as_str()
    }

    /// Whether this is not a pre-release. A call without a version gets the highest stable one.
    pub fn is_stable(&self) -> bool {
        self.0.pre.is_empty()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// A version of the protocol that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Unsupported protocol version: {requested}")]
pub struct UnsupportedVersion {
    /// The version in the request.
    pub requested: Version,
}

/// The version to answer in. Any version of a supported major is accepted.
pub fn negotiate(requested: &Version) -> Result<&'static Version, UnsupportedVersion> {
    if requested.major() == PROTOCOL_VERSION.major() {
        Ok(&PROTOCOL_VERSION)
    } else {
        Err(UnsupportedVersion {
            requested: requested.clone(),
        })
    }
}

impl From<UnsupportedVersion> for ErrorObject {
    fn from(unsupported: UnsupportedVersion) -> Self {
        Self::new(ErrorCode::InvalidProtocolVersion, unsupported.to_string())
            .at(Pointer::root().key("protocol").key("version"))
            .with_detail("requested", unsupported.requested.to_string())
            .with_detail("supported", vec![PROTOCOL_VERSION.to_string()])
    }
}

/// The `protocol` member of a message.
pub(crate) struct Protocol<'a>(pub(crate) &'a Version);

impl Serialize for Protocol<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut protocol = serializer.serialize_struct("Protocol", 2)?;
        protocol.serialize_field("name", PROTOCOL_NAME)?;
        if *self.0 == PROTOCOL_VERSION {
            // Nearly every message says this, so it is not formatted anew.
            protocol.serialize_field("version", PROTOCOL_VERSION_TEXT)?;
        } else {
            protocol.serialize_field("version", self.0)?;
        }
        protocol.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_protocol_version_matches_its_number() {
        assert_eq!(PROTOCOL_VERSION.to_string(), PROTOCOL_VERSION_TEXT);
    }

    #[test]
    fn only_strict_semantic_versions_are_versions() {
        for good in ["0.0.0", "1.0.0", "1.2.3-beta.1", "1.2.3+build.5"] {
            assert_eq!(Version::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "1",
            "1.0",
            "v1.0.0",
            "01.0.0",
            "1.0.0 ",
            "1.x.0",
            "99999999999999999999.0.0",
        ] {
            assert!(Version::parse(bad).is_err(), "{bad}");
        }
        assert!(Version::parse(&format!("1.0.0-{}", "a".repeat(249))).is_ok());
        assert!(Version::parse(&format!("1.0.0-{}", "a".repeat(250))).is_err());
    }

    #[test]
    fn pre_releases_are_not_stable_and_sort_before_their_release() {
        let beta = Version::parse("2.0.0-beta.1").unwrap();
        assert!(!beta.is_stable());
        assert!(Version::new(0, 1, 0).is_stable());
        assert!(Version::parse("1.0.0+build").unwrap().is_stable());
        assert!(beta < Version::new(2, 0, 0));
        assert!(Version::new(1, 9, 0) < Version::new(1, 10, 0));
    }

    #[test]
    fn any_version_of_the_supported_major_is_accepted() {
        for requested in ["0.0.1", "0.1.0", "0.99.3-beta"] {
            assert_eq!(
                negotiate(&Version::parse(requested).unwrap()).unwrap(),
                &PROTOCOL_VERSION
            );
        }
    }

    #[test]
    fn an_unsupported_major_names_the_requested_and_the_supported_versions() {
        let error = ErrorObject::from(negotiate(&Version::new(99, 0, 0)).unwrap_err());
        assert_eq!(
            serde_json::to_value(error).unwrap(),
            serde_json::json!({
                "code": "INVALID_PROTOCOL_VERSION",
                "message": "Unsupported protocol version: 99.0.0",
                "source": {"pointer": "/protocol/version"},
                "details": {"requested": "99.0.0", "supported": ["0.1.0"]},
            })
        );
    }
}
