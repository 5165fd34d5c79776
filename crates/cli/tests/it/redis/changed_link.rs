//! The link to Redis is slow, is cut, or loses everything in one direction.

use std::thread;
use std::time::{Duration, Instant};

use forrst_testkit::{Lock, Node, Proxy, RedisServer, Traffic, Way, request};
use serde_json::json;

use crate::redis::nodes::{
    HOUR, MINUTE, RECOVERY, SECOND, STORE_TIMEOUT, assert_unavailable, node, until_free,
    until_serving,
};

type Fault = (&'static str, fn(&Proxy));

/// The faults of a link. Each lasts until the link is healed.
const FAULTS: [Fault; 5] = [
    ("answers come late", |proxy| {
        proxy.delay(Way::ToClient, MINUTE);
    }),
    ("requests arrive late", |proxy| {
        proxy.delay(Way::ToServer, MINUTE);
    }),
    ("it is cut", |proxy| proxy.refuse(Traffic::All)),
    ("requests are lost", |proxy| {
        proxy.swallow(Way::ToServer, Traffic::All);
    }),
    ("answers are lost", |proxy| {
        proxy.swallow(Way::ToClient, Traffic::All);
    }),
];

/// A server behind a link that can be broken, and one with a link of its own.
struct Setup {
    proxy: Proxy,
    node: Node,
    beside: Node,
    _redis: RedisServer,
}

impl Setup {
    fn new() -> Self {
        let redis = RedisServer::start();
        let proxy = Proxy::start(redis.port());
        Self {
            node: node(&proxy.url()),
            beside: node(&redis.url()),
            proxy,
            _redis: redis,
        }
    }

    /// Runs a check during each fault, heals the link, and waits until the server serves again.
    fn through_each_fault(&self, check: impl Fn(&Self, &str)) {
        for (name, begin) in FAULTS {
            println!("{name}");
            begin(&self.proxy);
            check(self, name);
            self.proxy.heal();
            until_serving(&self.node);
        }
    }
}

#[test]
fn callers_get_an_error_in_time_and_the_server_recovers() {
    Setup::new().through_each_fault(|setup, name| {
        let lock = Lock::global(name);
        let calls = [
            lock.acquire("a", HOUR),
            lock.acquire_within("b", HOUR, MINUTE),
            lock.status(),
        ];
        for request in calls {
            assert_unavailable(&setup.node, &request);
        }
    });
}

/// Whether the command reached Redis or not: the client does not know of a grant, so the lock has to become free.
#[test]
fn an_acquire_whose_answer_was_lost_leaves_no_lock_behind() {
    let setup = Setup::new();
    setup.through_each_fault(|setup, name| {
        let lock = Lock::global(name);
        assert_unavailable(&setup.node, &lock.acquire("nobody", HOUR));
        let call = lock.locked_call("nobody", HOUR, true);
        assert_unavailable(&setup.node, &call);
    });
    for (name, _) in FAULTS {
        println!("{name}");
        until_free(&setup.beside, &Lock::global(name), RECOVERY);
    }
}

#[test]
fn a_function_never_runs_without_its_lock() {
    let setup = Setup::new();
    let count = || request("demo.counter", json!({"name": "runs"}));
    let lock = Lock::global("k");
    setup.through_each_fault(|setup, _| {
        assert_unavailable(&setup.node, &lock.around(count(), "nobody", HOUR));
    });
    until_free(&setup.beside, &lock, RECOVERY);
    let answer = setup.node.ask(&lock.around(count(), "caller", HOUR));
    assert_eq!(answer.body["result"]["value"], 1, "{answer:?}");
}

#[test]
fn many_callers_are_answered_as_fast_as_one() {
    Setup::new().through_each_fault(|setup, name| {
        let since = Instant::now();
        let crowd: Vec<_> = (0..100)
            .map(|number| {
                let lock = Lock::global(format!("{name} {}", number % 10));
                let owner = number.to_string();
                setup
                    .node
                    .start_ask(lock.acquire_within(&owner, SECOND, MINUTE))
            })
            .collect();
        for caller in crowd {
            let answer = caller.join().unwrap().unwrap();
            assert_eq!(answer.code(), Some("UNAVAILABLE"), "{answer:?}");
        }
        // If the callers of a lock waited for one another, they would take ten times as long as one.
        let elapsed = since.elapsed();
        assert!(elapsed < STORE_TIMEOUT * 9, "after {elapsed:?}");
    });
}

#[test]
fn a_slow_link_only_delays_answers() {
    let setup = Setup::new();
    for way in [Way::ToServer, Way::ToClient] {
        setup.proxy.delay(way, Duration::from_millis(150));
    }
    let lock = Lock::global("k");
    for _ in 0..3 {
        let answer = setup.node.ask(&lock.locked_call("patient", HOUR, true));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(setup.beside.ask(&lock.status()).holder(), None);
}

#[test]
fn an_auto_release_that_failed_is_retried() {
    for (name, begin) in FAULTS {
        println!("{name}");
        let setup = Setup::new();
        let lock = Lock::global("k");
        let nap = request("demo.sleep", json!({"ms": 1_500}));
        let call = setup.node.start_ask(lock.around(nap, "napper", HOUR));
        setup.beside.until_locked(&lock.full_key());
        begin(&setup.proxy);
        let answer = call.join().unwrap().unwrap();
        assert!(answer.granted().is_some(), "{answer:?}");
        thread::sleep(SECOND);
        setup.proxy.heal();
        until_free(&setup.beside, &lock, RECOVERY);
    }
}
