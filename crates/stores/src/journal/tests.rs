//! What callers and waiters observe when the disk fails, stalls or is slow.

use std::collections::{BTreeSet, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_lock::model::{
    Acquire, Acquired, Claim, Command, End, LeaseRef, NotHeld, Outcome, Transition, Wait, Wake,
    Withdrawn,
};
use forrst_lock::{
    Answer, Attempt, Fences, Lease, LockKey, LockName, LockStatus, Locks, Node, Nodes, Owner,
    Reading, ReleaseMemory, Share, StoreError, Ticket, Timestamp, Ttl,
};

use super::calls::Message;
use super::*;
use crate::table::{Remembered, Table};

/// A journal in memory, on a disk that fails when the test says so.
#[derive(Debug, Clone, Default)]
struct Disk {
    state: Arc<Mutex<DiskState>>,
    /// Locked by the test: a commit waits for it.
    stall: Arc<tokio::sync::Mutex<()>>,
    /// Whether a commit has begun.
    has_begun: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct DiskState {
    leases: HashSet<LeaseId>,
    withdrawals: usize,
    is_failing: bool,
    now: u64,
    /// Commits that have begun, and those that were made.
    tries: usize,
    commits: usize,
    /// How many leases the last commit wrote.
    last_written: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the disk fails")]
struct DiskFailure;

impl Journal for Disk {
    type Error = DiskFailure;

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.state.lock().unwrap().now)
    }

    fn commit(&mut self, changes: &Changes<'_>) -> Result<Timestamp, DiskFailure> {
        self.has_begun.store(true, Ordering::SeqCst);
        drop(self.stall.blocking_lock());
        let mut state = self.state.lock().unwrap();
        state.tries += 1;
        if state.is_failing {
            return Err(DiskFailure);
        }
        state.commits += 1;
        state.last_written = changes.leases.len();
        for (id, holder) in &changes.leases {
            match holder {
                Some(_) => state.leases.insert((*id).clone()),
                None => state.leases.remove(id),
            };
        }
        state.withdrawals += changes.withdrawals.len();
        Ok(Timestamp::from_millis(state.now))
    }

    fn probe(&mut self) -> Result<(), DiskFailure> {
        match self.state.lock().unwrap().is_failing {
            true => Err(DiskFailure),
            false => Ok(()),
        }
    }

    fn tidy(&mut self) {}
}

impl Disk {
    fn set_failing(&self, is_failing: bool) {
        self.state.lock().unwrap().is_failing = is_failing;
    }

    fn set_now(&self, millis: u64) {
        self.state.lock().unwrap().now = millis;
    }

    fn tries(&self) -> usize {
        self.state.lock().unwrap().tries
    }

    fn last_written(&self) -> usize {
        self.state.lock().unwrap().last_written
    }

    fn withdrawals(&self) -> usize {
        self.state.lock().unwrap().withdrawals
    }

    fn commits(&self) -> usize {
        self.state.lock().unwrap().commits
    }

    fn keys(&self) -> BTreeSet<String> {
        let state = self.state.lock().unwrap();
        state
            .leases
            .iter()
            .map(|(name, _)| name.to_string())
            .collect()
    }

    fn start() -> Start {
        let memory = ReleaseMemory::default();
        let max = Remembered {
            releases: 1000,
            withdrawals: 1000,
        };
        Start {
            table: Table::new(max, memory, Fences::default()),
            last_fence: None,
            written_at: Timestamp::from_millis(0),
            uncertain: None,
        }
    }

    /// An engine that the test drives by hand.
    fn engine(&self) -> Engine<Self> {
        Engine::new(self.clone(), Self::start(), Arc::new(Nodes::default()))
    }

    fn open(&self, timeout: Duration, queued: usize) -> Calls {
        let limits = Limits { timeout, queued };
        Calls::start(self.clone(), Self::start(), limits, ()).unwrap()
    }

    /// With a timeout that no test reaches.
    fn open_patient(&self) -> Calls {
        self.open(Duration::from_secs(120), 1000)
    }
}

/// A node that records its notifications.
#[derive(Debug, Default)]
struct RecordingNode {
    disk: Disk,
    /// Each with the number of commits at that time.
    notifications: Mutex<Vec<(usize, Notification)>>,
    has_no_calls: AtomicBool,
}

#[derive(Debug, Clone, PartialEq)]
enum Notification {
    Woken(Ticket, Wake),
    Changed(Transition),
}

impl Node for RecordingNode {
    fn wake(&self, ticket: Ticket, wake: Wake, _: Reading) -> bool {
        self.push(Notification::Woken(ticket, wake));
        !self.has_no_calls.load(Ordering::SeqCst)
    }

    fn changed(&self, transition: &Transition, _: Timestamp) {
        self.push(Notification::Changed(transition.clone()));
    }
}

impl RecordingNode {
    fn push(&self, notification: Notification) {
        let commits = self.disk.commits();
        self.notifications
            .lock()
            .unwrap()
            .push((commits, notification));
    }

    fn subscribe(calls: &Calls, disk: &Disk) -> Arc<Self> {
        let node = Arc::new(Self {
            disk: disk.clone(),
            ..Self::default()
        });
        let weak: std::sync::Weak<Self> = Arc::downgrade(&node);
        calls.subscribe(weak);
        node
    }

    fn take(&self) -> Vec<(usize, Notification)> {
        std::mem::take(&mut self.notifications.lock().unwrap())
    }

    fn wakes(&self) -> Vec<Ticket> {
        let notifications = self.notifications.lock().unwrap();
        let woken = notifications
            .iter()
            .filter_map(|(_, notification)| match notification {
                Notification::Woken(ticket, Wake::Granted(_)) => Some(*ticket),
                _ => None,
            });
        woken.collect()
    }
}

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

/// A call of the owner `a` with that ticket.
fn call(keys: &[&str], ticket: u128) -> Acquire {
    let keys = keys.iter().map(|key| (name(key), Share::EXCLUSIVE));
    Acquire {
        claim: Claim {
            locks: Locks::new(keys.collect()).unwrap(),
            owner: Owner::parse("a").unwrap(),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        },
        ticket: Ticket(ticket),
        node: None,
        wait: None,
    }
}

fn waiting(keys: &[&str], ticket: u128) -> Acquire {
    Acquire {
        wait: Some(Wait {
            timeout: Duration::from_secs(600),
            max_queue: 100,
            rejoin: None,
        }),
        ..call(keys, ticket)
    }
}

async fn acquire(calls: &Calls, acquire: Acquire) -> Result<Acquired, StoreError> {
    match calls.submit(Command::Acquire(acquire)).await?.outcome {
        Outcome::Acquired(acquired) => Ok(acquired),
        other => panic!("{other:?}"),
    }
}

async fn take(calls: &Calls, keys: &[&str], ticket: u128) -> Lease {
    match acquire(calls, call(keys, ticket)).await.unwrap() {
        Acquired::Granted(lease) => lease,
        other => panic!("{keys:?} should be free: {other:?}"),
    }
}

async fn wait(calls: &Calls, keys: &[&str], ticket: u128) {
    let acquired = acquire(calls, waiting(keys, ticket)).await.unwrap();
    assert!(matches!(acquired, Acquired::Queued { .. }), "{acquired:?}");
}

async fn release(calls: &Calls, lease: &Lease) -> Result<Result<Lease, NotHeld>, StoreError> {
    let held = LeaseRef {
        name: lease.name().clone(),
        owner: lease.owner.clone(),
        fence: Some(lease.fence),
    };
    match calls.submit(Command::Release(held)).await?.outcome {
        Outcome::Lease(lease) => Ok(lease),
        other => panic!("{other:?}"),
    }
}

async fn inspect(calls: &Calls, key: &str) -> Result<LockStatus, StoreError> {
    let name = name(key);
    let read = name.clone();
    let status = calls.read(Some(&name), move |table, now| table.inspect(&read, now));
    status.await
}

async fn is_held(calls: &Calls, key: &str) -> bool {
    inspect(calls, key).await.unwrap().holder_count > 0
}

async fn queue(calls: &Calls, key: &str) -> usize {
    inspect(calls, key).await.unwrap().waiters
}

/// Waits until the condition is true, however slow the machine.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..6_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out: {what}");
}

