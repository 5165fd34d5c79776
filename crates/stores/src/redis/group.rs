//! A partition group: the partitions that share a queue of commands, fences and heartbeats.
//!
//! On a single server all partitions are one group, so that commands for any lock are batched together. In a cluster each partition is
//! a group, because partitions may move between servers. This node's view of the server is kept for each group.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forrst_lock::Fence;
use tokio::sync::Notify;

use super::keyspace::Keyspace;
use super::queue::CommandQueue;

/// What a recheck of the calls that wait in a group does, besides querying Redis which of them still wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recheck {
    /// Settles their keys as well, because calls of a dead node may block them.
    pub(super) settles: bool,
    /// Has all of them rejoin their queues, because Redis knows their deadlines by the clock of another server.
    pub(super) rejoins: bool,
}

#[derive(Debug)]
pub(super) struct PartitionGroup {
    pub(super) number: usize,
    pub(super) slot: u16,
    /// META, NODES, TOMBSTONES and COUNTERS.
    pub(super) keys: [String; 4],
    pub(super) queue: CommandQueue,
    /// The id of the server instance that sent the last answer.
    instance: Mutex<Arc<str>>,
    highest_fence: AtomicU64,
    /// The number of the last message that this node received.
    pub(super) last_message: AtomicU64,
    recheck_requested: Notify,
    pending_recheck: Mutex<Recheck>,
    /// Whether Redis has counted this node as alive before.
    is_known: AtomicBool,
}

impl PartitionGroup {
    pub(super) fn new(keyspace: &Keyspace, number: usize) -> Self {
        Self {
            number,
            slot: keyspace.slot_of(number),
            keys: keyspace.group_keys(number),
            queue: CommandQueue::default(),
            instance: Mutex::new("".into()),
            highest_fence: AtomicU64::new(0),
            last_message: AtomicU64::new(0),
            recheck_requested: Notify::new(),
            pending_recheck: Mutex::default(),
            is_known: AtomicBool::new(false),
        }
    }

    /// Records which server has answered. If another one answered before, this one may not have all its data.
    pub(super) fn record_instance(&self, name: &str) -> Arc<str> {
        let mut instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        if **instance != *name {
            let is_first = instance.is_empty();
            *instance = name.into();
            if !is_first {
                self.request_recheck_with(Recheck {
                    rejoins: true,
                    ..Recheck::default()
                });
            }
        }
        instance.clone()
    }

    /// The highest fence that this node has seen: Redis grants nothing below it.
    pub(super) fn highest_fence(&self) -> u64 {
        self.highest_fence.load(Ordering::Relaxed)
    }

    pub(super) fn record_fence(&self, fence: Fence) {
        self.highest_fence
            .fetch_max(fence.number(), Ordering::Relaxed);
    }

    /// Has the calls that wait here rechecked soon, because a message may have been missed.
    pub(super) fn request_recheck(&self) {
        self.recheck_requested.notify_one();
    }

    pub(super) fn request_recheck_with(&self, more: Recheck) {
        let mut pending = self.pending_recheck();
        pending.settles |= more.settles;
        pending.rejoins |= more.rejoins;
        drop(pending);
        self.request_recheck();
    }

    /// Returns when a recheck was requested since this last returned, with all that was requested.
    pub(super) async fn next_recheck(&self) -> Recheck {
        self.recheck_requested.notified().await;
        std::mem::take(&mut *self.pending_recheck())
    }

    fn pending_recheck(&self) -> MutexGuard<'_, Recheck> {
        self.pending_recheck
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Redis counts this node as alive from now on, and did not before. Unless this was its first call, its waiting calls may have
    /// been passed over meanwhile.
    pub(super) fn node_became_alive(&self) {
        if self.is_known.swap(true, Ordering::Relaxed) {
            self.request_recheck();
        }
    }
}
