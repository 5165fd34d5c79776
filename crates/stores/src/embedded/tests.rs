//! What a crash, a full disk, a wrong clock or a damaged file does, and does not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_lock::state::{Claim, ForceRelease};
use forrst_lock::{Attempt, Fence, LockKey, Owner, Timestamp, Ttl};

use super::clock::{Clock, Clocks, Reading, boot_id};
use super::*;

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn claim(attempt: Option<&str>, ttl: Duration) -> Claim {
    Claim {
        owner: Owner::parse("a").unwrap(),
        caller: None,
        attempt: attempt.map(|attempt| Attempt::parse(attempt).unwrap()),
        ticket: Ticket::random(),
        ttl: Ttl::new(ttl).unwrap(),
    }
}

const HOUR: Duration = Duration::from_secs(3600);

async fn try_take(store: &EmbeddedStore, key: &str, ttl: Duration) -> Result<Lease, StoreError> {
    let command = Acquire {
        claim: claim(None, ttl),
        wait: None,
    };
    match store.acquire(&name(key), command).await?.outcome {
        Acquired::Granted(lease) => Ok(lease),
        other => panic!("{key} should be free: {other:?}"),
    }
}

async fn take(store: &EmbeddedStore, key: &str, ttl: Duration) -> Lease {
    try_take(store, key, ttl).await.unwrap()
}

async fn release(store: &EmbeddedStore, key: &str) -> Result<Lease, NotHeld> {
    let owner = Owner::parse("a").unwrap();
    let command = Release { owner, fence: None };
    store.release(&name(key), command).await.unwrap().outcome
}

async fn holder(store: &EmbeddedStore, key: &str) -> Option<Lease> {
    let answer = store.inspect(&name(key)).await.unwrap();
    answer.outcome.map(|status| status.lease)
}

fn start(journal: impl Journal + 'static, folder: Folder) -> Result<EmbeddedStore, EmbeddedError> {
    let memory = ReleaseMemory::default();
    EmbeddedStore::start_by(journal, Some(folder), machine_clocks(), memory)
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, Durability::Process).unwrap()
}

#[tokio::test]
async fn leases_releases_and_fences_survive() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let kept = take(&store, "kept", HOUR).await;
    take(&store, "short", Duration::from_millis(1)).await;
    take(&store, "released", HOUR).await;
    release(&store, "released").await.unwrap();
    let last = take(&store, "last", HOUR).await;
    drop(store);
    tokio::time::sleep(Duration::from_millis(5)).await;

    let store = open(folder.path());
    assert_eq!(holder(&store, "kept").await, Some(kept));
    assert_eq!(holder(&store, "short").await, None);
    assert_eq!(
        release(&store, "released").await,
        Err(NotHeld::AlreadyReleased { forced: false })
    );
    assert_eq!(holder(&store, "last").await, Some(last.clone()));
    assert!(take(&store, "short", HOUR).await.fence > last.fence);
}

#[tokio::test]
async fn a_repeated_attempt_gets_its_lease_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let acquire = async |store: EmbeddedStore| {
        let command = Acquire {
            claim: claim(Some("try 1"), HOUR),
            wait: None,
        };
        store.acquire(&name("k"), command).await.unwrap().outcome
    };
    let first = acquire(open(folder.path())).await;
    assert!(matches!(first, Acquired::Granted(_)));
    assert_eq!(acquire(open(folder.path())).await, first);
}

#[tokio::test]
async fn the_fence_of_a_lock_that_was_free_at_the_end_is_not_given_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = None;
    for _ in 0..5 {
        let store = open(folder.path());
        let lease = take(&store, "k", HOUR).await;
        assert!(Some(lease.fence) > last);
        last = Some(lease.fence);
        release(&store, "k").await.unwrap();
    }
}

#[test]
fn a_second_process_is_told_who_has_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path());
    let error = EmbeddedStore::open(folder.path(), Durability::Full).unwrap_err();
    assert!(matches!(error, EmbeddedError::InUse { .. }));
    let pid = format!("pid {}", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
}

fn open_error(folder: &Path) -> EmbeddedError {
    EmbeddedStore::open(folder, Durability::Full).expect_err("should not open")
}