async fn poll_once<T: std::fmt::Debug>(call: impl Future<Output = T>) {
    tokio::select! {
        biased;
        answer = call => panic!("answered at once: {answer:?}"),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test]
async fn calls_time_out_while_the_disk_stalls() {
    let disk = Disk::default();
    let calls = disk.open(Duration::from_millis(100), 1000);
    let stall = disk.stall.lock().await;
    // On a busy machine, the engine may not have begun the command in time.
    let mut begun = 0;
    loop {
        begun += 1;
        match acquire(&calls, call(&["begun"], begun)).await {
            Err(StoreError::MaybeDone(_)) => break,
            Err(StoreError::NotDone(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let not_begun = acquire(&calls, call(&["not begun"], 1000)).await;
    assert!(
        matches!(not_begun, Err(StoreError::NotDone(_))),
        "{not_begun:?}"
    );
    assert!(matches!(calls.sweep(1).await, Err(StoreError::NotDone(_))));
    assert!(matches!(calls.probe().await, Err(StoreError::NotDone(_))));
    let read = calls.read(None, |table, _| table.held()).await;
    assert!(matches!(read, Err(StoreError::NotDone(_))));
    drop(stall);
    eventually("the disk works again", async || calls.probe().await.is_ok()).await;
    // The command that may have been done was done, and the other was not.
    assert_eq!(disk.keys(), BTreeSet::from(["lock:begun".to_owned()]));
}

#[tokio::test]
async fn a_full_queue_is_an_error_at_once() {
    let disk = Disk::default();
    let calls = disk.open(Duration::from_secs(120), 3);
    let stall = disk.stall.lock().await;
    let mut first = pin!(acquire(&calls, call(&["first"], 1)));
    poll_once(&mut first).await;
    eventually("the commit begins", async || {
        disk.has_begun.load(Ordering::SeqCst)
    })
    .await;
    let mut second = pin!(acquire(&calls, call(&["second"], 2)));
    let mut third = pin!(calls.read(None, |table, _| table.held()));
    let mut fourth = pin!(calls.sweep(10));
    poll_once(&mut second).await;
    poll_once(&mut third).await;
    poll_once(&mut fourth).await;
    for _ in 0..3 {
        let error = acquire(&calls, call(&["fifth"], 5)).await.unwrap_err();
        assert!(matches!(error, StoreError::NotDone(_)), "{error:?}");
        assert!(error.to_string().contains("too many"), "{error}");
        assert!(calls.probe().await.is_err());
    }
    // A rollback is never refused.
    calls.abandon(&name("second"), Ticket(2));
    drop(stall);
    assert!(matches!(first.await, Ok(Acquired::Granted(_))));
    assert!(matches!(second.await, Ok(Acquired::Granted(_))));
    third.await.unwrap();
    fourth.await.unwrap();
    take(&calls, &["second"], 6).await;
}

#[tokio::test]
async fn a_store_on_a_stalled_disk_can_be_dropped() {
    let disk = Disk::default();
    let calls = disk.open(Duration::from_millis(50), 1000);
    let stall = disk.stall.lock().await;
    drop(acquire(&calls, call(&["k"], 1)).await);
    let (dropped, is_dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(calls);
        dropped.send(()).unwrap();
    });
    is_dropped.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(stall);
}

#[tokio::test]
async fn a_commit_that_fails_keeps_waiters_in_their_queues() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let node = RecordingNode::subscribe(&calls, &disk);
    let one = take(&calls, &["a"], 1).await;
    let set = take(&calls, &["b", "c"], 2).await;
    wait(&calls, &["a"], 3).await;
    wait(&calls, &["a", "b"], 4).await;
    wait(&calls, &["c"], 5).await;
    node.take();
    disk.set_failing(true);
    for lease in [&one, &set] {
        let released = release(&calls, lease).await;
        assert!(
            matches!(released, Err(StoreError::MaybeDone(_))),
            "{released:?}"
        );
    }
    // A newcomer that was refused because of the disk holds nothing and waits nowhere.
    assert!(
        acquire(&calls, waiting(&["c"], 6)).await.is_ok(),
        "nothing has to be written"
    );
    assert!(acquire(&calls, call(&["d"], 7)).await.is_err());
    assert!(!is_held(&calls, "d").await);
    for (key, waiters) in [("a", 2), ("b", 1), ("c", 2)] {
        assert!(is_held(&calls, key).await);
        assert_eq!(queue(&calls, key).await, waiters, "{key}");
    }
    assert_eq!(node.take(), [], "nothing has happened");
    disk.set_failing(false);
    assert_eq!(release(&calls, &one).await.unwrap(), Ok(one));
    assert_eq!(node.wakes(), [Ticket(3)]);
    assert_eq!(release(&calls, &set).await.unwrap(), Ok(set));
    assert_eq!(
        node.wakes(),
        [Ticket(3), Ticket(5)],
        "the set waits for `a`"
    );
    assert_eq!(queue(&calls, "b").await, 1);
}

#[tokio::test]
async fn nodes_are_notified_of_a_change_after_its_commit_and_before_its_answer() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let node = RecordingNode::subscribe(&calls, &disk);
    let lease = take(&calls, &["k"], 1).await;
    wait(&calls, &["k"], 2).await;
    release(&calls, &lease).await.unwrap().unwrap();
    let notifications = node.take();
    let commits: Vec<usize> = notifications.iter().map(|(commits, _)| *commits).collect();
    assert_eq!(commits, [1, 2, 2, 2]);
    let notifications: Vec<Notification> = notifications
        .into_iter()
        .map(|(_, notification)| notification)
        .collect();
    let [
        Notification::Changed(Transition::Granted { lease: first, .. }),
        Notification::Changed(Transition::Ended {
            cause: End::Released,
            ..
        }),
        Notification::Changed(Transition::Granted { lease: second, .. }),
        Notification::Woken(Ticket(2), Wake::Granted(woken)),
    ] = notifications.as_slice()
    else {
        panic!("{notifications:?}");
    };
    assert_eq!(*first, lease);
    assert_eq!(second, woken);
}

#[tokio::test]
async fn a_grant_that_no_call_receives_is_rolled_back() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let node = RecordingNode::subscribe(&calls, &disk);
    let lease = take(&calls, &["a", "b"], 1).await;
    wait(&calls, &["a", "b"], 2).await;
    wait(&calls, &["b"], 3).await;
    node.has_no_calls.store(true, Ordering::SeqCst);
    release(&calls, &lease).await.unwrap().unwrap();
    eventually("all are rolled back", async || {
        !is_held(&calls, "a").await && !is_held(&calls, "b").await
    })
    .await;
    assert_eq!(node.wakes(), [Ticket(2), Ticket(3)]);
    eventually("no row is left", async || disk.keys().is_empty()).await;
}

#[test]
fn rollbacks_do_not_pile_up_while_the_disk_fails() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    let mut run_batch = |messages: Vec<Message>| {
        engine.run_batch(&mut { messages });
        engine.pending_rollbacks.len()
    };
    let (reply, _) = Message::command(Command::Acquire(call(&["held"], 1)));
    run_batch(vec![reply]);
    disk.set_failing(true);
    let abandon = |key: &str, ticket| Message::Abandon(name(key), Ticket(ticket));
    for round in 0..100 {
        // As a server does for callers that get an error or disconnect.
        let mut messages = vec![abandon("held", 1)];
        for ticket in 10..20 {
            let key = format!("{round}:{ticket}");
            let (acquire, _) = Message::command(Command::Acquire(call(&[&key], ticket)));
            messages.extend([acquire, abandon(&key, ticket), abandon("held", ticket)]);
        }
        assert_eq!(run_batch(messages), 1);
    }
    disk.set_failing(false);
    let (probe, _probed) = tokio::sync::oneshot::channel();
    assert_eq!(run_batch(vec![Message::Probe(probe)]), 0);
    assert!(disk.keys().is_empty());
}

