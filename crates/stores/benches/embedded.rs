//! What durable locks cost: `cargo bench -p forrst-stores --bench embedded`.
//!
//! Acquire and release of the embedded store, side by side with the same rows written by one SQLite transaction for each
//! operation, as in a lock server without group commit; then the start with a million leases, a page of their list, and the size of
//! the file after a million cycles. Absolute numbers depend on the disk; compare the ratios.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forrst_lock::model::{Acquire, Acquired, Claim, LeaseRef};
use forrst_lock::{
    ListRequest, LockKey, LockName, LockStore, LockStoreExt, Locks, Owner, Ticket, Ttl,
};
use forrst_stores::{Durability, EmbeddedOptions, EmbeddedStore};
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

fn open(folder: &Path, durability: Durability) -> EmbeddedStore {
    let mut options = EmbeddedOptions::default();
    options.durability = durability;
    options.timeout = Duration::from_secs(60);
    EmbeddedStore::open(folder, &options).unwrap()
}

async fn acquire(store: &EmbeddedStore, name: &LockName, owner: &Owner) {
    let acquire = Acquire {
        claim: Claim {
            locks: Locks::exclusive(name.clone()),
            owner: owner.clone(),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(HOUR).unwrap(),
        },
        ticket: Ticket::random(),
        node: None,
        wait: None,
    };
    let answer = store.acquire(acquire).await;
    assert!(matches!(answer.unwrap().outcome, Acquired::Granted(_)));
}

async fn cycle(store: &EmbeddedStore, name: &LockName, owner: &Owner) {
    acquire(store, name, owner).await;
    let held = LeaseRef {
        name: name.clone(),
        owner: owner.clone(),
        fence: None,
    };
    let released = store.release(held).await;
    assert!(released.unwrap().outcome.is_ok());
}

fn embedded(callers: usize, durability: Durability) -> f64 {
    let folder = tempfile::tempdir_in(".").unwrap();
    let store = Arc::new(open(folder.path(), durability));
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
    let store = Arc::new(open(folder.path(), Durability::Process));
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
    let store = open(folder.path(), Durability::Full);
    let took = start.elapsed();
    let is_held = runtime()
        .block_on(store.inspect(&name("orders:99:9999")))
        .unwrap();
    assert!(is_held.outcome.holder().is_some());
    println!("start with a million leases: {:.2} s", took.as_secs_f64());
    list_a_million(&store);
}

/// Every page of a hundred and of a thousand, one after the other.
fn list_a_million(store: &EmbeddedStore) {
    let runtime = runtime();
    for limit in [100, 1000] {
        let mut request = ListRequest {
            limit,
            ..ListRequest::default()
        };
        let mut times = Vec::new();
        let mut count = 0;
        loop {
            let start = Instant::now();
            let page = runtime.block_on(store.list(&request)).unwrap();
            times.push(start.elapsed());
            count += page.locks.len();
            request.cursor = page.cursor;
            if request.cursor.is_none() {
                break;
            }
        }
        assert_eq!(count, 1_000_000);
        times.sort_unstable();
        println!(
            "a page of {limit} of them: {:?} median, {:?} maximum",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
}

fn a_million_cycles() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let store = Arc::new(open(folder.path(), Durability::Process));
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
