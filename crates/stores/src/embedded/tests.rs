//! Restarts, reboots, full disks, wrong clocks and damaged files of the embedded store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_lock::model::{Acquire, Acquired, Claim, LeaseRef, NotHeld, Wait, Withdrawn};
use forrst_lock::{
    Attempt, Caller, Fence, Fences, Lease, LockKey, LockStoreExt, Locks, Note, Owner, Share,
    Timestamp, Ttl,
};

use super::clock::{DurableClock, Moment, boot_id};
use super::sqlite::FORMAT;
use super::*;
use crate::journal::Changes;

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn owner(owner: &str) -> Owner {
    Owner::parse(owner).unwrap()
}

const HOUR: Duration = Duration::from_secs(3600);

/// A call of the owner `a` for some locks.
fn call(locks: Locks, ttl: Duration) -> Acquire {
    Acquire {
        claim: Claim {
            locks,
            owner: owner("a"),
            caller: None,
            note: None,
            attempt: None,
            ttl: Ttl::new(ttl).unwrap(),
        },
        ticket: Ticket::random(),
        node: None,
        wait: None,
    }
}

fn call_for(key: &str) -> Acquire {
    call(Locks::exclusive(name(key)), HOUR)
}

async fn try_take(store: &EmbeddedStore, key: &str, ttl: Duration) -> Result<Lease, StoreError> {
    let acquire = call(Locks::exclusive(name(key)), ttl);
    match store.acquire(acquire).await?.outcome {
        Acquired::Granted(lease) => Ok(lease),
        other => panic!("{key} should be free: {other:?}"),
    }
}

async fn take(store: &EmbeddedStore, key: &str, ttl: Duration) -> Lease {
    try_take(store, key, ttl).await.unwrap()
}

fn held(key: &str) -> LeaseRef {
    LeaseRef {
        name: name(key),
        owner: owner("a"),
        fence: None,
    }
}

async fn release(store: &EmbeddedStore, key: &str) -> Result<Lease, NotHeld> {
    store.release(held(key)).await.unwrap().outcome
}

async fn holder(store: &EmbeddedStore, key: &str) -> Option<Lease> {
    let answer = store.inspect(&name(key)).await.unwrap();
    answer.outcome.holder().cloned()
}

/// With a timeout that no test reaches, because a busy machine may delay anything.
fn options(durability: Durability) -> EmbeddedOptions {
    EmbeddedOptions {
        durability,
        timeout: Duration::from_secs(60),
        ..EmbeddedOptions::default()
    }
}

fn start(
    journal: impl Journal,
    start: Start,
    folder: Folder,
) -> Result<EmbeddedStore, EmbeddedError> {
    let options = options(Durability::Process);
    EmbeddedStore::start(journal, start, folder, &options, Secret::random())
}

fn load(folder: &Folder) -> (SqliteJournal, Start) {
    let clocks = Box::new(MachineClocks::new());
    super::load(folder, &options(Durability::Process), clocks).unwrap()
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, &options(Durability::Process)).unwrap()
}

#[tokio::test]
async fn leases_and_fences_survive_a_restart() {
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
    assert_eq!(holder(&store, "released").await, None);
    assert_eq!(holder(&store, "last").await, Some(last.clone()));
    assert!(take(&store, "short", HOUR).await.fence > last.fence);
}

#[tokio::test]
async fn a_repeated_attempt_gets_its_lease_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let acquire = async |store: EmbeddedStore| {
        let mut acquire = call_for("k");
        acquire.claim.attempt = Some(Attempt::parse("try 1").unwrap());
        store.acquire(acquire).await.unwrap().outcome
    };
    let first = acquire(open(folder.path())).await;
    assert!(matches!(first, Acquired::Granted(_)));
    assert_eq!(acquire(open(folder.path())).await, first);
}