/// A read of one key, or of all, that returns how many leases it found.
fn read(
    key: Option<&str>,
) -> (
    Message,
    tokio::sync::oneshot::Receiver<Result<usize, StoreError>>,
) {
    let name = key.map(name);
    Message::read(name.clone(), move |table, now| match name {
        Some(name) => table.inspect(&name, now).holder_count,
        None => table.held(),
    })
}

#[test]
fn a_rollback_that_cannot_be_written_holds_up_no_other_call() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    for (key, ticket) in [("abandoned", 1), ("other", 2)] {
        let (acquire, _) = Message::command(Command::Acquire(call(&[key], ticket)));
        engine.run_batch(&mut vec![acquire]);
    }
    disk.set_failing(true);
    engine.run_batch(&mut vec![Message::Abandon(name("abandoned"), Ticket(1))]);
    assert_eq!(disk.tries(), 3);
    for _ in 0..500 {
        for key in ["abandoned", "other"] {
            let (message, mut answer) = read(Some(key));
            engine.run_batch(&mut vec![message]);
            assert_eq!(answer.try_recv().unwrap().unwrap(), 1);
        }
    }
    // The next call that is given up is deferred, too.
    engine.run_batch(&mut vec![Message::Abandon(name("other"), Ticket(2))]);
    // However slow the machine, the rollback is retried only after a pause.
    assert!(disk.tries() < 500, "{}", disk.tries());
    assert_eq!(engine.pending_rollbacks.len(), 2);
    disk.set_failing(false);
    // A write that succeeds shows that rollbacks can be tried again.
    let (acquire, _) = Message::command(Command::Acquire(call(&["third"], 3)));
    engine.run_batch(&mut vec![acquire]);
    engine.run_batch(&mut Vec::new());
    assert_eq!(engine.pending_rollbacks, []);
    assert_eq!(disk.keys(), BTreeSet::from(["lock:third".to_owned()]));
}

