//! The options that name the keys of a lock and their kinds: `key` or `keys`, `mode`, `limit`.
//!
//! [`RequestedKeys`] are as the caller sent them, for the answer. [`NamedKeys`] add the full names, once the scope is known.

use forrst_lock::{LockKey, LockName, Locks, Share};
use forrst_protocol::{ErrorObject, Errors, FunctionName, ObjectWriter};
use serde_json::{Value, json};

use super::options::At;
use crate::access::Caller;
use crate::error::internal_error;
use crate::fields::{Entry, Fields, from_to, one_of, parsed};

/// The option `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

impl Mode {
    const WORDS: [(&'static str, Self); 2] =
        [("exclusive", Self::Exclusive), ("shared", Self::Shared)];

    fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

/// The kind of a lock, as the caller sent it.
#[derive(Debug, Clone, Copy)]
enum RequestedKind {
    Mode(Mode),
    Limit(u32),
}

impl RequestedKind {
    /// Reads `mode` or `limit`, which may both be missing.
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let mode = fields.optional("mode", one_of(&Mode::WORDS));
        let limit = fields.optional("limit", from_to(1, Share::MAX_LIMIT));
        match (mode, limit) {
            (Some(_), Some(_)) => {
                fields.refuse("limit", "cannot be combined with `mode`");
                None
            }
            (Some(mode), None) => Some(Self::Mode(mode)),
            (None, limit) => limit.map(Self::Limit),
        }
    }

    fn share(self) -> Option<Share> {
        match self {
            Self::Mode(Mode::Exclusive) => Some(Share::EXCLUSIVE),
            Self::Mode(Mode::Shared) => Some(Share::SHARED),
            Self::Limit(limit) => Share::limit(limit),
        }
    }
}

/// The keys that a caller requested, in its order.
#[derive(Debug)]
pub(crate) struct RequestedKeys {
    keys: Keys,
    /// The kind beside `key` or `keys`; entries of `keys` may have their own.
    kind: Option<RequestedKind>,
}

#[derive(Debug)]
enum Keys {
    One(LockKey),
    Several(Vec<(LockKey, Option<RequestedKind>)>),
}

impl RequestedKeys {
    const MIN: usize = 2;

    /// One key, exclusively.
    pub(crate) fn one(key: LockKey) -> Self {
        let keys = Keys::One(key);
        Self { keys, kind: None }
    }

    /// Reads `key` or `keys`, and `mode` or `limit`. Problems are noted in `fields`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let kind = RequestedKind::read(fields);
        if !fields.has("keys") {
            let instead = ", or `keys` for several at once";
            let key = fields.required_or("key", instead, parsed(LockKey::parse))?;
            let keys = Keys::One(key);
            return Some(Self { keys, kind });
        }
        if fields.optional("key", |_| Ok(())).is_some() {
            fields.refuse("keys", "cannot be combined with `key`");
        }
        let entries = fields.required_list("keys")?;
        if !(Self::MIN..=Locks::MAX).contains(&entries.len()) {
            let max = Locks::MAX;
            let why = format!(
                "must have {} to {max} entries, but has {}",
                Self::MIN,
                entries.len()
            );
            fields.refuse("keys", why);
        }
        let mut keys: Vec<(LockKey, Option<RequestedKind>)> = Vec::new();
        // Each is compared with all before it, so surplus entries are not read.
        for entry in entries.iter().take(Locks::MAX + 1) {
            let Some((key, kind)) = read_entry(fields, entry) else {
                continue;
            };
            if keys.iter().any(|(earlier, _)| *earlier == key) {
                fields.refuse_entry(entry, "names the same key as an earlier entry");
            }
            keys.push((key, kind));
        }
        let keys = Keys::Several(keys);
        Some(Self { keys, kind })
    }

    fn each(&self) -> impl Iterator<Item = (&LockKey, Option<RequestedKind>)> {
        let (one, several) = match &self.keys {
            Keys::One(key) => (Some((key, self.kind)), [].as_slice()),
            Keys::Several(keys) => (None, keys.as_slice()),
        };
        let several = several.iter().map(|(key, kind)| (key, kind.or(self.kind)));
        one.into_iter().chain(several)
    }

    fn is_set(&self) -> bool {
        matches!(self.keys, Keys::Several(_))
    }

    /// Adds the full names of the keys: in the scope of a function, or global ones.
    pub(crate) fn named(self, function: Option<&FunctionName>) -> Result<NamedKeys, Errors> {
        let locks = self.each().map(|(key, kind)| {
            let name = match function {
                Some(function) => LockName::scoped(function.as_str(), key).ok()?,
                None => LockName::global(key),
            };
            Some((
                name,
                kind.map_or(Some(Share::EXCLUSIVE), RequestedKind::share)?,
            ))
        });
        let named = if self.is_set() {
            let locks: Option<Vec<_>> = locks.collect();
            locks.and_then(|locks| {
                let names = locks.iter().map(|(name, _)| name.clone()).collect();
                Some((names, Locks::new(locks).ok()?))
            })
        } else {
            let mut locks = locks;
            let one = locks.next().flatten();
            one.map(|(name, share)| (Vec::new(), Locks::one(name, share)))
        };
        // All keys were checked, so this cannot fail.
        let (names, locks) = named.ok_or_else(internal_error)?;
        Ok(NamedKeys {
            requested: self,
            names,
            locks,
        })
    }
}

/// A key, or `{key, mode?, limit?}`.
fn read_entry<'a>(
    fields: &mut Fields<'a>,
    entry: &Entry<'a>,
) -> Option<(LockKey, Option<RequestedKind>)> {
    if entry.is_object() {
        return fields.entry_object(entry, |entry| {
            let key = entry.required("key", parsed(LockKey::parse));
            let kind = RequestedKind::read(entry);
            Some((key?, kind))
        });
    }
    if !entry.is_string() {
        fields.refuse_entry(entry, "must be a string, or an object with `key`");
        return None;
    }
    let key = fields.entry(entry, parsed(LockKey::parse))?;
    Some((key, None))
}

