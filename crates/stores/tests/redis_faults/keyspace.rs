//! What is kept in Redis, and what is not.

use forrst_lock::{LockStore, Page};
use forrst_stores::{RedisError, RedisOptions, RedisStore};
use forrst_testkit::RedisServer;

use crate::ground::{claim, granted, open, release, take, wait};

#[tokio::test]
async fn prefixes_do_not_see_each_other() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "somebody", "else's"]);
    let with = async |prefix: &str| {
        let options = RedisOptions {
            prefix: prefix.to_owned(),
            ..RedisOptions::default()
        };
        RedisStore::open(&redis.url(), &options).await
    };
    let (one, other) = (with("one").await.unwrap(), with("other").await.unwrap());
    take(&one, "k").await;
    take(&other, "k").await;
    take(&other, "l").await;
    let names = |page: Page| page.locks.len();
    let all = forrst_lock::ListRequest {
        limit: 10,
        ..Default::default()
    };
    assert_eq!(names(one.list(&all).await.unwrap()), 1);
    assert_eq!(names(other.list(&all).await.unwrap()), 2);
    assert_eq!(redis.cli(&["GET", "somebody"]).trim(), "else's");
    for prefix in ["", "a{b}", "a b", "ä", &"x".repeat(65)] {
        let refused = with(prefix).await;
        assert!(matches!(refused, Err(RedisError::BadPrefix(_))), "{prefix}");
    }
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "forrst:format", "2"]);
    let refused = RedisStore::open(&redis.url(), &RedisOptions::default()).await;
    assert!(matches!(refused, Err(RedisError::OtherFormat { .. })));
}

#[tokio::test]
async fn locks_leave_nothing_behind() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    for key in ["a", "b", "c"] {
        let lease = take(&store, key).await;
        let waiting = wait(&store, key, claim("b")).await;
        release(&store, &lease).await;
        release(&store, granted(&waiting.await.unwrap())).await;
    }
    let keys = redis.cli(&["KEYS", "*"]);
    let lasting: Vec<&str> = keys
        .split_whitespace()
        .filter(|key| redis.cli(&["PTTL", key]).trim() == "-1")
        .collect();
    // The format, and for each partition its fence and the nodes that have waited there.
    let is_known =
        |key: &&str| key.ends_with(":format") || key.ends_with(":fence") || key.ends_with(":nodes");
    assert!(lasting.iter().all(is_known), "{lasting:?}");
}
