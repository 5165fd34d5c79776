//! What locks cost in memory: `cargo bench -p forrst-stores --bench locks`.
//!
//! Prints operations per second, hand-overs per second, bytes per held lock and per waiter, and the longest time that an
//! operation took while a million leases expired. Absolute numbers depend on the machine; their ratios hardly do.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forrst_lock::{
    AcquireOutcome, AcquireRequest, Config, EventKind, LeaseGuard, LockKey, LockName, LockService,
    LockStore, Locks, Owner, Ttl,
};
use forrst_stores::MemoryStore;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const MILLION: usize = 1_000_000;

fn main() {
    println!("acquire+release, distinct keys");
    let one = distinct_keys(1);
    println!("  1 thread              {one:>12.0} /s");
    let two = distinct_keys(2);
    println!(
        "  2 threads             {two:>12.0} /s   ({:.2} x)",
        two / one
    );

    println!("hand-overs on one key, 64 waiting");
    println!("  1 thread              {:>12.0} /s", hand_overs(1));
    println!("  2 threads             {:>12.0} /s", hand_overs(2));

    println!("memory");
    println!("  per held lock         {:>12.0} bytes", bytes_per_lock());
    println!("  per waiter, one key   {:>12.0} bytes", bytes_per_waiter());

    println!("a million leases that expire in the same second");
    let (slowest, swept) = mass_expiry();
    println!(
        "  slowest operation     {:>12.1} ms",
        slowest.as_secs_f64() * 1e3
    );
    println!(
        "  all swept after       {:>12.1} ms",
        swept.as_secs_f64() * 1e3
    );
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

fn name(key: &str) -> LockName {
    LockName::global(&LockKey::parse(key).unwrap())
}

fn request(name: LockName, owner: &Owner, ttl: Duration, wait: Option<Duration>) -> AcquireRequest {
    AcquireRequest {
        locks: Locks::exclusive(name),
        owner: owner.clone(),
        caller: None,
        note: None,
        ttl: Ttl::new(ttl).unwrap(),
        wait,
        attempt: None,
    }
}

async fn take(service: &LockService, request: AcquireRequest) -> LeaseGuard {
    match service.acquire(request).await {
        Ok(AcquireOutcome::Granted(guard)) => guard,
        other => panic!("{other:?}"),
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn distinct_keys(threads: usize) -> f64 {
    let per_task = MILLION;
    runtime(threads).block_on(async {
        let service = LockService::new(Arc::new(MemoryStore::new()), Config::default());
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for task in 0..threads {
            let service = service.clone();
            tasks.spawn(async move {
                let owner = Owner::random();
                let names: Vec<_> = (0..1000).map(|i| name(&format!("{task}:{i}"))).collect();
                for round in 0..per_task {
                    let name = names[round % names.len()].clone();
                    let guard = take(&service, request(name, &owner, HOUR, None)).await;
                    black_box(guard.release().await);
                }
            });
        }
        tasks.join_all().await;
        (per_task * threads) as f64 / start.elapsed().as_secs_f64()
    })
}

fn hand_overs(threads: usize) -> f64 {
    let (waiting, rounds) = (65, 5_000);
    runtime(threads).block_on(async {
        let service = LockService::new(Arc::new(MemoryStore::new()), Config::default());
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..waiting {
            let service = service.clone();
            tasks.spawn(async move {
                let owner = Owner::random();
                for _ in 0..rounds {
                    let request = request(name("hot"), &owner, HOUR, Some(HOUR));
                    let guard = take(&service, request).await;
                    // Holds it while the others run, so that they contend.
                    tokio::task::yield_now().await;
                    guard.release().await;
                }
            });
        }
        tasks.join_all().await;
        let handed = service.stats().count(EventKind::GrantedAfterWait);
        handed as f64 / start.elapsed().as_secs_f64()
    })
}

fn bytes_per_lock() -> f64 {
    runtime(2).block_on(async {
        let service = LockService::new(Arc::new(MemoryStore::new()), Config::default());
        let before = resident_bytes();
        for index in 0..MILLION {
            let name = name(&format!("orders.fulfil:order:{index}"));
            let request = request(name, &Owner::random(), HOUR, None);
            take(&service, request).await.keep();
        }
        (resident_bytes() - before) / MILLION as f64
    })
}

fn bytes_per_waiter() -> f64 {
    let crowd = 100_000;
    runtime(2).block_on(async {
        let config = Config {
            max_waiters_per_key: crowd,
            ..Config::default()
        };
        let service = LockService::new(Arc::new(MemoryStore::new()), config);
        let held = take(&service, request(name("hot"), &Owner::random(), HOUR, None)).await;
        let before = resident_bytes();
        let mut tasks = JoinSet::new();
        for _ in 0..crowd {
            let service = service.clone();
            tasks.spawn(async move {
                let request = request(name("hot"), &Owner::random(), HOUR, Some(HOUR));
                take(&service, request).await.release().await;
            });
        }
        while service.waiting() < crowd {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let bytes = (resident_bytes() - before) / crowd as f64;
        held.release().await;
        tasks.join_all().await;
        bytes
    })
}

fn mass_expiry() -> (Duration, Duration) {
    runtime(2).block_on(async {
        let store = Arc::new(MemoryStore::new());
        let service = LockService::new(store.clone(), Config::default());
        let ttl = Duration::from_secs(20);
        for index in 0..MILLION {
            let request = request(name(&format!("{index}")), &Owner::random(), ttl, None);
            take(&service, request).await.keep();
        }
        assert_eq!(
            store.held(),
            MILLION,
            "the machine is too slow for this ttl"
        );
        tokio::time::sleep(ttl - Duration::from_secs(5)).await;
        let owner = Owner::random();
        let mut slowest = Duration::ZERO;
        let mut swept = None;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(12) {
            let before = Instant::now();
            let request = request(name("probe"), &owner, HOUR, None);
            take(&service, request).await.release().await;
            slowest = slowest.max(before.elapsed());
            let held = store.held();
            if held < MILLION && swept.is_none() {
                swept = Some((Instant::now(), Duration::ZERO));
            }
            if let (0, Some((since, took))) = (held, &mut swept)
                && took.is_zero()
            {
                *took = since.elapsed();
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        store.health().await.unwrap();
        (slowest, swept.map(|(_, took)| took).unwrap_or_default())
    })
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or_default() * 1024.0
}