#[test]
fn a_call_can_leave_its_queue_while_the_disk_fails() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    for acquire in [
        call(&["k"], 1),
        waiting(&["k"], 2),
        waiting(&["k"], 3),
        waiting(&["k", "free"], 4),
        waiting(&["free"], 5),
    ] {
        let (acquire, _) = Message::command(Command::Acquire(acquire));
        engine.run_batch(&mut vec![acquire]);
    }
    disk.set_failing(true);
    let (failing, _) = Message::command(Command::Acquire(call(&["new"], 9)));
    let leave = |ticket| Message::Abandon(name("k"), Ticket(ticket));
    // Once in a batch that fails, and once while rollbacks are deferred.
    engine.run_batch(&mut vec![failing, leave(2)]);
    engine.run_batch(&mut vec![leave(3)]);
    assert_eq!(engine.pending_rollbacks, []);
    // This one frees a key for another claim, whose grant has to be written.
    engine.run_batch(&mut vec![leave(4)]);
    assert_eq!(engine.pending_rollbacks, [(name("k"), Ticket(4))]);
    let (message, mut answer) = Message::read(None, |table, _| {
        ["k", "free"].map(|key| table.queue(&name(key), 10).len())
    });
    engine.run_batch(&mut vec![message]);
    assert_eq!(answer.try_recv().unwrap().unwrap(), [1, 2]);
}

