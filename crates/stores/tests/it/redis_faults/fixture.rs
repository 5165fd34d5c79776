//! A store on a real Redis.

use forrst_lock::LockName;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::{RedisCluster, RedisServer};

pub(crate) use crate::calls::{
    PATIENCE, acquire, call, granted, held, inspect, name, release, still_serves_what_is_held,
    take, take_again, until, wait, waiting, woken,
};

pub(crate) async fn open(redis: &RedisServer) -> RedisStore {
    let store = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    store.unwrap()
}

/// The Redis key of a lock's state, or of its sorted set for a name that begins with `queue:`.
pub(crate) fn key_of(redis: &RedisServer, key: &str) -> String {
    let key = match key.strip_prefix("queue:") {
        Some(key) => format!("queue:lock:{key}"),
        None => format!("lock:{key}"),
    };
    let found = redis.cli(&["KEYS", &format!("*}}:{key}")]);
    found.trim().to_owned()
}

/// Removes the queue of this lock from Redis.
pub(crate) fn forget_queue(redis: &RedisServer, key: &str) {
    let forget = "local state = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        state[4] = false
        redis.call('SET', KEYS[1], cmsgpack.pack(state))
        redis.call('DEL', KEYS[2])";
    let (state, queue) = (key_of(redis, key), key_of(redis, &format!("queue:{key}")));
    redis.cli(&["EVAL", forget, "2", &state, &queue]);
}

/// The keys that do not expire, except those that exist once: the format, the secret, fences, nodes, and counters.
pub(crate) fn lasting_keys(redis: &RedisServer) -> Vec<String> {
    let known = [":format", ":secret", ":meta", ":nodes", ":counters"];
    let keys = redis.cli(&["KEYS", "*"]);
    let keys = keys.split_whitespace();
    let unknown = keys.filter(|key| !known.iter().any(|known| key.ends_with(known)));
    let lasting = unknown.filter(|key| redis.cli(&["PTTL", key]).trim() == "-1");
    lasting.map(str::to_owned).collect()
}

/// A slot of a cluster that is moved from one server to another. While its keys are at the old one, commands on several of them are
/// refused; when they have been moved, the old one redirects all commands with ASK.
pub(crate) struct SlotMove<'a> {
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl<'a> SlotMove<'a> {
    /// Moves the slot of the partition that has this lock.
    pub(crate) fn begin(cluster: &'a RedisCluster, lock: &str) -> Self {
        let servers: Vec<&RedisServer> = cluster.servers().collect();
        let tag = format!("{{forrst:{}}}", partition_of(cluster, &name(lock)));
        let at = cluster.index_of(&tag);
        let (from, to) = (servers[at], servers[(at + 1) % servers.len()]);
        let slot = from.cli(&["CLUSTER", "KEYSLOT", &tag]).trim().to_owned();
        to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        Self { slot, from, to }
    }

    pub(crate) fn move_keys(&self) {
        let port = self.to.port().to_string();
        let keys = self
            .from
            .cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]);
        for key in keys.split_whitespace() {
            self.from
                .cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    }

    pub(crate) fn end(self, cluster: &RedisCluster) {
        for server in [self.to, self.from].into_iter().chain(cluster.servers()) {
            server.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id(self.to)]);
        }
    }
}

fn id(server: &RedisServer) -> String {
    server.cli(&["CLUSTER", "MYID"]).trim().to_owned()
}

/// The number of the partition that has this lock.
pub(crate) fn partition_of(cluster: &RedisCluster, name: &LockName) -> u16 {
    let server = cluster.servers().next().unwrap();
    let slot = server.cli(&["CLUSTER", "KEYSLOT", name.as_str()]);
    slot.trim().parse::<u16>().unwrap() % 64
}
