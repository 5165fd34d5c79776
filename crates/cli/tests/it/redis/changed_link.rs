//! The link to Redis is slow, cut, or loses what goes one way.

use std::thread;
use std::time::{Duration, Instant};

use forrst_testkit::{Lock, Node, Proxy, RedisServer, Traffic, Way, request};
use serde_json::json;

use crate::redis::nodes::{
    HOUR, MINUTE, RECOVERY, SECOND, STORE_TIMEOUT, assert_unavailable, node, until_free,
    until_serving,
};

type Fault = (&'static str, fn(&Proxy));

/// What can happen to a link. Each lasts until it is healed.
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

/// A server behind a link that can be broken, and one beside it that has its own.
struct Stage {
    proxy: Proxy,
    node: Node,
    beside: Node,
    _redis: RedisServer,
}

impl Stage {
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

    /// Runs a check for each fault, after which the link is mended by itself.
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
fn callers_are_told_in_time_and_it_works_again_by_itself() {
    Stage::new().through_each_fault(|stage, name| {
        let lock = Lock::global(name);
        let calls = [
            lock.acquire("a", HOUR),
            lock.acquire_within("b", HOUR, MINUTE),
            lock.status(),
        ];
        for request in calls {
            assert_unavailable(&stage.node, &request);
        }
    });
}

/// What was asked for arrives at Redis, or it does not; either way nobody knows of it, so nobody may have it.
#[test]
fn an_acquire_whose_answer_was_lost_leaves_no_lock_behind() {
    let stage = Stage::new();
    stage.through_each_fault(|stage, name| {
        let lock = Lock::global(name);
        assert_unavailable(&stage.node, &lock.acquire("nobody", HOUR));
        let call = lock.locked_call("nobody", HOUR, true);
        assert_unavailable(&stage.node, &call);
    });
    for (name, _) in FAULTS {
        println!("{name}");
        until_free(&stage.beside, &Lock::global(name), RECOVERY);
    }
}

#[test]
fn a_function_never_runs_without_its_lock() {
    let stage = Stage::new();
    let count = || request("demo.counter", json!({"name": "runs"}));
    let lock = Lock::global("k");
    stage.through_each_fault(|stage, _| {
        assert_unavailable(&stage.node, &lock.around(count(), "nobody", HOUR));
    });
    until_free(&stage.beside, &lock, RECOVERY);
    let answer = stage.node.ask(&lock.around(count(), "somebody", HOUR));
    assert_eq!(answer.body["result"]["value"], 1, "{answer:?}");
}

#[test]
fn a_crowd_is_answered_as_fast_as_one_caller() {
    Stage::new().through_each_fault(|stage, name| {
        let since = Instant::now();
        let crowd: Vec<_> = (0..100)
            .map(|number| {
                let lock = Lock::global(format!("{name} {}", number % 10));
                let owner = number.to_string();
                stage
                    .node
                    .start_ask(lock.acquire_within(&owner, SECOND, MINUTE))
            })
            .collect();
        for caller in crowd {
            let answer = caller.join().unwrap().unwrap();
            assert_eq!(answer.code(), Some("UNAVAILABLE"), "{answer:?}");
        }
        // One after the other, those of a lock would take ten times as long as one.
        let elapsed = since.elapsed();
        assert!(elapsed < STORE_TIMEOUT * 9, "after {elapsed:?}");
    });
}

/// A link that is slow, but not too slow, only takes its time.
#[test]
fn a_slow_link_is_not_a_broken_one() {
    let stage = Stage::new();
    for way in [Way::ToServer, Way::ToClient] {
        stage.proxy.delay(way, Duration::from_millis(150));
    }
    let lock = Lock::global("k");
    for _ in 0..3 {
        let answer = stage.node.ask(&lock.locked_call("patient", HOUR, true));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(stage.beside.ask(&lock.status()).holder(), None);
}

#[test]
fn an_auto_release_that_failed_is_tried_again() {
    for (name, begin) in FAULTS {
        println!("{name}");
        let stage = Stage::new();
        let lock = Lock::global("k");
        let nap = request("demo.sleep", json!({"ms": 1_500}));
        let call = stage.node.start_ask(lock.around(nap, "napper", HOUR));
        stage.beside.until_locked(&lock.full_key());
        begin(&stage.proxy);
        let answer = call.join().unwrap().unwrap();
        assert!(answer.granted().is_some(), "{answer:?}");
        thread::sleep(SECOND);
        stage.proxy.heal();
        until_free(&stage.beside, &lock, RECOVERY);
    }
}
