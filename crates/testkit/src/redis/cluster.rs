//! A cluster of three primaries.

use super::server::{RedisOptions, RedisServer};
use crate::patience::until;

const SLOTS: usize = 16_384;
const PRIMARIES: usize = 3;

/// Three primaries that share the slots, optionally with a replica of each.
pub struct RedisCluster {
    primaries: Vec<RedisServer>,
    replicas: Vec<RedisServer>,
}

impl RedisCluster {
    /// Three primaries without replicas.
    pub fn start() -> Self {
        Self::launch(0, &[])
    }

    /// The same, with primaries that stay available when one of them is down.
    pub fn without_full_coverage() -> Self {
        Self::launch(0, &["--cluster-require-full-coverage", "no"])
    }

    /// With a replica each, which takes over a second or two after its primary has failed.
    pub fn with_replicas() -> Self {
        Self::launch(PRIMARIES, &[])
    }

    fn launch(replicas: usize, arguments: &[&str]) -> Self {
        let start = |_| {
            let cluster = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "1000",
                "--cluster-replica-validity-factor",
                "0",
                "--repl-diskless-sync-delay",
                "0",
            ];
            let options = RedisOptions::default().arguments(&cluster);
            options.arguments(arguments).start()
        };
        let cluster = Self {
            primaries: (0..PRIMARIES).map(start).collect(),
            replicas: (0..replicas).map(start).collect(),
        };
        cluster.share_slots();
        cluster.introduce();
        cluster.replicate();
        cluster
    }

    fn share_slots(&self) {
        for (index, primary) in self.primaries.iter().enumerate() {
            let first = (SLOTS * index / PRIMARIES).to_string();
            let last = (SLOTS * (index + 1) / PRIMARIES - 1).to_string();
            primary.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            // As `redis-cli --cluster create` does: primaries with the same epoch would have to resolve the conflict first.
            primary.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
    }

    fn introduce(&self) {
        let first = &self.primaries[0];
        for other in self.servers().skip(1) {
            first.cli(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
        }
        let known = format!("cluster_known_nodes:{}", self.servers().count());
        self.until_all("the cluster is whole", "CLUSTER", |info| {
            info.contains("cluster_state:ok") && info.contains(&known)
        });
    }

    fn replicate(&self) {
        for (primary, replica) in self.primaries.iter().zip(&self.replicas) {
            let id = primary.cli(&["CLUSTER", "MYID"]);
            until("the replica knows its primary", || {
                replica.ask(&["CLUSTER", "REPLICATE", &id]).is_ok()
            });
        }
        for replica in &self.replicas {
            until("the replica has all", || {
                let info = replica.cli(&["INFO", "replication"]);
                info.contains("master_link_status:up")
            });
        }
        // A primary fails over only to replicas that the other servers know.
        let count = |nodes: &str| nodes.lines().filter(|node| node.contains("slave")).count();
        for server in self.servers() {
            until("all servers know the replicas", || {
                count(&server.cli(&["CLUSTER", "NODES"])) == self.replicas.len()
            });
        }
    }

    fn until_all(&self, what: &str, command: &str, condition: impl Fn(&str) -> bool) {
        for server in self.servers() {
            until(what, || condition(&server.cli(&[command, "INFO"])));
        }
    }

    /// All servers, the original primaries first.
    pub fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// The URL for `--store`.
    pub fn url(&self) -> String {
        let others = self.primaries[1..].iter();
        let others = others.map(|server| format!("node={}", server.address()));
        let others = others.collect::<Vec<_>>().join("&");
        format!("redis-cluster://{}?{others}", self.primaries[0].address())
    }

    /// Which of the original primaries has the slot of this key, as long as no slot was moved.
    pub fn index_of(&self, key: &str) -> usize {
        let slot = self.primaries[0].cli(&["CLUSTER", "KEYSLOT", key]);
        let slot: usize = slot.trim().parse().unwrap();
        let first = |index| SLOTS * index / PRIMARIES;
        (1..PRIMARIES).filter(|index| first(*index) <= slot).count()
    }

    /// One of the original primaries.
    pub fn primary(&mut self, index: usize) -> &mut RedisServer {
        &mut self.primaries[index]
    }

    /// Waits until the replica of that primary has taken over.
    #[track_caller]
    pub fn until_failed_over(&self, index: usize) {
        let replica = &self.replicas[index];
        until("the replica has taken over", || {
            // A promotion closes connections.
            let info = replica.ask(&["INFO", "replication"]);
            info.is_ok_and(|info| info.contains("role:master"))
        });
    }
}
