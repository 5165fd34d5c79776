//! A slot of a cluster moves from one server to another while locks of it are in use.

use forrst_lock::LockStore;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisCluster, RedisServer};

use crate::redis_faults::ground::{acquire, call, name, release, take, take_again, until};

/// A slot on its way between two servers, with all its keys at the new one: the old one says ASK to whoever asks.
struct Move<'a> {
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl<'a> Move<'a> {
    /// The partition that has a fence, which has to be the only one.
    fn begin(cluster: &'a RedisCluster) -> Self {
        let has_fence = |server: &&RedisServer| !server.cli(&["KEYS", "*:fence"]).is_empty();
        let from = cluster.servers().find(has_fence).unwrap();
        let to = cluster.servers().find(|server| !has_fence(server)).unwrap();
        let fence = from.cli(&["KEYS", "*:fence"]);
        let slot = from.cli(&["CLUSTER", "KEYSLOT", fence.trim()]);
        let slot = slot.trim().to_owned();
        let this = Self { slot, from, to };
        to.cli(&["CLUSTER", "SETSLOT", &this.slot, "IMPORTING", &id(from)]);
        from.cli(&["CLUSTER", "SETSLOT", &this.slot, "MIGRATING", &id(to)]);
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &this.slot, "100"]);
        for key in keys.split_whitespace() {
            let port = to.port().to_string();
            from.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        this
    }

    fn end(self, cluster: &RedisCluster) {
        for server in [self.to, self.from].into_iter().chain(cluster.servers()) {
            server.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id(self.to)]);
        }
    }
}

fn id(server: &RedisServer) -> String {
    server.cli(&["CLUSTER", "MYID"]).trim().to_owned()
}

#[tokio::test]
async fn a_slot_that_moves_costs_its_own_locks_a_while_and_the_others_nothing() {
    let cluster = RedisCluster::start();
    let store = RedisStore::open(&cluster.url(), &RedisOptions::default()).await;
    let store = store.unwrap();
    let held = take(&store, "k").await;
    let moving = Move::begin(&cluster);
    for round in 0..5 {
        assert!(store.inspect(&name("k")).await.is_err());
        // Of other partitions, and other servers.
        for other in ["a", "b", "c", "d"] {
            let other = acquire(&store, call(&format!("{other}{round}"), "a")).await;
            assert!(other.is_ok(), "{other:?}");
        }
    }
    moving.end(&cluster);
    until("it is found at its new place", async || {
        let status = store.inspect(&name("k")).await.map(|answer| answer.outcome);
        status.is_ok_and(|status| status.holder() == Some(&held))
    })
    .await;
    release(&store, &held).await;
    take_again(&store, "k").await;
}