#[test]
fn a_damaged_store_is_refused_and_left_as_it_is() {
    type Spoil = fn(&Path);
    let spoil: [(&str, Spoil); 5] = [
        ("empty", |file| fs::write(file, "").unwrap()),
        ("text", |file| fs::write(file, "not a database").unwrap()),
        ("gone", |file| fs::remove_file(file).unwrap()),
        ("cut", |file| {
            let content = fs::read(file).unwrap();
            fs::write(file, &content[..content.len() / 2]).unwrap();
        }),
        ("overwritten", |file| {
            let mut content = fs::read(file).unwrap();
            content[100..5_000].fill(0x55);
            fs::write(file, content).unwrap();
        }),
    ];
    for (how, spoil) in spoil {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()));
        let file = folder.path().join("locks.db");
        spoil(&file);
        let before = fs::read(&file).ok();
        let error = open_error(folder.path());
        assert!(
            matches!(error, EmbeddedError::Damaged { .. }),
            "{how}: {error}"
        );
        assert_eq!(fs::read(&file).ok(), before, "{how}");
    }
}

#[test]
fn a_row_that_makes_no_sense_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join("locks.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    let row = "INSERT INTO locks (name, owner, fence, acquired_at, expires_at)
               VALUES ('lock:k', 'a', -5, 0, 99999999999999)";
    database.execute(row, []).unwrap();
    drop(database);
    let error = open_error(folder.path());
    assert!(error.to_string().contains("lock:k"), "{error}");
}

#[test]
fn a_newer_format_and_a_foreign_database_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join("locks.db");
    let set = |pragma: &str, value: i64| {
        let database = rusqlite::Connection::open(&file).unwrap();
        database.pragma_update(None, pragma, value).unwrap();
    };
    set("user_version", 4);
    let error = open_error(folder.path());
    assert!(matches!(
        error,
        EmbeddedError::NewerFormat {
            found: 4,
            known: 3,
            ..
        }
    ));
    set("user_version", 3);
    drop(open(folder.path()));
    set("application_id", 7);
    assert!(matches!(
        open_error(folder.path()),
        EmbeddedError::Damaged { .. }
    ));
}

#[tokio::test]
async fn a_file_of_an_older_format_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let lease = take(&store, "kept", HOUR).await;
    drop(store);
    let file = folder.path().join("locks.db");
    let second_format = "DROP VIEW held;
        ALTER TABLE locks DROP COLUMN releases;
        ALTER TABLE locks DROP COLUMN caller;
        ALTER TABLE locks ADD COLUMN released_owner TEXT;
        ALTER TABLE locks ADD COLUMN released_fence INTEGER;
        ALTER TABLE locks ADD COLUMN released_until INTEGER;
        ALTER TABLE locks ADD COLUMN caller TEXT;
        CREATE VIEW held AS SELECT name FROM locks;
        PRAGMA user_version = 2;";
    let first_format = "ALTER TABLE locks DROP COLUMN caller; PRAGMA user_version = 1;";
    for format in [
        second_format.to_owned(),
        format!("{second_format}{first_format}"),
    ] {
        let database = rusqlite::Connection::open(&file).unwrap();
        database.execute_batch(&format).unwrap();
        drop(database);
        for _ in 0..2 {
            let store = open(folder.path());
            assert_eq!(holder(&store, "kept").await, Some(lease.clone()));
        }
    }
}

#[test]
fn an_interrupted_first_start_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("server.pid"), "").unwrap();
    fs::write(folder.path().join("locks.db.new"), "half").unwrap();
    drop(open(folder.path()));
    assert!(folder.path().join("locks.db").exists());
}