#[test]
fn an_expired_lease_makes_no_other_key_wait_for_the_disk() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    let mut acquire = call(&["short", "set"], 1);
    acquire.claim.ttl = Ttl::new(Duration::from_secs(1)).unwrap();
    for acquire in [acquire, call(&["other"], 2)] {
        let (acquire, _) = Message::command(Command::Acquire(acquire));
        engine.run_batch(&mut vec![acquire]);
    }
    disk.set_now(1_000);
    disk.set_failing(true);
    let mut inspect = |key, is_swept| {
        if is_swept {
            let (sweep, _) = Message::sweep(10);
            engine.run_batch(&mut vec![sweep]);
        }
        let (message, mut answer) = read(key);
        engine.run_batch(&mut vec![message]);
        answer.try_recv().unwrap()
    };
    for is_swept in [false, true] {
        for key in [Some("short"), Some("set")] {
            assert_eq!(inspect(key, is_swept).unwrap(), 0, "{key:?}");
        }
        // Expired leases are counted until the next sweep.
        let held = if is_swept { 1 } else { 3 };
        assert_eq!(inspect(None, is_swept).unwrap(), held);
        assert_eq!(inspect(Some("other"), is_swept).unwrap(), 1);
        assert_eq!(inspect(Some("new"), is_swept).unwrap(), 0);
    }
    let held = |key: &str| LeaseRef {
        name: name(key),
        owner: Owner::parse("b").unwrap(),
        fence: None,
    };
    for (key, is_answered) in [("set", false), ("other", true), ("new", true)] {
        let (release, mut answer) = Message::command(Command::Release(held(key)));
        engine.run_batch(&mut vec![release]);
        assert_eq!(answer.try_recv().unwrap().is_ok(), is_answered, "{key}");
    }
}

