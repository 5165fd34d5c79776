//! There is no room for the journal: nothing is half done, held locks stay held, and the server recovers when there is room again.
//!
//! A full disk is simulated by a limit on the size of files, which needs no special rights and can be lifted while the server runs.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::sleep;

use crate::crash::connection::Connection;
use crate::crash::server::{Server, StoreFolder};
use forrst_testkit::{Answer, Lock, Shown, list};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
const LITTLE_ROOM: u64 = 192 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn without_room_nothing_changes_and_nothing_is_lost() {
    let folder = StoreFolder::new("full");
    let mut full = FullStore::fill(&folder).await;
    full.still_answers().await;
    full.refuses_to_write().await;
    full.still_answers().await;

    limit(&full.server, None);
    full.works_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_keep_their_positions_when_there_is_no_room() {
    let folder = StoreFolder::new("full");
    let server = start(&folder).await;
    let lock = Lock::global("wanted");
    let mut connection = server.connect().await;
    let held = acquire(&mut connection, &lock).await.unwrap();
    let mut waiter = server.connect().await;
    let request = lock.acquire_within("waiter", HOUR, MINUTE);
    let waiter = tokio::spawn(async move { waiter.call(&request).await });
    let impatient = lock.acquire_within("impatient", HOUR, Duration::from_millis(300));
    let answer = connection.call(&impatient).await.unwrap();
    assert_eq!(answer.code(), Some("LOCK_TIMEOUT"));

    limit(&server, Some(0));
    let release = lock.release(&held.owner, held.fence);
    refused(&connection.call(&release).await.unwrap());
    assert!(!waiter.is_finished());
    limit(&server, None);
    let status = connection.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder().as_ref(), Some(&held));
    let released = connection.call(&release).await.unwrap();
    assert_eq!(released.status, 200, "{released:?}");
    let granted = waiter.await.unwrap().unwrap();
    assert_eq!(granted.status, 200, "{granted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_leases_expire_and_the_others_are_shown() {
    let folder = StoreFolder::new("full");
    let server = start(&folder).await;
    let mut connection = server.connect().await;
    let (long, short) = (Lock::global("long"), Lock::global("short"));
    let held = acquire(&mut connection, &long).await.unwrap();
    let request = short.acquire("short", Duration::from_secs(2));
    assert_eq!(connection.call(&request).await.unwrap().status, 200);

    limit(&server, Some(0));
    refused(&connection.get("/ready").await.unwrap());
    // Until after the expiry, and after the server has next collected expired leases.
    sleep(Duration::from_millis(3_200)).await;
    for (lock, holder) in [(&long, Some(&held)), (&short, None)] {
        let status = connection.call(&lock.status()).await.unwrap();
        assert_eq!(status.status, 200, "{status:?}");
        assert_eq!(status.holder().as_ref(), holder);
    }
    limit(&server, None);
    acquire(&mut connection, &short).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_without_room_has_kept_what_it_acknowledged() {
    let folder = StoreFolder::new("full");
    let mut full = FullStore::fill(&folder).await;
    full.refuses_to_write().await;
    full.server.kill().await;

    full.server = start(&folder).await;
    full.connection = full.server.connect().await;
    full.works_again().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_calls_are_answered_while_writes_fail() {
    let folder = StoreFolder::new("full");
    let server = start(&folder).await;
    let mut connection = server.connect().await;
    let lock = Lock::global("held");
    let held = acquire(&mut connection, &lock).await.unwrap();
    limit(&server, Some(0));
    let writers = (0..4).map(|number| {
        let address = server.address;
        tokio::spawn(async move {
            let lock = Lock::global(format!("writer {number}"));
            let mut connection = Connection::open(address).await.unwrap();
            loop {
                refused(&acquire(&mut connection, &lock).await.unwrap_err());
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    for _ in 0..300 {
        let status = connection.call(&lock.status()).await.unwrap();
        assert_eq!(status.status, 200, "{status:?}");
        assert_eq!(status.holder().as_ref(), Some(&held));
    }
    for writer in writers {
        assert!(!writer.is_finished(), "{:?}", writer.await);
        writer.abort();
    }
}

/// The log is often on the same disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_for_its_log_keeps_running() {
    let folder = StoreFolder::new("full");
    let mut server = start(&folder).await;
    server.break_log().await;
    limit(&server, Some(0));
    let mut connection = server.connect().await;
    for _ in 0..3 {
        refused(&connection.get("/ready").await.unwrap());
        let health = connection.get("/health").await.unwrap();
        assert_eq!(health.status, 200, "{health:?}");
    }
    limit(&server, None);
    acquire(&mut connection, &Lock::global("k")).await.unwrap();
}

/// The error must not say that the store is damaged, because operators may remove a damaged store.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_room_does_not_report_damage() {
    let folder = StoreFolder::new("full");
    let server = folder.start().await;
    let lock = Lock::global("k");
    let held = acquire(&mut server.connect().await, &lock).await.unwrap();
    server.stop().await;

    // In units of 512 bytes: more than the database has, and less than opening it needs.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 40; exec \"$0\" \"$@\""]);
    shell.arg(env!("CARGO_BIN_EXE_forrst"));
    let refused = folder.command_of(shell).output().await.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(!said.contains("damaged"), "{said}");

    let server = folder.start().await;
    let status = server.connect().await.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder(), Some(held));
}

/// A server whose store is full.
struct FullStore {
    server: Server,
    connection: Connection,
    held: Vec<(Lock, Shown)>,
    /// The locks for which there was no room.
    not_held: Vec<Lock>,
}

impl FullStore {
    /// Acquires locks until five in a row fail: before that, the store may still find some room.
    async fn fill(folder: &StoreFolder) -> Self {
        let server = start(folder).await;
        let mut connection = server.connect().await;
        limit(&server, Some(LITTLE_ROOM));
        let (mut held, mut not_held) = (Vec::new(), Vec::new());
        let mut in_a_row = 0;
        while in_a_row < 5 {
            let number = held.len() + not_held.len();
            assert!(number < 10_000, "the store is never full");
            let lock = Lock::global(format!("{number:0500}"));
            match acquire(&mut connection, &lock).await {
                Ok(lease) => {
                    held.push((lock, lease));
                    in_a_row = 0;
                }
                Err(answer) => {
                    refused(&answer);
                    not_held.push(lock);
                    in_a_row += 1;
                }
            }
        }
        assert!(held.len() > 10, "there is room for too few locks");
        Self {
            server,
            connection,
            held,
            not_held,
        }
    }

    async fn call(&mut self, request: &Value) -> Answer {
        self.connection.call(request).await.unwrap()
    }

    /// Checks that every change fails, again and again, and that the server keeps running.
    async fn refuses_to_write(&mut self) {
        limit(&self.server, Some(0));
        for round in 0..10 {
            let (lock, lease) = self.held[round].clone();
            let (owner, fence) = (lease.owner.as_str(), lease.fence);
            let other = Lock::global(format!("other {round}"));
            for request in [
                lock.release(owner, fence),
                lock.extend(owner, fence, HOUR),
                lock.force_release(),
                other.acquire("other", HOUR),
                other.locked_call("other", HOUR, true),
                other.locked_call("other", HOUR, false),
            ] {
                let answer = self.call(&request).await;
                refused(&answer);
            }
            self.not_held.push(other);
            self.until_ready(503).await;
            let health = self.connection.get("/health").await.unwrap();
            assert_eq!(health.status, 200, "{health:?}");
        }
    }

    /// Checks that held locks are shown as they were granted, and no others.
    async fn still_answers(&mut self) {
        for (lock, lease) in self.held.clone() {
            let status = self.call(&lock.status()).await;
            assert_eq!(status.holder(), Some(lease));
        }
        for lock in self.not_held.clone() {
            let status = self.call(&lock.status()).await;
            assert_eq!(status.holder(), None);
        }
        let listed = self.call(&list()).await;
        assert_eq!(listed.listed().len(), self.held.len());
    }

    /// Waits for a status of `/ready`, which is cached for a second.
    async fn until_ready(&mut self, status: u16) {
        for _ in 0..500 {
            let ready = self.connection.get("/ready").await.unwrap();
            if ready.status == status {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("/ready never says {status}");
    }

    /// Checks that with room all locks can be acquired and released, and that fences still grow.
    async fn works_again(&mut self) {
        self.until_ready(200).await;
        self.still_answers().await;
        for lock in std::mem::take(&mut self.not_held) {
            let lease = acquire(&mut self.connection, &lock).await.unwrap();
            self.held.push((lock, lease));
        }
        self.still_answers().await;
        for (lock, lease) in std::mem::take(&mut self.held) {
            let release = lock.release(&lease.owner, lease.fence);
            let answer = self.call(&release).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let next = acquire(&mut self.connection, &lock).await.unwrap();
            assert!(next.fence > lease.fence, "{next:?} after {lease:?}");
        }
    }
}

async fn start(folder: &StoreFolder) -> Server {
    // SIGXFSZ, which comes with a file that is too large, would end the server; a full disk does not.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(env!("CARGO_BIN_EXE_forrst"));
    folder.wait_for(folder.command_of(shell)).await
}

/// Limits the size of the files of the server.
fn limit(server: &Server, size: Option<u64>) {
    let limits = Rlimit {
        current: size,
        maximum: getrlimit(Resource::Fsize).maximum,
    };
    prlimit(Some(server.process_id()), Resource::Fsize, limits).unwrap();
}

async fn acquire(connection: &mut Connection, lock: &Lock) -> Result<Shown, Answer> {
    let owner = "o".repeat(255);
    let answer = connection.call(&lock.acquire(&owner, HOUR)).await.unwrap();
    answer.granted().ok_or(answer)
}

fn refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    if !answer.body["errors"].is_null() {
        assert_eq!(answer.code(), Some("UNAVAILABLE"));
    }
}
