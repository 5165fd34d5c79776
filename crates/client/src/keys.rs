//! The keys that a lock is requested for, and the kind of lock on each.

use serde::Serialize;

/// One key of a lock on several, which may have a kind of its own.
///
/// ```
/// use forrst_client::{Key, Lock};
///
/// let lock = Lock::keys([Key::new("account:1"), Key::new("config").shared()]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    key: String,
    kind: RequestedKind,
}

/// The kind of lock that a request asks for: `mode` or `limit`, or neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RequestedKind {
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
}

impl RequestedKind {
    pub(crate) const EXCLUSIVE: Self = Self {
        mode: Some("exclusive"),
        limit: None,
    };
    pub(crate) const SHARED: Self = Self {
        mode: Some("shared"),
        limit: None,
    };

    pub(crate) const fn limit(limit: u32) -> Self {
        Self {
            mode: None,
            limit: Some(limit),
        }
    }

    fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl Key {
    /// A key that is locked as the whole lock is.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            kind: RequestedKind::default(),
        }
    }

    /// Held by this lease alone, whatever the kind of the other keys.
    #[must_use]
    pub fn exclusive(self) -> Self {
        let kind = RequestedKind::EXCLUSIVE;
        Self { kind, ..self }
    }

    /// Held together with other shared leases.
    #[must_use]
    pub fn shared(self) -> Self {
        let kind = RequestedKind::SHARED;
        Self { kind, ..self }
    }

    /// Held by at most `limit` leases at once.
    #[must_use]
    pub fn limit(self, limit: u32) -> Self {
        let kind = RequestedKind::limit(limit);
        Self { kind, ..self }
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

impl From<String> for Key {
    fn from(key: String) -> Self {
        Self::new(key)
    }
}

impl From<&String> for Key {
    fn from(key: &String) -> Self {
        Self::new(key)
    }
}

/// A string, or an object where the key has a kind of its own.
impl Serialize for Key {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            key: &'a str,
            #[serde(flatten)]
            kind: RequestedKind,
        }

        if self.kind.is_none() {
            return serializer.serialize_str(&self.key);
        }
        let (key, kind) = (self.key.as_str(), self.kind);
        Entry { key, kind }.serialize(serializer)
    }
}

/// `key` or `keys`, and `mode` or `limit`, as the options of a lock and the arguments of `acquire` have them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Keys {
    #[serde(flatten)]
    names: Names,
    #[serde(flatten)]
    pub(crate) kind: RequestedKind,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
enum Names {
    Key(String),
    Keys(Vec<Key>),
}

impl Keys {
    pub(crate) fn one(key: String) -> Self {
        Self {
            names: Names::Key(key),
            kind: RequestedKind::default(),
        }
    }

    pub(crate) fn several<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self {
            names: Names::Keys(keys.into_iter().map(Into::into).collect()),
            kind: RequestedKind::default(),
        }
    }

    /// The first key, which stands for all of them in requests about the lease.
    pub(crate) fn first(&self) -> &str {
        match &self.names {
            Names::Key(key) => key,
            Names::Keys(keys) => keys.first().map_or("", |key| &key.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn keys_are_serialised_as_in_the_contract() {
        let one = Keys {
            kind: RequestedKind::limit(3),
            ..Keys::one("k".to_owned())
        };
        assert_eq!(to_value(one).unwrap(), json!({"key": "k", "limit": 3}));
        let own = ["a".into(), Key::new("b").shared(), Key::new("c").limit(2)];
        let several = Keys {
            kind: RequestedKind::EXCLUSIVE,
            ..Keys::several(own)
        };
        let expected = json!({
            "keys": ["a", {"key": "b", "mode": "shared"}, {"key": "c", "limit": 2}],
            "mode": "exclusive",
        });
        assert_eq!(to_value(several).unwrap(), expected);
    }
}
