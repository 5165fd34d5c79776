//! Which keys a caller asks for, and as what kind: `key` or `keys`, `mode`, `limit`.

use forrst_lock::{LockKey, LockName, Locks, Share};
use forrst_protocol::{ErrorObject, Errors, FunctionName, ObjectWriter};
use serde_json::{Value, json};

use super::options::At;
use crate::access::Caller;
use crate::error::internal_error;
use crate::fields::{Entry, Fields, from_to, one_of, parsed};

/// `mode` as it was sent.
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

/// The kind of a lock as a caller names it.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Mode(Mode),
    Limit(u32),
}

impl Kind {
    /// `mode` or `limit`, which may both be missing.
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let mode = fields.optional("mode", one_of(&Mode::WORDS));
        let limit = fields.optional("limit", from_to(1, Share::MAX_LIMIT));
        match (mode, limit) {
            (Some(_), Some(_)) => {
                fields.refuse("limit", "does not go together with `mode`");
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

/// The keys that a caller asks for, in its own order and words.
#[derive(Debug)]
pub(crate) struct AskedKeys {
    keys: Keys,
    /// Beside `key` or `keys`.
    kind: Option<Kind>,
}

#[derive(Debug)]
enum Keys {
    One(LockKey),
    Several(Vec<(LockKey, Option<Kind>)>),
}

impl AskedKeys {
    const FEWEST: usize = 2;

    /// The whole of one key.
    pub(crate) fn one(key: LockKey) -> Self {
        let keys = Keys::One(key);
        Self { keys, kind: None }
    }

    /// Reads `key` or `keys`, and `mode` or `limit`. Whatever is wrong is noted in `fields`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let kind = Kind::read(fields);
        if !fields.has("keys") {
            let instead = ", or `keys` for several at once";
            let key = fields.required_or("key", instead, parsed(LockKey::parse))?;
            let keys = Keys::One(key);
            return Some(Self { keys, kind });
        }
        if fields.optional("key", |_| Ok(())).is_some() {
            fields.refuse("keys", "does not go together with `key`");
        }
        let entries = fields.required_list("keys")?;
        if !(Self::FEWEST..=Locks::MAX).contains(&entries.len()) {
            let most = Locks::MAX;
            let why = format!(
                "must have {} to {most} entries, but has {}",
                Self::FEWEST,
                entries.len()
            );
            fields.refuse("keys", why);
        }
        let mut keys: Vec<(LockKey, Option<Kind>)> = Vec::new();
        // Each is compared with all before it, so those that are too many are left unread.
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

    fn each(&self) -> impl Iterator<Item = (&LockKey, Option<Kind>)> {
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

    /// The full keys, in the order of the request, and what is taken of each; those of one function, or global ones.
    pub(crate) fn named(self, function: Option<&FunctionName>) -> Result<NamedKeys, Errors> {
        let locks = self.each().map(|(key, kind)| {
            let name = match function {
                Some(function) => LockName::scoped(function.as_str(), key).ok()?,
                None => LockName::global(key),
            };
            Some((name, kind.map_or(Some(Share::EXCLUSIVE), Kind::share)?))
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
        // All of them were checked.
        let (names, locks) = named.ok_or_else(internal_error)?;
        Ok(NamedKeys {
            asked: self,
            names,
            locks,
        })
    }
}

/// A key, or `{key, mode?, limit?}`.
fn read_entry<'a>(fields: &mut Fields<'a>, entry: &Entry<'a>) -> Option<(LockKey, Option<Kind>)> {
    if entry.is_object() {
        return fields.entry_object(entry, |entry| {
            let key = entry.required("key", parsed(LockKey::parse));
            let kind = Kind::read(entry);
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

/// The keys that a caller asks for, with their full names.
#[derive(Debug)]
pub(crate) struct NamedKeys {
    asked: AskedKeys,
    /// Of a set, in the order of the request.
    names: Vec<LockName>,
    pub(crate) locks: Locks,
}

impl NamedKeys {
    /// `FORBIDDEN` for every key that the caller may not use; `at` is where they stand.
    pub(crate) fn check(&self, caller: &Caller, at: At) -> Result<(), Errors> {
        let pointer = |index| match self.asked.keys {
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
        match &self.asked.keys {
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
        match &self.asked.keys {
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

    /// Writes `mode` or `limit`, when one was sent.
    pub(crate) fn write_kind(&self, object: &mut ObjectWriter) {
        match self.asked.kind {
            None => {}
            Some(Kind::Mode(mode)) => object.string("mode", mode.as_str()),
            Some(Kind::Limit(limit)) => object.number("limit", limit.into()),
        }
    }

    /// The option without which this would be a plain lock.
    pub(crate) fn special_option(&self) -> &'static str {
        match (&self.asked.keys, self.asked.kind) {
            (Keys::Several(_), _) => "keys",
            (Keys::One(_), Some(Kind::Limit(_))) => "limit",
            (Keys::One(_), Some(Kind::Mode(_))) => "mode",
            (Keys::One(_), None) => "key",
        }
    }
}