#[tokio::test]
async fn the_fence_of_a_released_lock_is_not_granted_again_after_a_restart() {
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

#[tokio::test]
async fn leases_of_every_kind_survive_with_all_their_fields() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let limit = Share::limit(2).unwrap();
    let set = [("a", Share::EXCLUSIVE), ("b", Share::SHARED), ("c", limit)];
    let set = set.map(|(key, share)| (name(key), share)).to_vec();
    let mut leases = Vec::new();
    for locks in [
        Locks::new(set).unwrap(),
        Locks::one(name("b"), Share::SHARED),
        Locks::one(name("c"), limit),
        Locks::exclusive(name("d")),
    ] {
        let mut acquire = call(locks, HOUR);
        acquire.claim.owner = Owner::parse("o\"wn\\er ü").unwrap();
        acquire.claim.note = Some(Note::parse("for people").unwrap());
        acquire.claim.caller = Some(Caller::parse("key 1").unwrap());
        match store.acquire(acquire).await.unwrap().outcome {
            Acquired::Granted(lease) => leases.push(lease),
            other => panic!("{other:?}"),
        }
    }
    drop(store);
    let store = open(folder.path());
    for lease in &leases {
        for name in lease.locks.names() {
            let status = store.inspect(name).await.unwrap().outcome;
            assert!(status.holders.contains(lease), "{lease:?} of {status:?}");
        }
    }
    // It is still one lease: released by any of its keys, and as a whole.
    let of_set = LeaseRef {
        name: name("c"),
        owner: leases[0].owner.clone(),
        fence: Some(leases[0].fence),
    };
    let released = store.release(of_set).await.unwrap().outcome;
    assert_eq!(released, Ok(leases[0].clone()));
    drop(store);
    let store = open(folder.path());
    assert_eq!(holder(&store, "a").await, None);
    assert_eq!(holder(&store, "b").await, Some(leases[1].clone()));
    assert_eq!(holder(&store, "c").await, Some(leases[2].clone()));
}

#[tokio::test]
async fn a_withdrawn_attempt_stays_so_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let attempt = Attempt::parse("try 1").unwrap();
    let store = open(folder.path());
    let key = name("k");
    let withdrawn = store.withdraw(&key, owner("a"), attempt.clone()).await;
    assert_eq!(withdrawn.unwrap().outcome, Withdrawn::Unknown);
    drop(store);
    let store = open(folder.path());
    let mut acquire = call_for("k");
    acquire.claim.attempt = Some(attempt);
    let acquired = store.acquire(acquire).await.unwrap().outcome;
    assert_eq!(acquired, Acquired::Withdrawn);
}

/// Grants until the fences are ahead of the time, so that the time alone does not make the next ones larger.
async fn take_many(store: &EmbeddedStore, key: &str) -> Fence {
    let mut last = None;
    for _ in 0..300 {
        let lease = take(store, key, HOUR).await;
        assert!(Some(lease.fence) > last);
        last = Some(lease.fence);
        release(store, key).await.unwrap();
    }
    last.unwrap()
}

/// Seconds since 1970; after the epoch of the fences.
const LATELY: u64 = Fences::EPOCH_MILLIS / 1000 + 1_000_000;

#[tokio::test]
async fn fences_go_on_after_the_folder_was_lost() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("store");
    let clocks = SetClocks::default();
    clocks.set(LATELY, 50, "boot");
    let before = take_many(&open_at(&folder, &clocks, "boot"), "k").await;
    // At the same time, the fences in the file count.
    let again = take_many(&open_at(&folder, &clocks, "boot"), "k").await;
    assert!(again > before);
    fs::remove_dir_all(&folder).unwrap();
    clocks.set(LATELY + 1, 51, "boot");
    let store = open_at(&folder, &clocks, "boot");
    assert!(take(&store, "k", HOUR).await.fence > again);
}