#[tokio::test]
async fn a_full_disk_is_an_error_that_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let claimed = Folder::claim(folder.path()).unwrap();
    let journal = SqliteJournal::open(&claimed, Durability::Process).unwrap();
    journal.limit_pages(20).unwrap();
    let store = start(journal, claimed).unwrap();
    let kept = take(&store, "kept", HOUR).await;
    let filling = "x".repeat(400);
    let mut taken = Vec::new();
    let failed = loop {
        let key = format!("{filling}{}", taken.len());
        match try_take(&store, &key, HOUR).await {
            Ok(lease) => taken.push(lease),
            Err(_) => break key,
        }
        assert!(taken.len() < 1_000, "the disk is never full");
    };
    // What failed is not held, and what was there is.
    assert_eq!(holder(&store, &failed).await, None);
    assert_eq!(holder(&store, "kept").await, Some(kept.clone()));
    assert!(store.health().await.is_ok(), "one row more is not needed");
    assert!(try_take(&store, &failed, HOUR).await.is_err(), "still full");
    // Room is made.
    for lease in taken.iter().take(10) {
        let owner = lease.owner.clone();
        let command = Release { owner, fence: None };
        drop(store.release(&lease.name, command).await);
        store
            .force_release(&lease.name, ForceRelease::default())
            .await
            .unwrap();
    }
    drop(store);
    let store = open(folder.path());
    assert_eq!(holder(&store, "kept").await, Some(kept));
    let last = taken.last().unwrap().fence;
    assert!(take(&store, &failed, HOUR).await.fence > last);
}