/// After a failed commit, the leases are held as before, until they expire in a commit that succeeds.
#[tokio::test]
async fn leases_that_expire_in_a_failed_batch_expire_later() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let node = RecordingNode::subscribe(&calls, &disk);
    let one = take(&calls, &["a"], 1).await;
    take(&calls, &["b", "c"], 2).await;
    wait(&calls, &["a"], 3).await;
    wait(&calls, &["a", "b"], 4).await;
    wait(&calls, &["c"], 5).await;
    node.take();
    disk.set_now(one.expires_at.as_millis());
    disk.set_failing(true);
    for key in ["a", "b", "c"] {
        let settled = calls.submit(Command::Settle(name(key))).await;
        assert!(settled.is_err(), "{key}: {settled:?}");
    }
    // Their ends grant other claims, so the sweep fails as well.
    assert!(calls.sweep(10).await.is_err());
    assert_eq!(node.take(), [], "nothing has happened");
    disk.set_failing(false);
    assert_eq!(calls.sweep(10).await.unwrap(), 2);
    assert_eq!(node.wakes(), [Ticket(3), Ticket(5)]);
    let third = inspect(&calls, "a").await.unwrap();
    let third = third.holder().unwrap().clone();
    release(&calls, &third).await.unwrap().unwrap();
    assert_eq!(node.wakes(), [Ticket(3), Ticket(5), Ticket(4)]);
    let keys = ["lock:a", "lock:c"].map(str::to_owned);
    assert_eq!(disk.keys(), BTreeSet::from(keys), "the set is under `a`");
}

#[tokio::test]
async fn a_withdrawal_that_is_not_written_has_not_happened() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let attempt = Attempt::parse("try").unwrap();
    let withdraw = || {
        calls.submit(Command::Withdraw {
            name: name("k"),
            owner: Owner::parse("a").unwrap(),
            attempt: attempt.clone(),
        })
    };
    let mut with_attempt = call(&["k"], 1);
    with_attempt.claim.attempt = Some(attempt.clone());
    let first = acquire(&calls, with_attempt.clone()).await.unwrap();
    disk.set_failing(true);
    assert!(matches!(withdraw().await, Err(StoreError::MaybeDone(_))));
    disk.set_failing(false);
    let again = Acquire {
        ticket: Ticket(2),
        ..with_attempt
    };
    assert_eq!(acquire(&calls, again.clone()).await.unwrap(), first);
    assert_eq!(disk.withdrawals(), 0);
    let Acquired::Granted(lease) = first else {
        panic!("{first:?}");
    };
    assert_eq!(
        withdraw().await.unwrap().outcome,
        Outcome::Withdrawn(Withdrawn::Held(lease))
    );
    assert_eq!(disk.withdrawals(), 1);
    assert_eq!(acquire(&calls, again).await.unwrap(), Acquired::Withdrawn);
}

#[test]
fn a_change_on_a_crowded_key_writes_only_its_own_lease() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    for ticket in 1..=100 {
        let mut limited = call(&["k"], ticket);
        limited.claim.locks = Locks::one(name("k"), Share::limit(100).unwrap());
        let (acquire, _) = Message::command(Command::Acquire(limited));
        engine.run_batch(&mut vec![acquire]);
        assert_eq!(disk.last_written(), 1);
    }
}

#[test]
fn nothing_is_read_for_a_caller_that_has_disconnected() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    let (acquire, _) = Message::command(Command::Acquire(call(&["k"], 1)));
    engine.run_batch(&mut vec![acquire]);
    disk.set_now(60_000);
    let (message, answer) = Message::read(Some(name("k")), |_, _| panic!("no caller waits for it"));
    drop(answer);
    engine.run_batch(&mut vec![message]);
    assert_eq!(disk.tries(), 1, "the time need not be written");
}