#[tokio::test]
async fn fences_go_on_after_an_old_backup_was_restored() {
    let parent = tempfile::tempdir().unwrap();
    let (folder, backup) = (parent.path().join("store"), parent.path().join("backup"));
    let clocks = SetClocks::default();
    clocks.set(LATELY, 50, "boot");
    let store = open_at(&folder, &clocks, "boot");
    take_many(&store, "k").await;
    // As the documentation says, while the server runs.
    fs::create_dir(&backup).unwrap();
    let database = rusqlite::Connection::open(folder.join("locks.db")).unwrap();
    let copy = backup.join("locks.db");
    let vacuum = "VACUUM INTO ?";
    database.execute(vacuum, [copy.to_str().unwrap()]).unwrap();
    drop(database);
    clocks.set(LATELY + 3600, 3650, "boot");
    let last = take_many(&store, "k").await;
    drop(store);
    // An hour later, on another machine.
    clocks.set(LATELY + 3601, 7, "another machine");
    let store = open_at(&backup, &clocks, "another machine");
    assert!(take_many(&store, "k").await > last);
}

#[test]
fn a_second_process_gets_the_pid_of_the_first_one() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path());
    let error = EmbeddedStore::open(folder.path(), &EmbeddedOptions::default()).unwrap_err();
    assert!(matches!(error, EmbeddedError::InUse { .. }));
    let pid = format!("pid {}", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
}

fn open_error(folder: &Path) -> EmbeddedError {
    EmbeddedStore::open(folder, &EmbeddedOptions::default()).expect_err("should not open")
}