/// The keys that a caller requested, with their full names.
#[derive(Debug)]
pub(crate) struct NamedKeys {
    requested: RequestedKeys,
    /// The names of a set in the order of the request; empty for one key.
    names: Vec<LockName>,
    pub(crate) locks: Locks,
}

impl NamedKeys {
    /// `FORBIDDEN` for every key that the caller may not use; `at` locates the options in the request.
    pub(crate) fn check(&self, caller: &Caller, at: At) -> Result<(), Errors> {
        let pointer = |index| match self.requested.keys {
            Keys::One(_) => at.pointer().key("key"),
            Keys::Several(_) => at.pointer().key("keys").index(index),
        };
        let refused = self.names().enumerate().filter_map(|(index, name)| {
            let refusal = caller.check_lock(name).err()?;
            Some(refusal.at(pointer(index)))
        });
        let refused: Vec<ErrorObject> = refused.collect();
        Errors::try_from(refused).map_or(Ok(()), Err)
    }

    /// The full keys, in the order of the request.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &LockName> {
        let one = std::slice::from_ref(self.locks.first());
        let names = if self.names.is_empty() {
            one
        } else {
            &self.names
        };
        names.iter()
    }

    /// Writes `key` or `keys` as they were sent, after normalisation.
    pub(crate) fn write_as_sent(&self, object: &mut ObjectWriter) {
        match &self.requested.keys {
            Keys::One(key) => object.string("key", key.as_str()),
            Keys::Several(keys) => {
                object.strings("keys", keys.iter().map(|(key, _)| key.as_str()));
            }
        }
    }

    /// Writes `full_key` or `full_keys`.
    pub(crate) fn write_full_keys(&self, object: &mut ObjectWriter) {
        if self.locks.is_set() {
            object.strings("full_keys", self.names.iter().map(LockName::as_str));
        } else {
            object.string("full_key", self.locks.first().as_str());
        }
    }

    /// `key` or `keys` as they were sent, and `full_key` or `full_keys`, for the details of an error.
    pub(super) fn as_details(&self) -> [(&'static str, Value); 2] {
        match &self.requested.keys {
            Keys::One(key) => [
                ("key", json!(key.as_str())),
                ("full_key", json!(self.locks.first().as_str())),
            ],
            Keys::Several(keys) => {
                let keys: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
                let names: Vec<&str> = self.names.iter().map(LockName::as_str).collect();
                [("keys", json!(keys)), ("full_keys", json!(names))]
            }
        }
    }

    /// Writes `mode` or `limit`, if one was sent.
    pub(crate) fn write_kind(&self, object: &mut ObjectWriter) {
        match self.requested.kind {
            None => {}
            Some(RequestedKind::Mode(mode)) => object.string("mode", mode.as_str()),
            Some(RequestedKind::Limit(limit)) => object.number("limit", limit.into()),
        }
    }

    /// The option that the store may not support.
    pub(crate) fn special_option(&self) -> &'static str {
        match (&self.requested.keys, self.requested.kind) {
            (Keys::Several(_), _) => "keys",
            (Keys::One(_), Some(RequestedKind::Limit(_))) => "limit",
            (Keys::One(_), Some(RequestedKind::Mode(_))) => "mode",
            (Keys::One(_), None) => "key",
        }
    }
}
