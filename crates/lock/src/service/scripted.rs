//! A store whose answers are scripted by a test, which also sends its notifications.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use crate::model::{Acquired, Command, Key, Obstacle, Outcome, Position};
use crate::{
    Answer, Capabilities, Fence, KeyWatch, Lease, ListError, ListRequest, LockKey, LockName,
    LockStatus, LockStore, Locks, Node, Owner, Page, ReleaseMemory, Secret, StoreError, Ticket,
    Timestamp, Waiter,
};

type Script = dyn FnMut(&Command) -> Result<Answer<Outcome>, StoreError> + Send;

pub(super) struct ScriptedStore {
    script: Mutex<Box<Script>>,
    node: Mutex<Option<Weak<dyn Node>>>,
    commands: Mutex<VecDeque<(Instant, Command)>>,
    pub(super) watched: Arc<WatchedState>,
}

/// The key that is read and watched.
#[derive(Debug, Default)]
pub(super) struct WatchedState {
    pub(super) holder: Mutex<Option<Lease>>,
    pub(super) fails: AtomicBool,
    /// How long a read takes.
    pub(super) takes: Mutex<Duration>,
    pub(super) reads: AtomicUsize,
    pub(super) renewals: AtomicUsize,
}

impl KeyWatch for Arc<WatchedState> {
    fn is_live(&self) -> bool {
        true
    }

    fn renew(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedStore").finish_non_exhaustive()
    }
}

impl ScriptedStore {
    pub(super) fn new(
        script: impl FnMut(&Command) -> Result<Answer<Outcome>, StoreError> + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            node: Mutex::default(),
            commands: Mutex::default(),
            watched: Arc::default(),
        })
    }

    /// The node of the service.
    pub(super) fn node(&self) -> Arc<dyn Node> {
        let node = self.node.lock().unwrap();
        node.as_ref().and_then(Weak::upgrade).unwrap()
    }

    /// The commands that have arrived, each with its time.
    pub(super) fn commands(&self) -> Vec<(Instant, Command)> {
        self.commands.lock().unwrap().iter().cloned().collect()
    }

    /// Waits for the first call for a lease, and returns its ticket.
    pub(super) async fn ticket(&self) -> Ticket {
        loop {
            for (_, command) in self.commands() {
                if let Command::Acquire(acquire) = command {
                    return acquire.ticket;
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl LockStore for ScriptedStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            shared: true,
            notifies: true,
            release_memory: ReleaseMemory::default(),
        }
    }

    fn secret(&self) -> Secret {
        Secret::random()
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        *self.node.lock().unwrap() = Some(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        let answer = (self.script.lock().unwrap())(&command);
        let now = Instant::now();
        self.commands.lock().unwrap().push_back((now, command));
        answer
    }

    fn abandon(&self, _: &LockName, _: Ticket) {}

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let watched = &self.watched;
        watched.reads.fetch_add(1, Ordering::Relaxed);
        let holder = watched.holder.lock().unwrap().clone();
        let takes = *watched.takes.lock().unwrap();
        if !takes.is_zero() {
            sleep(takes).await;
        }
        if watched.fails.load(Ordering::Relaxed) {
            return Err(StoreError::NotDone("it fails".into()));
        }
        let now = Timestamp::from_millis(1_800_000_000_000);
        let mut status = LockStatus::new(&Key::new(name.clone()), now);
        if let Some(lease) = holder {
            status.last_fence = Some(lease.fence);
            (status.holders, status.holder_count) = (vec![lease], 1);
        }
        let outcome = status;
        Ok(Answer { outcome, now })
    }

    fn watch(&self, _: &LockName) -> Option<Box<dyn KeyWatch>> {
        Some(Box::new(self.watched.clone()))
    }

    async fn queue(&self, _: &LockName, _: usize) -> Result<Answer<Vec<Waiter>>, StoreError> {
        Err(StoreError::Unsupported("it is not scripted"))
    }

    async fn list(&self, _: &ListRequest) -> Result<Page, ListError> {
        Err(ListError::BadCursor)
    }

    async fn sweep(&self, _: usize) -> Result<usize, StoreError> {
        Ok(0)
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

pub(super) fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

/// A lease of the key `k`.
pub(super) fn lease(fence: u64, acquired_at: Timestamp, ttl: Duration) -> Lease {
    Lease {
        locks: Locks::exclusive(name("k")),
        owner: Owner::parse("a").unwrap(),
        caller: None,
        note: None,
        fence: Fence::new(fence).unwrap(),
        acquired_at,
        expires_at: acquired_at + ttl,
    }
}

/// The answer to a call that is blocked by a lease until `retry_at`.
pub(super) fn queued(ticket: Ticket, now: Timestamp, retry_at: Timestamp) -> Answer<Outcome> {
    let outcome = Outcome::Acquired(Acquired::Queued {
        obstacle: Obstacle {
            blocked_by: vec![name("k")],
            retry_at,
        },
        position: Position { arrival: 1, ticket },
        until: now + Duration::from_secs(3600),
    });
    Answer { outcome, now }
}

/// The answer to a call that is granted a lease at once.
pub(super) fn granted(lease: &Lease) -> Answer<Outcome> {
    Answer {
        outcome: Outcome::Acquired(Acquired::Granted(lease.clone())),
        now: lease.acquired_at,
    }
}
