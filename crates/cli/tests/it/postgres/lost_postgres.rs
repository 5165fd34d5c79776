//! Postgres is paused or killed under load, and servers die.

use std::thread;
use std::time::{Duration, Instant};

use forrst_testkit::{Lock, PostgresServer, Proxy, Traffic, Way, request, until};
use serde_json::json;

use crate::redis::nodes::{
    HOUR, MARGIN, MINUTE, RECOVERY, SECOND, Waiter, assert_unavailable, give_back, node, take,
    until_free, until_serving,
};
use crate::redis::protected::Load;

#[test]
fn no_update_is_lost_while_postgres_is_killed_and_paused() {
    let mut postgres = PostgresServer::start();
    let nodes = [(); 2].map(|()| node(&postgres.url()));
    let addresses = nodes.each_ref().map(|node| node.address());
    let load = Load::start(&addresses, 3);
    for _ in 0..3 {
        postgres.restart();
        load.until_every_number_changes();
    }
    for still in [500, 2_500] {
        postgres.pause();
        thread::sleep(Duration::from_millis(still));
        postgres.resume();
        load.until_every_number_changes();
    }
    for _ in 0..3 {
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'forrst'",
        );
        load.until_every_number_changes();
    }
    postgres.kill();
    thread::sleep(2 * SECOND);
    postgres.restart();
    load.until_every_number_changes();
    assert!(load.unavailable() > 0);
    load.stop();
}

#[test]
fn no_update_is_lost_on_a_link_that_is_cut_delayed_and_silent() {
    let postgres = PostgresServer::start();
    let proxies = [(); 2].map(|()| Proxy::start(postgres.port()));
    let nodes = proxies.each_ref().map(|proxy| node(&proxy.postgres_url()));
    let addresses = nodes.each_ref().map(|node| node.address());
    let load = Load::start(&addresses, 3);
    for proxy in &proxies {
        proxy.cut(Traffic::All);
        load.until_every_number_changes();
        proxy.delay(Way::ToServer, Duration::from_millis(20));
        proxy.delay(Way::ToClient, Duration::from_millis(20));
        load.until_every_number_changes();
        proxy.heal();
        proxy.lose_answers(3);
        load.until_every_number_changes();
        proxy.swallow(Way::ToClient, Traffic::All);
        thread::sleep(2 * SECOND);
        proxy.heal();
        proxy.cut(Traffic::All);
        load.until_every_number_changes();
        proxy.hold_requests();
        thread::sleep(SECOND);
        proxy.pass();
        proxy.cut(Traffic::All);
        proxy.deliver_requests();
        load.until_every_number_changes();
    }
    load.stop();
}

#[test]
fn while_postgres_is_paused_callers_get_an_error_in_time() {
    let postgres = PostgresServer::start();
    let node = node(&postgres.url());
    let lock = Lock::global("k");
    let held = take(&node, &lock, "holder", HOUR);
    postgres.pause();
    let other = Lock::global("other");
    for request in [
        other.acquire("late", HOUR),
        other.acquire_within("late", HOUR, MINUTE),
        other.locked_call("late", HOUR, true),
        lock.status(),
        lock.extend("holder", held.fence, HOUR),
    ] {
        assert_unavailable(&node, &request);
    }
    postgres.resume();
    until_serving(&node);
    // The held lock is still held, and the other one is free.
    let holder = node.ask(&lock.status()).holder().unwrap();
    assert_eq!((&holder.owner, holder.fence), (&held.owner, held.fence));
    until_free(&node, &other, RECOVERY);
    give_back(&node, &lock, &held);
}

#[test]
fn a_restart_of_postgres_keeps_locks_and_waiters() {
    let mut postgres = PostgresServer::start();
    let [one, other] = [(); 2].map(|()| node(&postgres.url()));
    let lock = Lock::global("k");
    let held = take(&one, &lock, "holder", HOUR);
    let waiter = Waiter::start(&other, &lock, "waiter", HOUR);
    postgres.restart();
    until_serving(&one);
    until_serving(&other);
    assert_eq!(other.ask(&lock.status()).holder(), Some(held.clone()));
    assert!(waiter.is_waiting());
    give_back(&one, &lock, &held);
    let lease = waiter.granted_within(RECOVERY);
    give_back(&other, &lock, &lease);
}