#[test]
fn a_damaged_store_is_refused_and_left_as_it_is() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("empty", |file| fs::write(file, "").unwrap()),
        ("text", |file| fs::write(file, "not a database").unwrap()),
        ("missing", |file| fs::remove_file(file).unwrap()),
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
    for (how, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()));
        let file = folder.path().join("locks.db");
        damage(&file);
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
fn an_invalid_row_is_damage() {
    let lease = |fence: i64, caller: &str, locks: &str| {
        format!(
            "INSERT INTO leases VALUES ('lock:k', {fence}, 'a', {caller}, NULL, NULL, 0, 99999999999999, {locks});"
        )
    };
    let locks = |fence, locks: &str| lease(fence, "NULL", &format!("'{locks}'"));
    for row in [
        lease(5, "NULL", "'not JSON'"),
        lease(-5, "NULL", "NULL"),
        lease(0, "NULL", "NULL"),
        lease(5, "''", "NULL"),
        lease(5, "x'00'", "NULL"),
        locks(5, r#"{"lock:other":"exclusive"}"#),
        locks(5, r#"{"lock:a":"shared","lock:k":"shared"}"#),
        locks(5, r#"{"lock:k":"both"}"#),
        locks(5, r#"{"lock:k":0}"#),
        lease(5, "NULL", "NULL") + &lease(6, "NULL", "NULL"),
        locks(5, r#"{"lock:k":2}"#) + &locks(6, r#"{"lock:k":3}"#),
        lease(5, "NULL", "NULL") + &locks(6, r#"{"lock:k":"shared","lock:other":"shared"}"#),
        "INSERT INTO withdrawals VALUES ('lock:k', 'a', '', 0)".to_owned(),
    ] {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()));
        let file = folder.path().join("locks.db");
        let database = rusqlite::Connection::open(&file).unwrap();
        database.execute_batch(&row).unwrap();
        drop(database);
        let error = open_error(folder.path());
        assert!(
            matches!(error, EmbeddedError::Damaged { .. }),
            "{row}: {error}"
        );
        assert!(error.to_string().contains("lock:k"), "{error}");
    }
}

#[test]
fn another_format_and_a_foreign_database_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join("locks.db");
    let set = |pragma: &str, value: i64| {
        let database = rusqlite::Connection::open(&file).unwrap();
        database.pragma_update(None, pragma, value).unwrap();
    };
    set("user_version", FORMAT + 1);
    let error = open_error(folder.path());
    assert!(
        matches!(error, EmbeddedError::NewerFormat { found, known: FORMAT, .. } if found == FORMAT + 1),
        "{error}"
    );
    for older in 1..FORMAT {
        set("user_version", older);
        let error = open_error(folder.path());
        assert!(
            matches!(error, EmbeddedError::OlderFormat { found, known: FORMAT, .. } if found == older),
            "{error}"
        );
        assert!(
            error.to_string().contains("move the folder away"),
            "{error}"
        );
    }
    set("user_version", FORMAT);
    drop(open(folder.path()));
    set("application_id", 7);
    assert!(matches!(
        open_error(folder.path()),
        EmbeddedError::Damaged { .. }
    ));
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
    let (journal, loaded) = load(&claimed);
    journal.limit_pages(20).unwrap();
    let store = start(journal, loaded, claimed).unwrap();
    let kept = take(&store, "kept", HOUR).await;
    let filling = "x".repeat(400);
    let mut taken = Vec::new();
    let failed = loop {
        let key = format!("{filling}{}", taken.len());
        match try_take(&store, &key, HOUR).await {
            Ok(lease) => taken.push(lease),
            Err(_) => break key,
        }
        assert!(taken.len() < 1_000, "the disk should be full");
    };
    // The lock that failed is not held, and the earlier one still is.
    assert_eq!(holder(&store, &failed).await, None);
    assert_eq!(holder(&store, "kept").await, Some(kept.clone()));
    assert!(store.health().await.is_ok(), "the probe needs no new page");
    assert!(try_take(&store, &failed, HOUR).await.is_err(), "still full");
    // Releases free some space.
    for lease in taken.iter().take(10) {
        store
            .force_release(lease.name(), None)
            .await
            .unwrap()
            .outcome
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
        Box::new(ClocksOfBoot(self.clone(), boot))
    }
}

struct ClocksOfBoot(SetClocks, String);

impl Clocks for ClocksOfBoot {
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
    let clock = DurableClock::resume(clocks.set(1_000, 50, "boot"), None, IDLE);
    assert_eq!(clock.now(), second(1_000));
    for wall in [0, 5_000, 1_010] {
        clocks.set(wall, 60, "boot");
        assert_eq!(clock.now(), second(1_010), "the wall clock says {wall}");
    }
}

#[test]
fn after_a_restart_leases_have_their_remaining_time() {
    let clocks = SetClocks::default();
    let last = Moment {
        now: second(1_000),
        since_boot: Duration::from_secs(50),
        boot: "boot".to_owned(),
    };
    // Thirty seconds later by the boot clock.
    for wall in [10, 1_030, 90_000] {
        let clock = DurableClock::resume(clocks.set(wall, 80, "boot"), Some(&last), BUSY);
        assert_eq!(clock.now(), second(1_030), "the wall clock says {wall}");
    }
    // With nothing held, the clock jumps ahead to the wall clock, but never back.
    let clock = DurableClock::resume(clocks.set(90_000, 80, "boot"), Some(&last), IDLE);
    assert_eq!(clock.now(), second(90_000));
    let clock = DurableClock::resume(clocks.set(10, 80, "boot"), Some(&last), IDLE);
    assert_eq!(clock.now(), second(1_030));
}

#[test]
fn after_a_reboot_time_is_never_before_the_last_commit() {
    let clocks = SetClocks::default();
    let last = Moment {
        now: second(1_000),
        since_boot: Duration::from_secs(50),
        boot: "first".to_owned(),
    };
    let clock = DurableClock::resume(clocks.set(2_000, 5, "second"), Some(&last), BUSY);
    assert_eq!(clock.now(), second(2_000));
    let clock = DurableClock::resume(clocks.set(10, 5, "second"), Some(&last), BUSY);
    assert_eq!(clock.now(), second(1_000));
    clocks.set(10, 8, "second");
    assert_eq!(clock.now(), second(1_003));
}

/// A store of `folder` that reads these clocks.
fn open_at(folder: &Path, clocks: &SetClocks, boot: &'static str) -> EmbeddedStore {
    let claimed = Folder::claim(folder).unwrap();
    let clocks = Box::new(ClocksOfBoot(clocks.clone(), boot.to_owned()));
    let options = options(Durability::Process);
    let (journal, loaded) = super::load(&claimed, &options, clocks).unwrap();
    start(journal, loaded, claimed).unwrap()
}

async fn extend(store: &EmbeddedStore, key: &str) -> Result<Lease, NotHeld> {
    let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
    store.extend(held(key), ttl).await.unwrap().outcome
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
    // How much time has passed is unknown: no other owner gets it before it expires.
    assert!(holder(&store, "k").await.is_some());
    clocks.set(910, 15, "second");
    assert!(holder(&store, "k").await.is_none());
    take(&store, "k", Duration::from_secs(10)).await;
    extend(&store, "k").await.unwrap();
    drop(store);
    // With a clock that is not slow, a lease survives a reboot and can be extended.
    clocks.set(1_015, 1, "third");
    let store = open_at(folder.path(), &clocks, "third");
    extend(&store, "k").await.unwrap();
}

#[tokio::test]
async fn an_owner_with_several_uncertain_leases_has_to_name_one() {
    let folder = tempfile::tempdir().unwrap();
    let clocks = SetClocks::default();
    clocks.set(1_000, 50, "first");
    let store = open_at(folder.path(), &clocks, "first");
    let shared = || call(Locks::one(name("k"), Share::SHARED), HOUR);
    for _ in 0..2 {
        let acquired = store.acquire(shared()).await.unwrap().outcome;
        assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
    }
    drop(store);
    clocks.set(900, 5, "second");
    let store = open_at(folder.path(), &clocks, "second");
    assert_eq!(extend(&store, "k").await, Err(NotHeld::Ambiguous));
    let one = holder(&store, "k").await.unwrap();
    let held = LeaseRef {
        fence: Some(one.fence),
        ..held("k")
    };
    let ttl = Ttl::new(HOUR).unwrap();
    let extended = store.extend(held, ttl).await.unwrap().outcome;
    assert_eq!(extended, Err(NotHeld::NotFound));
}

#[tokio::test]
async fn fences_of_a_new_store_are_larger_than_those_of_a_lost_one_whose_clock_was_ahead() {
    let (lost, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clocks = SetClocks::default();
    clocks.set(1_800_000_000, 50, "boot");
    let store = open_at(lost.path(), &clocks, "boot");
    // The lost store started with the margin, too.
    clocks.set(1_800_000_050, 150, "boot");
    let before = take(&store, "k", HOUR).await;
    drop(store);
    let store = open_at(new.path(), &clocks, "boot");
    let after = take(&store, "k", HOUR).await;
    assert!(after.fence > before.fence, "{after:?} {before:?}");
}

/// An answer from before the reboot stays true after it.
#[tokio::test]
async fn a_lease_that_was_shown_as_expired_is_not_revived_by_a_reboot() {
    for is_inspected in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let clocks = SetClocks::default();
        clocks.set(1_000, 50, "first");
        let store = open_at(folder.path(), &clocks, "first");
        take(&store, "k", Duration::from_secs(10)).await;
        clocks.set(1_010, 60, "first");
        if is_inspected {
            assert!(holder(&store, "k").await.is_none());
        } else {
            assert_eq!(extend(&store, "k").await, Err(NotHeld::NotFound));
        }
        drop(store);
        clocks.set(900, 5, "second");
        let store = open_at(folder.path(), &clocks, "second");
        assert!(
            holder(&store, "k").await.is_none(),
            "inspected: {is_inspected}"
        );
        take(&store, "k", Duration::from_secs(10)).await;
    }
}

#[test]
fn an_unknown_boot_id_is_random_and_the_same_for_the_whole_process() {
    let unknown = boot_id(Path::new("/nowhere/boot_id"));
    assert_ne!(unknown, boot_id(Path::new("/nowhere/boot_id")));
    assert!(
        !unknown.contains(&std::process::id().to_string()),
        "{unknown}"
    );
    assert_eq!(MachineClocks::new().boot(), MachineClocks::new().boot());
}

/// A torn write is a transaction that was never answered: it is lost as a whole, and all earlier ones are there.
#[tokio::test]
async fn a_torn_write_loses_only_what_was_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut last = take(&store, "before", HOUR).await;
    for key in 1..20 {
        let lease = take(&store, &format!("before {key}"), HOUR).await;
        // Keys of different partitions may have the same fence.
        last.fence = last.fence.max(lease.fence);
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
        let (_, loaded) = load(&claimed);
        let has_torn = loaded.table.get(torn.name()).is_some();
        let held = 20 + usize::from(has_torn);
        assert_eq!(loaded.table.held(), held, "cut at {length}");
        let fences = [Some(last.fence), has_torn.then_some(torn.fence)];
        let last = fences.into_iter().max().flatten();
        assert_eq!(loaded.last_fence, last, "cut at {length}");
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

fn rows(folder: &Path) -> i64 {
    let database = rusqlite::Connection::open(folder.join("locks.db")).unwrap();
    let count = "SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM withdrawals)";
    database.query_row(count, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn ended_leases_and_expired_withdrawals_leave_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let clocks = SetClocks::default();
    clocks.set(1_000, 50, "boot");
    let store = open_at(folder.path(), &clocks, "boot");
    for key in ["released", "expired", "left", "settled"] {
        take(&store, key, Duration::from_secs(10)).await;
    }
    let attempt = Attempt::parse("try").unwrap();
    let key = name("withdrawn");
    let withdrawn = store.withdraw(&key, owner("a"), attempt).await.unwrap();
    assert_eq!(withdrawn.outcome, Withdrawn::Unknown);
    release(&store, "released").await.unwrap();
    assert_eq!(rows(folder.path()), 4);
    clocks.set(1_010, 60, "boot");
    store.settle(&name("settled")).await.unwrap();
    store.sweep(2).await.unwrap();
    assert_eq!(
        rows(folder.path()),
        1,
        "the withdrawal is remembered longer"
    );
    clocks.set(1_100, 150, "boot");
    store.sweep(10).await.unwrap();
    assert_eq!(rows(folder.path()), 0);
    take(&store, "k", Duration::from_secs(10)).await;
    drop(store);
    // A lease that expires while the store is closed.
    clocks.set(1_200, 250, "boot");
    let store = open_at(folder.path(), &clocks, "boot");
    assert_eq!(rows(folder.path()), 1);
    store.sweep(10).await.unwrap();
    assert_eq!(rows(folder.path()), 0);
}

/// A journal on a disk that fails when the test says so.
struct Flaky {
    journal: SqliteJournal,
    disk: Disk,
}

#[derive(Clone, Default)]
struct Disk {
    is_failing: Arc<AtomicBool>,
    commits: Arc<AtomicUsize>,
}

impl Disk {
    fn fail(&self) {
        self.is_failing.store(true, Ordering::SeqCst);
    }

    fn recover(&self) {
        self.is_failing.store(false, Ordering::SeqCst);
    }
}

impl Journal for Flaky {
    type Error = EmbeddedError;

    fn now(&self) -> Timestamp {
        self.journal.now()
    }

    fn commit(&mut self, changes: &Changes<'_>) -> Result<Timestamp, EmbeddedError> {
        if self.disk.is_failing.load(Ordering::SeqCst) {
            return Err(rusqlite::Error::ExecuteReturnedResults.into());
        }
        self.disk.commits.fetch_add(1, Ordering::SeqCst);
        self.journal.commit(changes)
    }

    fn probe(&mut self) -> Result<(), EmbeddedError> {
        self.journal.probe()
    }

    fn tidy(&mut self) {}
}

/// A store on a disk that fails when the test says so.
fn open_flaky(folder: &Path) -> (EmbeddedStore, Disk) {
    let claimed = Folder::claim(folder).unwrap();
    let (journal, loaded) = load(&claimed);
    let disk = Disk::default();
    let journal = Flaky {
        journal,
        disk: disk.clone(),
    };
    (start(journal, loaded, claimed).unwrap(), disk)
}

#[tokio::test]
async fn health_makes_no_commit_and_notices_a_store_that_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let (store, disk) = open_flaky(folder.path());
    for _ in 0..300 {
        store.health().await.unwrap();
    }
    let made = disk.commits.load(Ordering::SeqCst);
    assert_eq!(made, 0, "commits for 300 health checks");
    disk.fail();
    assert!(try_take(&store, "k", HOUR).await.is_err());
    assert!(store.health().await.is_err());
    disk.recover();
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
    // A result from a moment ago may be reused.
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
async fn waiters_keep_their_positions_while_another_program_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    take(&store, "k", HOUR).await;
    let mut waiting = call_for("k");
    waiting.wait = Some(Wait {
        timeout: HOUR,
        max_queue: 10,
        rejoin: None,
    });
    let queued = store.acquire(waiting).await.unwrap().outcome;
    assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");
    let database = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let released = store.release(held("k")).await;
    assert!(
        matches!(released, Err(StoreError::MaybeDone(_))),
        "{released:?}"
    );
    assert_eq!(store.queue(&name("k"), 10).await.unwrap().outcome.len(), 1);
    database.execute_batch("ROLLBACK").unwrap();
    release(&store, "k").await.unwrap();
    assert_eq!(store.queue(&name("k"), 10).await.unwrap().outcome.len(), 0);
}

#[tokio::test]
async fn a_call_that_is_given_up_while_the_disk_fails_is_rolled_back_later() {
    let folder = tempfile::tempdir().unwrap();
    let (store, disk) = open_flaky(folder.path());
    let call = call_for("k");
    let ticket = call.ticket;
    store.acquire(call).await.unwrap();
    disk.fail();
    store.abandon(&name("k"), ticket);
    assert!(store.health().await.is_err());
    assert!(holder(&store, "k").await.is_some());
    disk.recover();
    // The engine retries the rollback without another message.
    for _ in 0..200 {
        if holder(&store, "k").await.is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the lock is still held");
}

/// The modes of a folder and of the files in it, by name.
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
async fn only_the_user_of_the_server_can_read_a_store() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("new");
    let store = open(&folder);
    take(&store, "k", HOUR).await;
    assert_eq!(modes(&folder), own_only());
}

#[tokio::test]
async fn a_store_that_other_users_could_read_is_closed_to_them() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("old");
    let store = open(&folder);
    take(&store, "k", HOUR).await;
    // As after a crash, with its write-ahead log.
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

/// Other users may need the folder, such as `/tmp`.
#[tokio::test]
async fn a_folder_with_other_files_keeps_its_mode() {
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
async fn closing_waits_for_pending_rollbacks() {
    let folder = tempfile::tempdir().unwrap();
    let (store, disk) = open_flaky(folder.path());
    let call = call_for("k");
    let ticket = call.ticket;
    store.acquire(call).await.unwrap();
    disk.fail();
    store.abandon(&name("k"), ticket);
    let back = async {
        assert!(store.health().await.is_err());
        disk.recover();
    };
    tokio::join!(store.close(), back);
    assert!(holder(&store, "k").await.is_none());
}

#[tokio::test]
async fn each_store_keeps_its_own_secret() {
    let folder = tempfile::tempdir().unwrap();
    let secret = |store: &EmbeddedStore| store.secret().hash("key", "k");
    let first = secret(&open(folder.path()));
    assert_eq!(secret(&open(folder.path())), first);
    let other = tempfile::tempdir().unwrap();
    assert_ne!(secret(&open(other.path())), first);
}
