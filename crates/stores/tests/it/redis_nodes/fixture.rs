//! Two nodes on one Redis.

use std::sync::Arc;

use forrst_lock::LockService;
use forrst_stores::{RedisOptions, RedisStore};
use forrst_testkit::RedisServer;

pub(super) use crate::nodes::{
    HOUR, WaitingNode, Woken, all_wait, are_served_in_turn, guard, guard_of, join_queue, request,
    service, ttl, wait_in_turn,
};

pub(super) async fn open_at(url: &str) -> Arc<RedisStore> {
    let store = RedisStore::open(url, &RedisOptions::default()).await;
    Arc::new(store.unwrap())
}

pub(super) async fn two_services(redis: &RedisServer) -> [LockService; 2] {
    let (one, other) = (open_at(&redis.url()).await, open_at(&redis.url()).await);
    [service(&one), service(&other)]
}

pub(super) async fn two_nodes(url: &str) -> [WaitingNode; 2] {
    let (one, other) = (open_at(url).await, open_at(url).await);
    [WaitingNode::new(one), WaitingNode::new(other)]
}

/// How many commands of nodes Redis has run.
pub(super) fn commands(redis: &RedisServer) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let sent = ["fcall", "fcall_ro", "publish"];
    sent.iter()
        .filter_map(|command| {
            let start = format!("cmdstat_{command}:calls=");
            let line = stats.lines().find_map(|line| line.strip_prefix(&start))?;
            line.split(',').next()?.parse::<u64>().ok()
        })
        .sum()
}