#[test]
fn the_lock_of_a_killed_node_goes_to_a_waiter_at_its_ttl() {
    let postgres = PostgresServer::start();
    let [dies, lives] = [(); 2].map(|()| node(&postgres.url()));
    let lock = Lock::global("k");
    let ttl = 3 * SECOND;
    let sleep = request("demo.sleep", json!({"ms": 600_000}));
    let _call = dies.start_ask(lock.around(sleep, "endless", ttl));
    lives.until_locked(&lock.full_key());
    let first = lives.ask(&lock.status()).holder().unwrap();
    let waiter = Waiter::start(&lives, &lock, "waiter", HOUR);
    dies.kill();
    let lease = waiter.granted_within(ttl + MARGIN);
    let [until, first_until] = [&lease, &first].map(|it| Duration::from_millis(it.expires_at));
    assert!(until - HOUR >= first_until, "{lease:?} after {first:?}");
    assert!(lease.fence > first.fence);
}

#[test]
fn waiters_of_a_node_that_is_paused_are_passed_over_and_come_back() {
    let postgres = PostgresServer::start();
    let [pauses, lives] = [(); 2].map(|()| node(&postgres.url()));
    let lock = Lock::global("k");
    let held = take(&lives, &lock, "holder", HOUR);
    let passed = Waiter::start(&pauses, &lock, "passed", HOUR);
    let behind = Waiter::start(&lives, &lock, "behind", HOUR);
    pauses.pause();
    give_back(&lives, &lock, &held);
    let lease = behind.granted_within(MARGIN);
    pauses.resume();
    until("it waits again", || {
        lives.ask(&lock.waiters()).waiting().contains(&"passed")
    });
    give_back(&lives, &lock, &lease);
    let lease = passed.granted_within(MARGIN);
    give_back(&lives, &lock, &lease);
}

/// If waiters were only found by polling, all hand-overs would be slow. A busy machine delays only some.
#[test]
fn a_lock_is_handed_over_to_another_node_without_polling() {
    let postgres = PostgresServer::start();
    let nodes = [(); 2].map(|()| node(&postgres.url()));
    let lock = Lock::global("k");
    let mut held = take(&nodes[0], &lock, "holder", HOUR);
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    until("both listen", || postgres.sql(listening) == "2");
    let mut hand_overs = Vec::new();
    for number in 0..20 {
        let waiter = Waiter::start(&nodes[(number + 1) % 2], &lock, "waiter", HOUR);
        let since = Instant::now();
        give_back(&nodes[number % 2], &lock, &held);
        held = waiter.granted_within(MINUTE);
        hand_overs.push(since.elapsed());
    }
    let quickest = hand_overs.iter().min();
    assert!(
        quickest < Some(&Duration::from_millis(150)),
        "{hand_overs:?}"
    );
}

#[test]
fn an_error_of_the_server_is_unavailable_and_loses_nothing() {
    let postgres = PostgresServer::start();
    let node = node(&postgres.url());
    let lock = Lock::global("k");
    let held = take(&node, &lock, "holder", HOUR);
    // As the server answers when the disk is full.
    postgres.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION ''could not extend file: No space left on device'' USING ERRCODE = ''53100''; END';
         CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON forrst.locks
         FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
    );
    let other = Lock::global("other");
    assert_unavailable(&node, &other.acquire("a", HOUR));
    assert_unavailable(&node, &lock.release("holder", held.fence));
    assert_eq!(node.ask(&lock.status()).holder(), Some(held.clone()));
    postgres.sql("DROP TRIGGER full_disk ON forrst.locks");
    give_back(&node, &lock, &held);
    take(&node, &other, "a", HOUR);
}
