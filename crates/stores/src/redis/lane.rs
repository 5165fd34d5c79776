//! A lane is the path to one server, in a cluster to one partition: a queue of orders, and what this node knows of that server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forrst_lock::Fence;
use tokio::sync::Notify;

use super::keyspace::Keyspace;
use super::queue::Queue;

/// How the calls that wait in a lane are to be rechecked, besides querying Redis which of them still wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recheck {
    /// Their keys are settled as well, because calls of a dead node may have left their queues.
    pub(super) settles: bool,
    /// They all rejoin their queues, because Redis knows their deadlines by the clock of another server.
    pub(super) rejoins: bool,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) number: usize,
    pub(super) slot: u16,
    /// META, NODES, GONE and NEWS.
    pub(super) keys: [String; 4],
    pub(super) queue: Queue,
    /// The name by which the server last called itself.
    instance: Mutex<Arc<str>>,
    highest_fence: AtomicU64,
    /// The number of the last message that this node received.
    pub(super) last_message: AtomicU64,
    recheck_requested: Notify,
    pending_recheck: Mutex<Recheck>,
    /// Redis has counted this node as alive before.
    is_known: AtomicBool,
}

impl Lane {
    pub(super) fn new(keyspace: &Keyspace, number: usize) -> Self {
        Self {
            number,
            slot: keyspace.slot_of(number),
            keys: keyspace.lane_keys(number),
            queue: Queue::default(),
            instance: Mutex::new("".into()),
            highest_fence: AtomicU64::new(0),
            last_message: AtomicU64::new(0),
            recheck_requested: Notify::new(),
            pending_recheck: Mutex::default(),
            is_known: AtomicBool::new(false),
        }
    }

    /// Notes which server has answered. If it is not the one that answered before, it may have lost what that one had.
    pub(super) fn instance(&self, name: &str) -> Arc<str> {
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

    /// The highest fence that was seen here: nothing smaller is granted.
    pub(super) fn highest_fence(&self) -> u64 {
        self.highest_fence.load(Ordering::Relaxed)
    }

    pub(super) fn saw(&self, fence: Fence) {
        self.highest_fence
            .fetch_max(fence.number(), Ordering::Relaxed);
    }

    /// Has the calls that wait here rechecked soon: something may have been missed.
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
    pub(super) fn was_considered_dead(&self) {
        if self.is_known.swap(true, Ordering::Relaxed) {
            self.request_recheck();
        }
    }
}