#[tokio::test]
async fn the_file_does_not_grow_with_use() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64 {
        let store = store.clone();
        tasks.spawn(async move {
            for round in 0..500 {
                let key = format!("{task}:{}", round % 7);
                take(&store, &key, HOUR).await;
                release(&store, &key).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    drop(store);
    let size = fs::metadata(folder.path().join("locks.db")).unwrap().len();
    assert!(size < 512 * 1024, "{size} bytes");
}

/// Clocks that the test sets.
#[derive(Clone, Default)]
struct SetClocks(Arc<Mutex<(Duration, Duration, String)>>);

impl SetClocks {
    fn set(&self, wall: u64, since_boot: u64, boot: &str) -> Box<dyn Clocks> {
        let at = Duration::from_secs;
        *self.0.lock().unwrap() = (at(wall), at(since_boot), boot.to_owned());
        let boot = boot.to_owned();
        Box::new(TheseClocks(self.clone(), boot))
    }
}

struct TheseClocks(SetClocks, String);

impl Clocks for TheseClocks {
    fn wall(&self) -> Duration {
        self.0.0.lock().unwrap().0
    }

    fn since_boot(&self) -> Duration {
        self.0.0.lock().unwrap().1
    }

    fn boot(&self) -> &str {
        &self.1
    }
}

fn second(second: u64) -> Timestamp {
    Timestamp::from_millis(second * 1000)
}

const BUSY: fn(Timestamp) -> bool = |_| false;
const IDLE: fn(Timestamp) -> bool = |_| true;

#[test]
fn the_wall_clock_does_not_matter_while_the_process_runs() {
    let clocks = SetClocks::default();
    let clock = Clock::resume(clocks.set(1_000, 50, "boot"), None, IDLE);
    assert_eq!(clock.now(), second(1_000));
    for wall in [0, 5_000, 1_010] {
        clocks.set(wall, 60, "boot");
        assert_eq!(clock.now(), second(1_010), "the wall clock says {wall}");
    }
}

#[test]
fn after_a_restart_leases_have_the_time_that_is_really_left() {
    let clocks = SetClocks::default();
    let last = Reading {
        now: second(1_000),
        since_boot: Duration::from_secs(50),
        boot: "boot".to_owned(),
    };
    // Thirty seconds later by any clock that nobody sets.
    for wall in [10, 1_030, 90_000] {
        let clock = Clock::resume(clocks.set(wall, 80, "boot"), Some(&last), BUSY);
        assert_eq!(clock.now(), second(1_030), "the wall clock says {wall}");
    }
    // With nothing held, the wall clock is caught up with, but never gone back to.
    let clock = Clock::resume(clocks.set(90_000, 80, "boot"), Some(&last), IDLE);
    assert_eq!(clock.now(), second(90_000));
    let clock = Clock::resume(clocks.set(10, 80, "boot"), Some(&last), IDLE);
    assert_eq!(clock.now(), second(1_030));
}

#[test]
fn after_a_reboot_time_is_never_before_the_last_commit() {
    let clocks = SetClocks::default();
    let last = Reading {
        now: second(1_000),
        since_boot: Duration::from_secs(50),
        boot: "first".to_owned(),
    };
    let clock = Clock::resume(clocks.set(2_000, 5, "second"), Some(&last), BUSY);
    assert_eq!(clock.now(), second(2_000));
    let clock = Clock::resume(clocks.set(10, 5, "second"), Some(&last), BUSY);
    assert_eq!(clock.now(), second(1_000));
    clocks.set(10, 8, "second");
    assert_eq!(clock.now(), second(1_003));
}

/// A store of `folder` that reads these clocks.
fn open_at(folder: &Path, clocks: &SetClocks, boot: &'static str) -> EmbeddedStore {
    let claimed = Folder::claim(folder).unwrap();
    let journal = SqliteJournal::open(&claimed, Durability::Process).unwrap();
    let clocks = clocks.clone();
    let read = move || Box::new(TheseClocks(clocks.clone(), boot.to_owned())) as Box<dyn Clocks>;
    EmbeddedStore::start_by(
        journal,
        Some(claimed),
        Box::new(read),
        ReleaseMemory::default(),
    )
    .unwrap()
}

async fn extend(store: &EmbeddedStore, key: &str) -> Result<Lease, NotHeld> {
    let command = Extend {
        owner: Owner::parse("a").unwrap(),
        fence: None,
        ttl: Ttl::new(Duration::from_secs(10)).unwrap(),
    };
    store.extend(&name(key), command).await.unwrap().outcome
}

#[tokio::test]
async fn after_a_reboot_with_a_slow_clock_an_expired_lease_is_not_extended() {
    let folder = tempfile::tempdir().unwrap();
    let clocks = SetClocks::default();
    clocks.set(1_000, 50, "first");
    let store = open_at(folder.path(), &clocks, "first");
    take(&store, "k", Duration::from_secs(10)).await;
    drop(store);
    // A minute later by a good clock, and before the lease was taken by this one.
    clocks.set(900, 5, "second");
    let store = open_at(folder.path(), &clocks, "second");
    assert_eq!(extend(&store, "k").await, Err(NotHeld::NotFound));
    // How much time is over is not known: no other owner gets it before its end.
    assert!(holder(&store, "k").await.is_some());
    clocks.set(910, 15, "second");
    assert!(holder(&store, "k").await.is_none());
    take(&store, "k", Duration::from_secs(10)).await;
    extend(&store, "k").await.unwrap();
    drop(store);
    // With a clock that is not behind, a lease outlives a reboot as it is.
    clocks.set(1_015, 1, "third");
    let store = open_at(folder.path(), &clocks, "third");
    extend(&store, "k").await.unwrap();
}

/// What somebody was told before the reboot stays true after it.
#[tokio::test]
async fn a_lease_that_was_shown_as_expired_is_not_revived_by_a_reboot() {
    for is_look in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let clocks = SetClocks::default();
        clocks.set(1_000, 50, "first");
        let store = open_at(folder.path(), &clocks, "first");
        take(&store, "k", Duration::from_secs(10)).await;
        clocks.set(1_010, 60, "first");
        if is_look {
            assert!(holder(&store, "k").await.is_none());
        } else {
            assert_eq!(extend(&store, "k").await, Err(NotHeld::NotFound));
        }
        drop(store);
        clocks.set(900, 5, "second");
        let store = open_at(folder.path(), &clocks, "second");
        assert!(holder(&store, "k").await.is_none(), "a look: {is_look}");
        take(&store, "k", Duration::from_secs(10)).await;
    }
}

#[test]
fn a_boot_that_is_not_known_is_random_and_the_same_for_the_whole_process() {
    let unknown = boot_id(Path::new("/nowhere/boot_id"));
    assert_ne!(unknown, boot_id(Path::new("/nowhere/boot_id")));
    assert!(
        !unknown.contains(&std::process::id().to_string()),
        "{unknown}"
    );
    assert_eq!(MachineClocks::new().boot(), MachineClocks::new().boot());
}

/// A write that was cut off is a transaction that was never answered: it is gone as a whole, and all before it is there.
#[tokio::test]
async fn a_torn_write_loses_only_what_was_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for key in 0..20 {
        take(&store, &format!("before {key}"), HOUR).await;
    }
    let wal = folder.path().join("locks.db-wal");
    let before = fs::read(&wal).unwrap();
    let torn = take(&store, "torn", HOUR).await;
    let after = fs::read(&wal).unwrap();
    assert!(after.len() > before.len() && after.starts_with(&before));
    let database = fs::read(folder.path().join("locks.db")).unwrap();

    let check = |length: usize| {
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("locks.db"), &database).unwrap();
        fs::write(copy.path().join("locks.db-wal"), &after[..length]).unwrap();
        let claimed = Folder::claim(copy.path()).unwrap();
        let mut journal = SqliteJournal::open(&claimed, Durability::Process).unwrap();
        let snapshot = journal.load().unwrap();
        let has_torn = snapshot.keys.iter().any(|entry| entry.name == torn.name);
        assert_eq!(
            snapshot.keys.len(),
            20 + usize::from(has_torn),
            "cut at {length}"
        );
        let expected = torn.fence.number() - u64::from(!has_torn);
        assert_eq!(snapshot.last_fence, Fence::new(expected), "cut at {length}");
        has_torn
    };
    assert!(!check(before.len()));
    assert!(check(after.len()));
    let lengths: Vec<usize> = (before.len()..after.len()).collect();
    std::thread::scope(|scope| {
        for part in lengths.chunks(lengths.len().div_ceil(4)) {
            scope.spawn(move || part.iter().for_each(|length| assert!(!check(*length))));
        }
    });
}

