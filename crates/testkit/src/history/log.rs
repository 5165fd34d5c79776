//! The operations as they were recorded, in the order in which they began.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Sharing;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyId(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OperationId(usize);

/// All times are counted from the start of the history.
#[derive(Debug, Default)]
pub(super) struct Log {
    names: Vec<String>,
    ids: HashMap<String, KeyId>,
    entries: Vec<Entry>,
    healed: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) owner: Arc<str>,
    pub(super) action: Action,
    pub(super) began: Duration,
    pub(super) ended: Option<(Duration, Outcome)>,
}

#[derive(Debug)]
pub(super) enum Action {
    Acquire { keys: Vec<KeyId>, sharing: Sharing },
    Extend { of: OperationId, ttl: Duration },
    Release { of: OperationId },
    Force { key: KeyId, fences: Vec<u64> },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    Granted { fence: u64, until: Duration },
    Extended { until: Duration },
    Released,
    Refused,
    Unknown,
}

impl Entry {
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.ended.map(|(_, outcome)| outcome)
    }

    /// When it was answered; `None` if it may still take effect.
    pub(super) fn answered(&self) -> Option<Duration> {
        match self.ended {
            None | Some((_, Outcome::Unknown)) => None,
            Some((at, _)) => Some(at),
        }
    }
}

impl Log {
    pub(super) fn key(&mut self, name: String) -> KeyId {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        let id = KeyId(self.names.len());
        self.names.push(name.clone());
        self.ids.insert(name, id);
        id
    }

    pub(super) fn begin(&mut self, at: Duration, owner: &str, action: Action) -> OperationId {
        let id = OperationId(self.entries.len());
        // The entries of one lease share the text.
        let known = match &action {
            Action::Extend { of, .. } | Action::Release { of } => Some(self.owner(*of)),
            Action::Acquire { .. } | Action::Force { .. } => None,
        };
        self.entries.push(Entry {
            owner: known.unwrap_or_else(|| owner.into()),
            action,
            began: at,
            ended: None,
        });
        id
    }

    pub(super) fn end(&mut self, id: OperationId, at: Duration, outcome: Outcome) {
        self.entries[id.0].ended = Some((at, outcome));
    }

    pub(super) fn heal(&mut self, at: Duration) {
        self.healed = Some(at);
    }

    pub(super) fn healed(&self) -> Option<Duration> {
        self.healed
    }

    pub(super) fn owner(&self, of: OperationId) -> Arc<str> {
        self.entries[of.0].owner.clone()
    }

    pub(super) fn name(&self, key: KeyId) -> &str {
        &self.names[key.0]
    }

    pub(super) fn names(&self) -> impl Iterator<Item = KeyId> {
        (0..self.names.len()).map(KeyId)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (OperationId, &Entry)> {
        let entries = self.entries.iter().enumerate();
        entries.map(|(index, entry)| (OperationId(index), entry))
    }

    /// The keys that an operation is about.
    pub(super) fn keys<'a>(&'a self, action: &'a Action) -> &'a [KeyId] {
        // The keys of an extension or a release are those of its acquire.
        let action = match action {
            Action::Extend { of, .. } | Action::Release { of } => &self.entries[of.0].action,
            Action::Acquire { .. } | Action::Force { .. } => action,
        };
        match action {
            Action::Acquire { keys, .. } => keys,
            Action::Force { key, .. } => std::slice::from_ref(key),
            Action::Extend { .. } | Action::Release { .. } => &[],
        }
    }
}
