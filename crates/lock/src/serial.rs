//! Serialisation of commands, outcomes and transitions, for stores and nodes that pass them on.
//!
//! Deserialised values are validated like any other input, so an invalid name cannot enter here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::{Kind, Locks, Share};
use crate::{Attempt, Caller, Fence, LockName, NodeId, Note, Owner, Ticket, Timestamp, Ttl};

macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                Self::parse(&text).map_err(D::Error::custom)
            }
        }
    )*};
}

as_text!(Attempt, Caller, Note, Owner);

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::restore(&text).map_err(D::Error::custom)
    }
}

impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(&Cow::<str>::deserialize(deserializer)?))
    }
}

/// As 32 hexadecimal digits, because JSON numbers are too small.
impl Serialize for Ticket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Ticket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16);
        number.map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.number())
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Self::new(number).ok_or_else(|| D::Error::custom(format_args!("{number} is not a fence")))
    }
}

/// In milliseconds.
impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.as_millis())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from_millis)
    }
}

/// In milliseconds.
impl Serialize for Ttl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        millis::serialize(&self.as_duration(), serializer)
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(millis::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A duration as whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// The name of a kind, or its limit.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenShare {
    Limit(u32),
    Named(Named),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Exclusive,
    Shared,
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = match self.kind() {
            Kind::Exclusive => WrittenShare::Named(Named::Exclusive),
            Kind::Shared => WrittenShare::Named(Named::Shared),
            Kind::Limit(limit) => WrittenShare::Limit(limit),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match WrittenShare::deserialize(deserializer)? {
            WrittenShare::Named(Named::Exclusive) => Ok(Self::EXCLUSIVE),
            WrittenShare::Named(Named::Shared) => Ok(Self::SHARED),
            WrittenShare::Limit(limit) => Self::limit(limit).ok_or_else(|| {
                let max = Self::MAX_LIMIT;
                D::Error::custom(format_args!("the limit {limit} is not from 1 to {max}"))
            }),
        }
    }
}

/// Each key with its share.
impl Serialize for Locks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let locks = self.as_slice().iter();
        serializer.collect_map(locks.map(|(name, share)| (name, share)))
    }
}

impl<'de> Deserialize<'de> for Locks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let locks = BTreeMap::<LockName, Share>::deserialize(deserializer)?;
        Self::new(locks.into_iter().collect()).map_err(D::Error::custom)
    }
}
