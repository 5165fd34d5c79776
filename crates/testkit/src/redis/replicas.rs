//! A primary with replicas, and sentinels that watch them.

use super::server::{RedisOptions, RedisServer};
use crate::patience::until;

/// The name by which the sentinels know the primary and its replicas.
const SERVICE: &str = "forrst";

/// A primary and its replicas, and sentinels that promote one of these about a second after the primary has failed.
pub struct RedisReplicas {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisReplicas {
    /// With one replica and without sentinels: the replica is never promoted.
    pub fn alone() -> Self {
        Self::start(1, 0)
    }

    /// With this many replicas and sentinels. A majority of the sentinels has to agree.
    pub fn start(replicas: usize, sentinels: usize) -> Self {
        let replicas = vec![RedisOptions::default(); replicas];
        Self::start_with(RedisOptions::default(), replicas, sentinels)
    }

    /// With one replica and a sentinel that promotes it only when the primary has been down for minutes, for busy machines.
    pub fn steady() -> Self {
        let set = Self::start(1, 1);
        for sentinel in &set.sentinels {
            let patience = [
                "SENTINEL",
                "SET",
                SERVICE,
                "down-after-milliseconds",
                "600000",
            ];
            sentinel.cli(&patience);
        }
        set
    }

    /// As [`start`](Self::start), with options for the primary and for each replica, such as a clock.
    pub fn start_with(
        primary: RedisOptions,
        replicas: Vec<RedisOptions>,
        sentinels: usize,
    ) -> Self {
        let quick = ["--repl-diskless-sync-delay", "0"];
        let primary = primary.arguments(&quick).start();
        let replica_of = format!("127.0.0.1 {}", primary.port());
        let replica_of = ["--replicaof", &replica_of];
        let replicas = replicas.into_iter().map(|options| {
            let options = options.arguments(&quick).arguments(&replica_of);
            options.start()
        });
        let replicas: Vec<RedisServer> = replicas.collect();
        for replica in &replicas {
            until("the replica has all", || {
                let info = replica.cli(&["INFO", "replication"]);
                info.contains("master_link_status:up")
            });
        }
        let quorum = sentinels / 2 + 1;
        let sentinels = (0..sentinels).map(|_| watch(&primary, quorum).start());
        let set = Self {
            sentinels: sentinels.collect(),
            primary,
            replicas,
        };
        for sentinel in &set.sentinels {
            until("the sentinel knows the others", || {
                set.is_whole(&sentinel.cli(&["INFO", "sentinel"]))
            });
        }
        set
    }

    fn is_whole(&self, info: &str) -> bool {
        let (replicas, sentinels) = (self.replicas.len(), self.sentinels.len());
        let others = format!("slaves={replicas},sentinels={sentinels}");
        info.contains("status=ok") && info.contains(&others)
    }

    /// The URL for `--store`: that of the sentinels, or of the primary if there are none.
    pub fn url(&self) -> String {
        let Some((first, others)) = self.sentinels.split_first() else {
            return self.primary.url();
        };
        let others = others.iter();
        let others: String = others
            .map(|sentinel| format!("&node={}", sentinel.address()))
            .collect();
        let first = first.address();
        format!("redis-sentinel://{first}?sentinelServiceName={SERVICE}{others}")
    }

    /// The original primary.
    pub fn primary(&mut self) -> &mut RedisServer {
        &mut self.primary
    }

    /// The original replicas.
    pub fn replicas(&self) -> &[RedisServer] {
        &self.replicas
    }

    /// Has a sentinel promote a replica although the primary is up.
    pub fn promote_a_replica(&self) {
        let promote = ["SENTINEL", "FAILOVER", SERVICE];
        // It fails if the sentinel has no recent information about the replica.
        until("a replica is promoted", || {
            self.sentinels[0].ask(&promote).is_ok()
        });
    }

    /// Waits until a replica has taken over, and returns it.
    #[track_caller]
    pub fn until_failed_over(&self) -> &RedisServer {
        let mut new = None;
        until("a replica has taken over", || {
            new = self.replicas.iter().find(|replica| {
                // A promotion closes connections.
                let info = replica.ask(&["INFO", "replication"]);
                info.is_ok_and(|info| info.contains("role:master"))
            });
            new.is_some()
        });
        new.expect("it was found")
    }
}

fn watch(primary: &RedisServer, quorum: usize) -> RedisOptions {
    let port = primary.port();
    RedisOptions::sentinel(format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {port} {quorum}\n\
         sentinel down-after-milliseconds {SERVICE} 1000\n\
         sentinel failover-timeout {SERVICE} 5000\n"
    ))
}
