//! Messages between servers through a channel of Redis are lost; locks are handed over all the same.

use std::time::{Duration, Instant};

use forrst_testkit::{Lock, Node, Proxy, RedisServer, Traffic, Way};

use crate::redis::nodes::{HOUR, Waiter, give_back, node, take};

/// Longer than a server waits for a message that does not come, and shorter than the wait of the call.
const BOUND: Duration = Duration::from_secs(4);

/// A server whose callers wait, behind a link whose channel can be broken, and a server whose callers hold locks.
struct Setup {
    _redis: RedisServer,
    proxy: Proxy,
    waits: Node,
    holds: Node,
    lock: Lock,
}

impl Setup {
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

    /// Hands a lock over from one server to the other, and returns how long that took.
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

fn check_hand_overs(break_channel: impl Fn(&Proxy)) {
    let setup = Setup::new();
    break_channel(&setup.proxy);
    for _ in 0..3 {
        setup.hand_over();
    }
}

#[test]
fn a_channel_that_is_cut_delays_a_hand_over_by_seconds_at_most() {
    check_hand_overs(|proxy| proxy.refuse(Traffic::Subscriptions));
}

#[test]
fn a_channel_that_falls_silent_delays_a_hand_over_by_seconds_at_most() {
    check_hand_overs(|proxy| proxy.swallow(Way::ToClient, Traffic::Subscriptions));
}

#[test]
fn a_channel_that_is_restored_is_used_again() {
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
        let setup = Setup::new();
        begin(&setup.proxy);
        setup.hand_over();
        setup.proxy.heal();
        // Without the channel, no hand-over would be as quick.
        let soon = Duration::from_millis(250);
        let hand_overs = std::iter::repeat_with(|| setup.hand_over()).take(50);
        let quick = hand_overs.filter(|took| *took < soon).take(2).count();
        assert_eq!(quick, 2, "the channel is still not used");
    }
}
