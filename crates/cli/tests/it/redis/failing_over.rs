//! A replica replaces its primary under load.

use forrst_testkit::{Lock, Node, RedisCluster, RedisReplicas};

use crate::redis::nodes::{
    HOUR, RECOVERY, assert_unavailable, node_with, take, until_free, until_serving,
};
use crate::redis::protected::Load;

/// Two servers and their callers. Without `--redis-wait`, a primary may acknowledge what no replica has.
fn under_load(store: &str, keys: usize) -> ([Node; 2], Load) {
    let nodes = [(); 2].map(|()| node_with(store, &["--redis-wait", "1"]));
    let addresses = nodes.each_ref().map(|node| node.address());
    let load = Load::start(&addresses, keys);
    (nodes, load)
}

/// After one of the two replicas has taken over, the other is left to wait for.
#[test]
fn no_update_is_lost_when_sentinels_replace_the_primary() {
    let mut set = RedisReplicas::start(2, 3);
    let (_nodes, load) = under_load(&set.url(), 3);
    set.primary().kill();
    set.until_failed_over();
    load.until_every_number_changes();
    set.primary().restart();
    load.until_every_number_changes();
    load.stop();
}

#[test]
fn no_update_is_lost_when_a_primary_of_a_cluster_is_replaced() {
    let mut cluster = RedisCluster::with_replicas();
    // Enough keys for every primary to have some.
    let (_nodes, load) = under_load(&cluster.url(), 6);
    cluster.primary(0).kill();
    cluster.until_failed_over(0);
    cluster.primary(0).restart();
    load.until_every_number_changes();
    load.stop();
}

/// When it continues, it still is a primary, which does not know what was granted meanwhile.
#[test]
fn a_primary_that_was_paused_while_it_was_replaced_grants_nothing() {
    let mut set = RedisReplicas::start(2, 3);
    let (_nodes, load) = under_load(&set.url(), 3);
    set.primary().pause();
    set.until_failed_over();
    load.until_every_number_changes();
    set.primary().resume();
    load.until_every_number_changes();
    load.stop();
}

#[test]
fn a_primary_of_a_cluster_that_was_paused_while_it_was_replaced_grants_nothing() {
    let mut cluster = RedisCluster::with_replicas();
    let (_nodes, load) = under_load(&cluster.url(), 6);
    cluster.primary(0).pause();
    cluster.until_failed_over(0);
    cluster.primary(0).resume();
    load.until_every_number_changes();
    load.stop();
}

#[test]
fn a_grant_that_no_replica_has_is_rolled_back() {
    let set = RedisReplicas::alone();
    let node = node_with(&set.url(), &["--redis-wait", "1"]);
    let [one, other] = ["one", "other"].map(Lock::global);
    set.replicas()[0].pause();
    assert_unavailable(&node, &one.acquire("nobody", HOUR));
    assert_unavailable(&node, &other.locked_call("nobody", HOUR, true));
    for lock in [&one, &other] {
        until_free(&node, lock, RECOVERY);
    }
    set.replicas()[0].resume();
    until_serving(&node);
    take(&node, &one, "caller", HOUR);
}
