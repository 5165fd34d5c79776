//! The keys in Redis.
//!
//! Locks are spread over a fixed number of partitions. All keys of a partition have the same hash tag, so that a cluster keeps them
//! together. Fences, nodes, tombstones and counters are kept for each [partition group](super::group).

use forrst_lock::{LockName, Locks};
use fred::types::Value;
use fred::util::redis_keyslot;

/// Part of the format: with another number, existing locks would not be found.
const PARTITIONS: u16 = 64;

/// The version of the format. Changes whenever an older version could not read what is written.
pub(super) const FORMAT: &str = "6";

#[derive(Debug)]
pub(super) struct Keyspace {
    prefix: String,
    partitions: Vec<Partition>,
    is_cluster: bool,
}

#[derive(Debug)]
pub(super) struct Partition {
    tag: String,
    pub(super) slot: u16,
}

impl Keyspace {
    pub(super) fn new(prefix: &str, is_cluster: bool) -> Self {
        let partition = |number| {
            let tag = format!("{{{prefix}:{number}}}");
            let slot = redis_keyslot(tag.as_bytes());
            Partition { tag, slot }
        };
        Self {
            prefix: prefix.to_owned(),
            partitions: (0..PARTITIONS).map(partition).collect(),
            is_cluster,
        }
    }

    pub(super) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    pub(super) fn index_of(&self, name: &LockName) -> usize {
        usize::from(redis_keyslot(name.as_str().as_bytes()) % PARTITIONS)
    }

    /// How many groups there are.
    pub(super) fn groups(&self) -> usize {
        if self.is_cluster {
            self.partitions.len()
        } else {
            1
        }
    }

    /// The group of a lock.
    pub(super) fn group_of(&self, name: &LockName) -> usize {
        if self.is_cluster {
            self.index_of(name)
        } else {
            0
        }
    }

    /// The partitions of a group.
    pub(super) fn partitions_of(&self, group: usize) -> &[Partition] {
        if self.is_cluster {
            &self.partitions[group..=group]
        } else {
            &self.partitions
        }
    }

    /// The slot of a group's keys.
    pub(super) fn slot_of(&self, group: usize) -> u16 {
        self.partitions[group].slot
    }

    /// The keys of a group, which the library calls META, NODES, TOMBSTONES and COUNTERS.
    pub(super) fn group_keys(&self, group: usize) -> [String; 4] {
        ["meta", "nodes", "tombstones", "counters"].map(|what| self.group_key(group, what))
    }

    /// META, and the key that is written so that there is something to replicate.
    pub(super) fn touch_keys(&self, group: usize) -> Vec<Value> {
        let keys = ["meta", "replicated"].map(|what| self.group_key(group, what));
        keys.map(Value::from).into()
    }

    fn group_key(&self, group: usize, what: &str) -> String {
        if self.is_cluster {
            format!("{}:{what}", self.partitions[group].tag)
        } else {
            format!("{}:{what}", self.prefix)
        }
    }

    /// The keys of a lock: its state, and its sorted set of claims and leases.
    pub(super) fn lock_keys(&self, name: &LockName) -> [Value; 2] {
        let tag = &self.partitions[self.index_of(name)].tag;
        [format!("{tag}:{name}"), format!("{tag}:queue:{name}")].map(Value::from)
    }

    /// Whether these locks can be held by one lease: in a cluster only if their keys have the same hash tag.
    pub(super) fn can_hold(&self, locks: &Locks) -> bool {
        let mut tags = locks.names().map(|name| hash_tag(name.as_str()));
        let first = tags.next().flatten();
        !self.is_cluster || !locks.is_set() || (first.is_some() && tags.all(|tag| tag == first))
    }

    pub(super) fn format_key(&self) -> String {
        format!("{}:format", self.prefix)
    }

    /// A key that never exists.
    pub(super) fn probe_key(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    pub(super) fn secret_key(&self) -> String {
        format!("{}:secret", self.prefix)
    }

    /// The prefix of the nodes' channels, which end with their names.
    pub(super) fn channel_prefix(&self) -> String {
        format!("{}:node:", self.prefix)
    }
}

impl Partition {
    /// The key of the expiry index.
    pub(super) fn expiry_index(&self) -> String {
        format!("{}:expiry", self.tag)
    }

    /// A glob that matches the state keys of locks whose names begin with `prefix`.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        let mut pattern = format!("{}:", self.tag);
        for character in prefix.chars() {
            if "*?[]\\^-".contains(character) {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern.push('*');
        pattern
    }
}

/// The lock of a state key.
pub(super) fn name_of(state_key: &str) -> Option<LockName> {
    let (_, name) = state_key.split_once("}:")?;
    LockName::restore(name).ok()
}

/// The lock of any of its [keys](Keyspace::lock_keys).
pub(super) fn name_of_any(key: &str) -> Option<LockName> {
    let (_, rest) = key.split_once("}:")?;
    LockName::parse(rest.strip_prefix("queue:").unwrap_or(rest)).ok()
}

/// The part of a key that a cluster hashes, if not all of it.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use forrst_lock::Share;

    use super::*;

    fn name(name: &str) -> LockName {
        LockName::parse(name).unwrap()
    }

    #[test]
    fn all_keys_of_a_lock_are_on_one_server_of_a_cluster() {
        let keyspace = Keyspace::new("forrst", true);
        for key in [
            "lock:a",
            "lock:f:{b}c",
            "lock:}{",
            "lock:{}",
            "lock:a}:lock:b",
        ] {
            let name = name(key);
            let group = keyspace.group_of(&name);
            let slot = keyspace.slot_of(group);
            let own = keyspace
                .lock_keys(&name)
                .map(|key| key.into_string().unwrap());
            assert_eq!(name_of(&own[0]), Some(name));
            let group = keyspace.group_keys(group).into_iter();
            for key in own.into_iter().chain(group) {
                assert_eq!(redis_keyslot(key.as_bytes()), slot, "{key}");
            }
        }
    }

    #[test]
    fn a_cluster_accepts_only_sets_with_one_hash_tag() {
        let set = |one: &str, other: &str| {
            let locks = [one, other].map(|key| (name(key), Share::EXCLUSIVE));
            Locks::new(locks.to_vec()).unwrap()
        };
        let keyspace = Keyspace::new("forrst", true);
        assert!(keyspace.can_hold(&set("lock:{t}:a", "lock:f:{t}:b")));
        assert!(keyspace.can_hold(&Locks::exclusive(name("lock:a"))));
        for (one, other) in [
            ("lock:a", "lock:b"),
            ("lock:{t}a", "lock:{u}a"),
            ("lock:{}a", "lock:{}b"),
            ("lock:{t}a", "lock:a"),
        ] {
            assert!(!keyspace.can_hold(&set(one, other)), "{one} {other}");
        }
        let single = Keyspace::new("forrst", false);
        assert!(single.can_hold(&set("lock:a", "lock:b")));
        assert_eq!(
            keyspace.group_of(&name("lock:{t}:a")),
            keyspace.group_of(&name("lock:f:{t}:b"))
        );
    }
}
