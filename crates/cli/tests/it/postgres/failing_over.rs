//! The primary dies, and its standby is promoted.

use forrst_testkit::{Lock, PostgresServer, until};

use crate::redis::nodes::{HOUR, Waiter, give_back, node, take, until_serving};

#[test]
fn locks_and_waiters_survive_a_fail_over_and_fences_do_not_fall_back() {
    let primary = PostgresServer::start();
    let standby = primary.standby();
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("SELECT pg_reload_conf()");
    until("the standby is synchronous", || {
        primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync"
    });
    let url = format!(
        "postgres://forrst@{},{}/postgres",
        primary.address(),
        standby.address()
    );
    let [one, other] = [(); 2].map(|()| node(&url));
    let lock = Lock::global("k");
    let held = take(&one, &lock, "holder", HOUR);
    let waiter = Waiter::start(&other, &lock, "waiter", HOUR);
    primary.kill();
    standby.sql("SELECT pg_promote()");
    until_serving(&one);
    until_serving(&other);
    assert_eq!(other.ask(&lock.status()).holder(), Some(held.clone()));
    assert!(waiter.is_waiting());
    give_back(&one, &lock, &held);
    let next = waiter.granted_within(crate::redis::nodes::RECOVERY);
    assert!(next.fence > held.fence);
    give_back(&other, &lock, &next);
}

/// The standby never received the last grants.
#[test]
fn fences_do_not_fall_back_when_a_fail_over_loses_grants() {
    let primary = PostgresServer::start();
    let mut standby = primary.standby();
    let url = format!(
        "postgres://forrst@{},{}/postgres",
        primary.address(),
        standby.address()
    );
    let node = node(&url);
    until("the standby has the tables", || {
        standby.ask("SELECT count(*) FROM forrst.store") == Ok("1".to_owned())
    });
    standby.kill();
    let lock = Lock::global("k");
    let mut lost = take(&node, &lock, "a", HOUR);
    for _ in 0..5 {
        give_back(&node, &lock, &lost);
        lost = take(&node, &lock, "a", HOUR);
    }
    primary.kill();
    standby.restart();
    standby.promote();
    until_serving(&node);
    let next = take(&node, &lock, "b", HOUR);
    assert!(next.fence > lost.fence, "{next:?} after {lost:?}");
}
