//! What one server tells another through a channel of Redis is lost; the lock is handed over all the same.

use std::time::{Duration, Instant};

use forrst_testkit::{Lock, Node, Proxy, RedisServer, Traffic, Way};

use crate::redis::nodes::{HOUR, Waiter, give_back, node, take};

/// Longer than the wait for a message that does not come, shorter than anything that is not minded at all.
const BOUND: Duration = Duration::from_secs(4);

/// One server that waits for locks, behind a link whose channel can be broken, and one that holds them.
struct Stage {
    _redis: RedisServer,
    proxy: Proxy,
    waits: Node,
    holds: Node,
    lock: Lock,
}

impl Stage {
    fn new() -> Self {
        let redis = RedisServer::start();
        let proxy = Proxy::start(redis.port());
        Self {
            waits: node(&proxy.url()),
            holds: node(&redis.url()),
            lock: Lock::global("k"),
            _redis: redis,
            proxy,
        }
    }

    /// How long it takes until the other server's waiter has the lock.
    #[track_caller]
    fn hand_over(&self) -> Duration {
        let held = take(&self.holds, &self.lock, "holder", HOUR);
        let waiter = Waiter::start(&self.waits, &self.lock, "waiter", HOUR);
        give_back(&self.holds, &self.lock, &held);
        let since = Instant::now();
        let lease = waiter.granted_within(BOUND);
        let took = since.elapsed();
        println!("handed over after {took:?}");
        give_back(&self.waits, &self.lock, &lease);
        took
    }
}

fn handed_over_although(break_channel: impl Fn(&Proxy)) {
    let stage = Stage::new();
    break_channel(&stage.proxy);
    for _ in 0..3 {
        stage.hand_over();
    }
}

#[test]
fn a_channel_that_is_cut_delays_a_hand_over_by_seconds_at_most() {
    handed_over_although(|proxy| proxy.refuse(Traffic::Subscriptions));
}

#[test]
fn a_channel_that_falls_silent_delays_a_hand_over_by_seconds_at_most() {
    handed_over_although(|proxy| proxy.swallow(Way::ToClient, Traffic::Subscriptions));
}

#[test]
fn a_channel_that_is_back_is_used_again() {
    for (name, begin) in [
        (
            "cut",
            (|proxy| proxy.cut(Traffic::Subscriptions)) as fn(&Proxy),
        ),
        ("refused", |proxy| proxy.refuse(Traffic::Subscriptions)),
        ("silent", |proxy| {
            proxy.swallow(Way::ToClient, Traffic::Subscriptions);
        }),
    ] {
        println!("{name}");
        let stage = Stage::new();
        begin(&stage.proxy);
        stage.hand_over();
        stage.proxy.heal();
        // Without the channel, none of them would come so soon.
        let soon = Duration::from_millis(250);
        let hand_overs = std::iter::repeat_with(|| stage.hand_over()).take(10);
        let quick = hand_overs.filter(|took| *took < soon).take(2).count();
        assert_eq!(quick, 2, "the channel is still not used");
    }
}
