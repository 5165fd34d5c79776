//! Who waits is served in turn, on whichever server.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forrst_testkit::{Lock, RedisServer, post, until};

use crate::redis::nodes::{HOUR, MINUTE, Waiter, give_back, node, take};
use crate::redis::protected::Load;

#[test]
fn waiters_of_three_nodes_are_served_in_their_order_and_at_once() {
    let redis = RedisServer::start();
    let nodes = [(); 3].map(|()| node(&redis.url()));
    let lock = Lock::global("wanted");
    let held = take(&nodes[0], &lock, "holder", HOUR);
    let (say, hear) = mpsc::channel();
    for number in 0..9 {
        let owner = format!("waiter {number}");
        let node = &nodes[number % 3];
        let address = node.address();
        let waiter = Waiter::start(node, &lock, &owner, HOUR);
        let (lock, say) = (lock.clone(), say.clone());
        thread::spawn(move || {
            let lease = waiter.answer().unwrap().granted().unwrap();
            say.send((Instant::now(), lease.clone())).unwrap();
            post(&address, &lock.release(&owner, lease.fence)).unwrap();
        });
    }
    give_back(&nodes[1], &lock, &held);
    let mut last = (Instant::now(), held);
    let mut hand_overs = Vec::new();
    for number in 0..9 {
        let (at, lease) = hear.recv_timeout(MINUTE).unwrap();
        assert_eq!(lease.owner, format!("waiter {number}"));
        assert!(lease.fence > last.1.fence, "{lease:?} after {last:?}");
        hand_overs.push(at.saturating_duration_since(last.0));
        last = (at, lease);
    }
    // Were waiters only found by looking now and then, all of them would have waited for that; a busy machine delays some.
    let quickest = hand_overs.iter().min();
    assert!(
        quickest < Some(&Duration::from_millis(500)),
        "{hand_overs:?}"
    );
}

#[test]
fn fences_that_run_out_are_warned_about_also_for_one_who_waited() {
    let redis = RedisServer::start();
    let node = node(&redis.url());
    let lock = Lock::global("k");
    let held = take(&node, &lock, "holder", HOUR);
    let set = "local lane = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        lane[2] = 90000000000001
        redis.call('SET', KEYS[1], cmsgpack.pack(lane))";
    redis.cli(&["EVAL", set, "1", "forrst:meta"]);
    let waiter = Waiter::start(&node, &lock, "waiter", HOUR);
    give_back(&node, &lock, &held);
    assert_eq!(waiter.granted_within(MINUTE).fence, 90_000_000_000_001);
    until("there is a warning", || {
        node.errors().contains("running out")
    });
}

#[test]
fn three_nodes_lose_no_update() {
    let redis = RedisServer::start();
    let nodes = [(); 3].map(|()| node(&redis.url()));
    let addresses = nodes.each_ref().map(|node| node.address());
    let load = Load::start(&addresses, 3);
    for _ in 0..5 {
        load.until_every_key_moves();
    }
    assert_eq!(load.unavailable(), 0);
    load.stop();
}