#[tokio::test]
async fn a_release_is_forgotten_in_the_file_too() {
    // Its row is made old by hand.
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    take(&store, "k", HOUR).await;
    release(&store, "k").await.unwrap();
    drop(store);
    let file = folder.path().join("locks.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    let old = i64::try_from(ReleaseMemory::default().as_duration().as_millis()).unwrap();
    let sql = "UPDATE locks SET releases =
                   json_set(releases, '$[0][2]', json_extract(releases, '$[0][2]') - ?)";
    assert_eq!(database.execute(sql, [old]).unwrap(), 1);
    drop(database);
    let store = open(folder.path());
    assert_eq!(release(&store, "k").await, Err(NotHeld::NotFound));
    store.expire(10).await.unwrap();
    drop(store);
    let database = rusqlite::Connection::open(&file).unwrap();
    let rows: i64 = database
        .query_row("SELECT count(*) FROM locks", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 0);
}

/// A journal on a disk that can be taken away.
struct Flaky {
    journal: SqliteJournal,
    is_away: Arc<std::sync::atomic::AtomicBool>,
    commits: Arc<std::sync::atomic::AtomicUsize>,
}

impl Journal for Flaky {
    fn load(&mut self) -> Result<super::journal::Snapshot, EmbeddedError> {
        self.journal.load()
    }

    fn commit(&mut self, changes: &super::journal::Changes<'_>) -> Result<(), EmbeddedError> {
        if self.is_away.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(rusqlite::Error::ExecuteReturnedResults.into());
        }
        self.commits
            .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.journal.commit(changes)
    }

    fn probe(&mut self) -> Result<(), EmbeddedError> {
        self.journal.probe()
    }

    fn tidy(&mut self) {}
}

#[tokio::test]
async fn health_makes_no_commit_and_notices_a_store_that_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let claimed = Folder::claim(folder.path()).unwrap();
    let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let commits = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let journal = Flaky {
        journal: SqliteJournal::open(&claimed, Durability::Full).unwrap(),
        is_away: is_away.clone(),
        commits: commits.clone(),
    };
    let store = start(journal, claimed).unwrap();
    for _ in 0..300 {
        store.health().await.unwrap();
    }
    let made = commits.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(made, 0, "commits for 300 looks at the store's health");
    is_away.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(try_take(&store, "k", HOUR).await.is_err());
    assert!(store.health().await.is_err());
    is_away.store(false, std::sync::atomic::Ordering::SeqCst);
    store.health().await.unwrap();
    take(&store, "k", HOUR).await;
}

