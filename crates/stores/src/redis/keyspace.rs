//! Where things are kept in Redis.
//!
//! Locks are spread over a fixed number of partitions. All keys of a partition have the same hash tag, so that a
//! cluster keeps them together and one script can work on them; each partition has its own fence counter.

use forrst_lock::{LockName, Ticket};
use fred::types::Value;
use fred::util::redis_keyslot;

/// Part of the format: with another number locks would not be found again.
const PARTITIONS: u16 = 64;

/// What is written under a prefix. Changes with everything that an older version would not understand.
pub(super) const FORMAT: &str = "3";

#[derive(Debug)]
pub(super) struct Keyspace {
    prefix: String,
    partitions: Vec<Partition>,
}

#[derive(Debug)]
pub(super) struct Partition {
    tag: String,
    pub(super) slot: u16,
}

impl Keyspace {
    pub(super) fn new(prefix: &str) -> Self {
        let partition = |number| {
            let tag = format!("{{{prefix}:{number}}}");
            let slot = redis_keyslot(tag.as_bytes());
            Partition { tag, slot }
        };
        Self {
            prefix: prefix.to_owned(),
            partitions: (0..PARTITIONS).map(partition).collect(),
        }
    }

    pub(super) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    pub(super) fn index_of(&self, name: &LockName) -> usize {
        usize::from(redis_keyslot(name.as_str().as_bytes()) % PARTITIONS)
    }

    pub(super) fn of(&self, name: &LockName) -> &Partition {
        &self.partitions[self.index_of(name)]
    }

    pub(super) fn format_key(&self) -> String {
        format!("{}:format", self.prefix)
    }

    /// A key that is never there.
    pub(super) fn probe_key(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    pub(super) fn secret_key(&self) -> String {
        format!("{}:secret", self.prefix)
    }

    /// What a node's name is put behind.
    pub(super) fn channel(&self) -> String {
        format!("{}:node:", self.prefix)
    }
}

impl Partition {
    /// The keys of one step, in the order in which the scripts name them.
    pub(super) fn keys(&self, name: &LockName, ticket: Option<Ticket>) -> [Value; 8] {
        let tag = &self.tag;
        let ticket = ticket.map_or_else(|| "-".to_owned(), ticket_text);
        [
            self.lock(name),
            format!("{tag}:queue:{name}"),
            format!("{tag}:waiters:{name}"),
            format!("{tag}:fence"),
            self.names(),
            self.ends(),
            format!("{tag}:nodes"),
            format!("{tag}:undone:{ticket}"),
        ]
        .map(Value::from)
    }

    /// Who holds a lock.
    pub(super) fn lock(&self, name: &LockName) -> String {
        format!("{}:lock:{name}", self.tag)
    }

    /// Written so that replicas have something to take over.
    pub(super) fn replicated(&self) -> String {
        format!("{}:replicated", self.tag)
    }

    /// The names of all held locks, in their own order.
    pub(super) fn names(&self) -> String {
        format!("{}:names", self.tag)
    }

    /// The same by the time at which they have to be looked at.
    pub(super) fn ends(&self) -> String {
        format!("{}:ends", self.tag)
    }
}

/// A ticket as the scripts know it.
pub(super) fn ticket_text(ticket: Ticket) -> String {
    format!("{:032x}", ticket.0)
}

pub(super) fn ticket_from(text: &str) -> Option<Ticket> {
    u128::from_str_radix(text, 16).ok().map(Ticket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_lock_are_on_one_server_of_a_cluster() {
        let keyspace = Keyspace::new("forrst");
        for key in ["lock:a", "lock:f:{b}c", "lock:}{", "lock:{}"] {
            let name = LockName::parse(key).unwrap();
            let partition = keyspace.of(&name);
            for key in partition.keys(&name, Some(Ticket::random())) {
                let key = key.into_string().unwrap();
                assert_eq!(redis_keyslot(key.as_bytes()), partition.slot, "{key}");
            }
        }
    }

    #[test]
    fn a_ticket_is_read_as_it_was_written() {
        for ticket in [Ticket(0), Ticket(u128::MAX), Ticket::random()] {
            assert_eq!(ticket_from(&ticket_text(ticket)), Some(ticket));
        }
    }
}
