//! A primary with replicas, and sentinels that watch them.

use super::server::{RedisOptions, RedisServer};
use crate::patience::until;

/// What sentinels call the primary and its replicas.
const SERVICE: &str = "forrst";

/// A primary and its replicas, and sentinels that put one of these in its place about a second after it is gone.
pub struct RedisReplicas {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisReplicas {
    /// With one replica and without sentinels: nobody takes over.
    pub fn alone() -> Self {
        Self::start(1, 0)
    }

    /// With as many replicas, and as many sentinels, most of which have to agree.
    pub fn start(replicas: usize, sentinels: usize) -> Self {
        let quick = ["--repl-diskless-sync-delay", "0"];
        let options = || RedisOptions::default().arguments(&quick);
        let primary = options().start();
        let replica_of = format!("127.0.0.1 {}", primary.port());
        let replica_of = ["--replicaof", &replica_of];
        let replicas = (0..replicas).map(|_| options().arguments(&replica_of).start());
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

    /// As `--store` takes it: the sentinels, or the primary where there are none.
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

    /// The one that began as the primary.
    pub fn primary(&mut self) -> &mut RedisServer {
        &mut self.primary
    }

    /// Those that began as replicas.
    pub fn replicas(&self) -> &[RedisServer] {
        &self.replicas
    }

    /// Waits until a replica has taken over, and gives it back.
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