#[tokio::test]
async fn health_notices_that_another_program_keeps_the_database_locked() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.health().await.unwrap();
    let database = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    // What was well a moment ago may still count.
    let mut is_noticed = false;
    for _ in 0..200 {
        is_noticed = store.health().await.is_err();
        if is_noticed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(is_noticed);
    database.execute_batch("ROLLBACK").unwrap();
    store.health().await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_given_up_is_undone_even_if_the_disk_fails_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let claimed = Folder::claim(folder.path()).unwrap();
    let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let journal = Flaky {
        journal: SqliteJournal::open(&claimed, Durability::Process).unwrap(),
        is_away: is_away.clone(),
        commits: Arc::default(),
    };
    let store = start(journal, claimed).unwrap();
    let call = claim(None, HOUR);
    let ticket = call.ticket;
    let command = Acquire {
        claim: call,
        wait: None,
    };
    store.acquire(&name("k"), command).await.unwrap();
    is_away.store(true, std::sync::atomic::Ordering::SeqCst);
    store.abandon(&name("k"), ticket);
    assert!(store.health().await.is_err());
    assert!(holder(&store, "k").await.is_some());
    is_away.store(false, std::sync::atomic::Ordering::SeqCst);
    // Nobody asks for it again: it is owed.
    for _ in 0..200 {
        if holder(&store, "k").await.is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the lock is still held");
}

/// What a folder and the files in it allow, by name.
fn modes(folder: &Path) -> Vec<(String, u32)> {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, mode(&entry.path()))
    });
    let mut all: Vec<_> = files.collect();
    all.push((".".to_owned(), mode(folder)));
    all.sort();
    all
}

fn own_only() -> Vec<(String, u32)> {
    let files = ["locks.db", "locks.db-shm", "locks.db-wal", "server.pid"];
    let files = files.map(|name| (name.to_owned(), 0o600));
    [(".".to_owned(), 0o700)].into_iter().chain(files).collect()
}

#[tokio::test]
async fn only_its_own_user_can_read_a_store() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("new");
    let store = open(&folder);
    take(&store, "k", HOUR).await;
    assert_eq!(modes(&folder), own_only());
}

#[tokio::test]
async fn a_store_that_others_could_read_is_closed_to_them() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("old");
    let store = open(&folder);
    take(&store, "k", HOUR).await;
    // As a crash leaves it, with its write-ahead log.
    let kept: Vec<_> = modes(&folder)
        .into_iter()
        .filter(|(name, _)| name.starts_with("locks.db"))
        .map(|(name, _)| (fs::read(folder.join(&name)).unwrap(), folder.join(name)))
        .collect();
    drop(store);
    for (bytes, path) in kept {
        fs::write(path, bytes).unwrap();
    }
    let laxer = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    for (name, _) in modes(&folder) {
        laxer(&folder.join(&name), if name == "." { 0o755 } else { 0o644 }).unwrap();
    }
    let store = open(&folder);
    assert!(holder(&store, "k").await.is_some());
    take(&store, "other", HOUR).await;
    assert_eq!(modes(&folder), own_only());
}

/// It may be a folder that others need, such as `/tmp`.
#[tokio::test]
async fn a_folder_with_files_of_others_keeps_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("theirs"), "x").unwrap();
    let lax = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), lax).unwrap();
    let store = open(folder.path());
    take(&store, "k", HOUR).await;
    let modes = modes(folder.path());
    assert!(modes.contains(&(".".to_owned(), 0o755)), "{modes:?}");
    assert!(modes.contains(&("locks.db".to_owned(), 0o600)), "{modes:?}");
}

#[tokio::test]
async fn closing_waits_until_calls_that_were_given_up_are_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let claimed = Folder::claim(folder.path()).unwrap();
    let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let journal = Flaky {
        journal: SqliteJournal::open(&claimed, Durability::Process).unwrap(),
        is_away: is_away.clone(),
        commits: Arc::default(),
    };
    let store = start(journal, claimed).unwrap();
    let lease = take(&store, "k", HOUR).await;
    let call = claim(Some("again"), HOUR);
    let ticket = call.ticket;
    release(&store, "k").await.unwrap();
    let command = Acquire {
        claim: call,
        wait: None,
    };
    store.acquire(&lease.name, command).await.unwrap();
    is_away.store(true, std::sync::atomic::Ordering::SeqCst);
    store.abandon(&lease.name, ticket);
    let back = async {
        assert!(store.health().await.is_err());
        is_away.store(false, std::sync::atomic::Ordering::SeqCst);
    };
    tokio::join!(store.close(), back);
    assert!(holder(&store, "k").await.is_none());
}

#[tokio::test]
async fn the_secret_of_a_store_lasts_and_is_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let secret = |store: &EmbeddedStore| store.secret().hash("key", "k");
    let first = secret(&open(folder.path()));
    assert_eq!(secret(&open(folder.path())), first);
    let other = tempfile::tempdir().unwrap();
    assert_ne!(secret(&open(other.path())), first);
}
