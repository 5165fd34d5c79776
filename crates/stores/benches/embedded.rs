//! What durable locks cost: `cargo bench -p forrst-stores --bench embedded`.
//!
//! Acquire and release of the embedded store, side by side with the same rows written by one SQLite transaction for each
//! operation, as a lock server without group commit does it; then the start with a million leases, and the size of the
//! file after a million cycles. Figures depend on the disk; the ratio is what counts.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forrst_lock::state::{Acquire, Acquired, Claim, Release};
use forrst_lock::{LockKey, LockName, LockStore, Owner, Ticket, Ttl};
use forrst_stores::{Durability, EmbeddedStore};
use rusqlite::{Connection, TransactionBehavior, params};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const TIME: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_secs(3600);

fn main() {
    println!("durable acquire+release per second, every commit on the disk (synchronous=FULL)");
    println!(
        "{:>8} {:>14} {:>22} {:>8}",
        "callers", "embedded", "a transaction each", "ratio"
    );
    for callers in [1, 64, 512] {
        let ours = embedded(callers, Durability::Full);
        let theirs = one_transaction_each(callers);
        println!(
            "{callers:>8} {ours:>14.0} {theirs:>22.0} {:>7.1}x",
            ours / theirs
        );
    }
    let process = embedded(64, Durability::Process);
    println!("with --durability process, 64 callers: {process:.0}");
    start_with_a_million();
    a_million_cycles();
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

async fn acquire(store: &EmbeddedStore, name: &LockName, owner: &Owner) {
    let claim = Claim {
        owner: owner.clone(),
        caller: None,
        attempt: None,
        ticket: Ticket::random(),
        ttl: Ttl::new(HOUR).unwrap(),
    };
    let answer = store.acquire(name, Acquire { claim, wait: None }).await;
    assert!(matches!(answer.unwrap().outcome, Acquired::Granted(_)));
}

async fn cycle(store: &EmbeddedStore, name: &LockName, owner: &Owner) {
    acquire(store, name, owner).await;
    let owner = owner.clone();
    let released = store.release(name, Release { owner, fence: None }).await;
    assert!(released.unwrap().outcome.is_ok());
}

fn embedded(callers: usize, durability: Durability) -> f64 {
    let folder = tempfile::tempdir_in(".").unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path(), durability).unwrap());
    runtime().block_on(async {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let store = store.clone();
            tasks.spawn(async move {
                let (name, owner) = (name(&format!("orders:{caller}")), Owner::random());
                let mut count = 0_u32;
                while start.elapsed() < TIME {
                    cycle(&store, &name, &owner).await;
                    count += 1;
                }
                count
            });
        }
        let total: u32 = tasks.join_all().await.into_iter().sum();
        f64::from(total) / start.elapsed().as_secs_f64()
    })
}

/// One connection, one transaction for each acquire and each release, callers one after the other.
fn one_transaction_each(callers: usize) -> f64 {
    let folder = tempfile::tempdir_in(".").unwrap();
    let database = Mutex::new(open_plain(folder.path()));
    let start = Instant::now();
    let total: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|caller| {
                let database = &database;
                scope.spawn(move || {
                    let name = format!("lock:orders:{caller}");
                    let mut count = 0;
                    while start.elapsed() < TIME {
                        plain_acquire(&mut database.lock().unwrap(), &name);
                        plain_release(&mut database.lock().unwrap(), &name);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    f64::from(total) / start.elapsed().as_secs_f64()
}

fn open_plain(folder: &Path) -> Connection {
    let database = Connection::open(folder.join("plain.db")).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    database.pragma_update(None, "synchronous", "FULL").unwrap();
    let schema = "CREATE TABLE locks (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER, expires_at INTEGER) WITHOUT ROWID;
                  CREATE TABLE tokens (id INTEGER PRIMARY KEY, last INTEGER); INSERT INTO tokens VALUES (1, 0);";
    database.execute_batch(schema).unwrap();
    database
}

fn plain_acquire(database: &mut Connection, name: &str) {
    let transaction = database
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let mint = "UPDATE tokens SET last = last + 1 RETURNING last";
    let fence: i64 = transaction
        .prepare_cached(mint)
        .unwrap()
        .query_row([], |row| row.get(0))
        .unwrap();
    let take = "INSERT INTO locks VALUES (?1, ?2, ?3, unixepoch() + 3600)
                ON CONFLICT (name) DO UPDATE SET owner = ?2, fence = ?3, expires_at = unixepoch() + 3600
                WHERE expires_at <= unixepoch()";
    let taken = transaction
        .prepare_cached(take)
        .unwrap()
        .execute(params![name, "owner", fence])
        .unwrap();
    assert_eq!(taken, 1);
    transaction.commit().unwrap();
}

fn plain_release(database: &mut Connection, name: &str) {
    let transaction = database
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let free = "DELETE FROM locks WHERE name = ? AND owner = ?";
    transaction
        .prepare_cached(free)
        .unwrap()
        .execute(params![name, "owner"])
        .unwrap();
    transaction.commit().unwrap();
}

fn start_with_a_million() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path(), Durability::Process).unwrap());
    runtime().block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..100 {
            let store = store.clone();
            tasks.spawn(async move {
                let owner = Owner::random();
                for index in 0..10_000 {
                    acquire(&store, &name(&format!("orders:{task}:{index}")), &owner).await;
                }
            });
        }
        tasks.join_all().await;
    });
    drop(store);
    let start = Instant::now();
    let store = EmbeddedStore::open(folder.path(), Durability::Full).unwrap();
    let took = start.elapsed();
    let is_held = runtime()
        .block_on(store.inspect(&name("orders:99:9999")))
        .unwrap();
    assert!(is_held.outcome.is_some());
    println!("start with a million leases: {:.2} s", took.as_secs_f64());
}

fn a_million_cycles() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path(), Durability::Process).unwrap());
    runtime().block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..500 {
            let store = store.clone();
            tasks.spawn(async move {
                let (name, owner) = (name(&format!("orders:{task}")), Owner::random());
                for _ in 0..2_000 {
                    cycle(&store, &name, &owner).await;
                }
            });
        }
        tasks.join_all().await;
    });
    drop(store);
    let size = |file: &str| std::fs::metadata(folder.path().join(file)).map_or(0, |m| m.len());
    let bytes = size("locks.db") + size("locks.db-wal");
    println!(
        "files after a million cycles on 500 keys: {} KiB",
        bytes / 1024
    );
}
