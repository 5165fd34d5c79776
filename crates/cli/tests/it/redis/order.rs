//! Waiters of several servers are served in the order of their arrival.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forrst_testkit::{Lock, RedisServer, post, until};

use crate::redis::nodes::{HOUR, MINUTE, Waiter, give_back, node, take};
use crate::redis::protected::Load;

#[test]
fn waiters_of_three_nodes_are_served_in_order_and_without_polling() {
    let redis = RedisServer::start();
    let nodes = [(); 3].map(|()| node(&redis.url()));
    let lock = Lock::global("wanted");
    let held = take(&nodes[0], &lock, "holder", HOUR);
    let (sender, receiver) = mpsc::channel();
    for number in 0..9 {
        let owner = format!("waiter {number}");
        let node = &nodes[number % 3];
        let address = node.address();
        let waiter = Waiter::start(node, &lock, &owner, HOUR);
        let (lock, sender) = (lock.clone(), sender.clone());
        thread::spawn(move || {
            let lease = waiter.answer().unwrap().granted().unwrap();
            sender.send((Instant::now(), lease.clone())).unwrap();
            post(&address, &lock.release(&owner, lease.fence)).unwrap();
        });
    }
    give_back(&nodes[1], &lock, &held);
    let mut last = (Instant::now(), held);
    let mut hand_overs = Vec::new();
    for number in 0..9 {
        let (at, lease) = receiver.recv_timeout(MINUTE).unwrap();
        assert_eq!(lease.owner, format!("waiter {number}"));
        assert!(lease.fence > last.1.fence, "{lease:?} after {last:?}");
        hand_overs.push(at.saturating_duration_since(last.0));
        last = (at, lease);
    }
    // If waiters were only found by polling, all hand-overs would be slow. A busy machine delays only some.
    let quickest = hand_overs.iter().min();
    assert!(
        quickest < Some(&Duration::from_millis(500)),
        "{hand_overs:?}"
    );
}

#[test]
fn a_grant_to_a_waiter_also_warns_that_fences_run_out() {
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
        load.until_every_number_changes();
    }
    assert_eq!(load.unavailable(), 0);
    load.stop();
}