/// Whether a command is run is decided once, for the engine and the caller: a caller that got `NotDone` may try elsewhere.
#[tokio::test]
async fn a_call_that_times_out_is_run_or_was_not_begun() {
    let disk = Disk::default();
    let calls = disk.open(Duration::from_millis(1), 10_000);
    let mut not_done = BTreeSet::new();
    let mut done = BTreeSet::new();
    for ticket in 1..=300 {
        let key = ticket.to_string();
        let stall = match ticket % 3 {
            0 => Some(disk.stall.lock().await),
            _ => None,
        };
        let mut call = pin!(acquire(&calls, call(&[&key], ticket)));
        if ticket % 7 == 0 {
            // Dropped before it is answered: it is run all the same.
            let is_sent = std::future::ready(());
            tokio::select! { biased; _ = &mut call => {}, () = is_sent => {} }
        } else {
            match call.await {
                Ok(_) => drop(done.insert(format!("lock:{key}"))),
                Err(StoreError::NotDone(_)) => drop(not_done.insert(format!("lock:{key}"))),
                Err(StoreError::MaybeDone(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        drop(stall);
    }
    eventually("all is written", async || calls.probe().await.is_ok()).await;
    let keys = disk.keys();
    assert!(done.is_subset(&keys));
    assert!(not_done.is_disjoint(&keys), "{not_done:?}");
    for dropped in (7..=300).step_by(7) {
        assert!(keys.contains(&format!("lock:{dropped}")), "{dropped}");
    }
}

/// Panics at each notification.
#[derive(Debug)]
struct Panicking;

impl Node for Panicking {
    fn wake(&self, _: Ticket, _: Wake, _: Reading) -> bool {
        panic!("on purpose");
    }

    fn changed(&self, _: &Transition, _: Timestamp) {
        panic!("on purpose");
    }
}

#[tokio::test]
async fn an_observer_that_panics_does_not_end_the_store() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let node = Arc::new(Panicking);
    let weak: std::sync::Weak<Panicking> = Arc::downgrade(&node);
    calls.subscribe(weak);
    let lease = take(&calls, &["k"], 1).await;
    wait(&calls, &["k"], 2).await;
    release(&calls, &lease).await.unwrap().unwrap();
    eventually("the grant is rolled back", async || {
        !is_held(&calls, "k").await
    })
    .await;
    take(&calls, &["k"], 3).await;
}

#[tokio::test]
async fn the_time_is_written_before_a_lease_is_shown_as_expired() {
    let disk = Disk::default();
    let calls = disk.open_patient();
    let lease = take(&calls, &["k"], 1).await;
    assert!(is_held(&calls, "k").await);
    assert_eq!(disk.commits(), 1);
    disk.set_now(lease.expires_at.as_millis());
    disk.set_failing(true);
    // While nothing can be written, it can be inspected and swept, but not released.
    assert!(!is_held(&calls, "k").await);
    assert_eq!(calls.sweep(10).await.unwrap(), 1);
    assert!(!is_held(&calls, "k").await);
    assert!(release(&calls, &lease).await.is_err());
    disk.set_failing(false);
    assert_eq!(disk.commits(), 1);
    eventually("its end is written", async || {
        !is_held(&calls, "k").await && disk.commits() == 2
    })
    .await;
    assert_eq!(disk.commits(), 2);
    assert_eq!(
        release(&calls, &lease).await.unwrap(),
        Err(NotHeld::NotFound)
    );
    assert_eq!(disk.commits(), 2, "once is enough");
}

#[test]
fn calls_that_arrive_together_share_a_commit() {
    let disk = Disk::default();
    let mut engine = disk.engine();
    let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    let calls = keys.iter().zip(1..).map(|(key, ticket)| {
        let acquire = call(&[key], ticket);
        Message::command(Command::Acquire(acquire))
    });
    let (mut messages, answers): (Vec<Message>, Vec<_>) = calls.unzip();
    engine.run_batch(&mut messages);
    assert_eq!(disk.commits(), 1);
    for mut answer in answers {
        let Answer { outcome, .. } = answer.try_recv().unwrap().unwrap();
        let Outcome::Acquired(Acquired::Granted(_)) = outcome else {
            panic!("{outcome:?}");
        };
    }
}
