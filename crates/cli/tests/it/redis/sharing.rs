//! Several users of one Redis: nodes with the same prefix share locks, and keys of others are not touched.

use forrst_testkit::{Lock, Node, RedisServer, list};
use serde_json::Value;

use crate::redis::nodes::{HOUR, give_back, node_with, take};

fn with_prefix(redis: &RedisServer, prefix: &str) -> Node {
    node_with(&redis.url(), &["--redis-prefix", prefix])
}

#[test]
fn two_prefixes_do_not_see_each_other() {
    let redis = RedisServer::start();
    let one = with_prefix(&redis, "one");
    let two = with_prefix(&redis, "one:two");
    let shared = Lock::global("shared");
    let of_one = take(&one, &shared, "a", HOUR);
    let of_two = take(&two, &shared, "b", HOUR);
    take(&one, &Lock::global("only one"), "a", HOUR);
    assert_eq!(one.ask(&list()).listed(), ["lock:only one", "lock:shared"]);
    assert_eq!(two.ask(&list()).listed(), ["lock:shared"]);
    give_back(&one, &shared, &of_one);
    assert_eq!(two.ask(&shared.status()).holder(), Some(of_two));
}

#[test]
fn nodes_of_one_prefix_share_their_locks() {
    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| with_prefix(&redis, "one"));
    let lock = Lock::global("k");
    let lease = take(&one, &lock, "a", HOUR);
    let refused = other.ask(&lock.acquire("b", HOUR));
    assert_eq!(refused.code(), Some("LOCK_ACQUISITION_FAILED"));
    assert_eq!(other.ask(&list()).listed(), ["lock:k"]);
    give_back(&other, &lock, &lease);
    assert_eq!(one.ask(&list()).listed(), Vec::<&str>::new());
}

#[test]
fn keys_of_other_programs_are_not_changed() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "lock:k", "theirs"]);
    redis.cli(&["SET", "forrst", "theirs"]);
    redis.cli(&["SET", "theirs", "theirs"]);
    let before = redis.cli(&["KEYS", "*"]).lines().count();
    let node = node_with(&redis.url(), &[]);
    let lock = Lock::global("k");
    let lease = take(&node, &lock, "a", HOUR);
    let keys = redis.cli(&["KEYS", "*"]);
    let ours = keys.lines().filter(|key| key.contains("forrst:")).count();
    assert_eq!(keys.lines().count(), before + ours, "{keys}");
    assert_eq!(node.ask(&list()).listed(), ["lock:k"]);
    give_back(&node, &lock, &lease);
    for key in ["lock:k", "forrst", "theirs"] {
        assert_eq!(redis.cli(&["GET", key]), "theirs");
    }
}

/// Special characters in a key have no meaning.
#[test]
fn keys_with_special_characters_are_distinct() {
    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| with_prefix(&redis, "one"));
    let keys = ["{a}b", "a}{b", "{}", "a b", "*", "\"a\"", "a:waiters", "ä"];
    for key in keys {
        let lock = Lock::global(key);
        let lease = take(&one, &lock, "a", HOUR);
        assert_eq!(other.ask(&lock.status()).holder(), Some(lease));
    }
    let answer = other.ask(&list());
    assert_eq!(answer.listed().len(), keys.len(), "{answer:?}");
}

/// How the log of a node shows a lock. Ends the node.
fn shown_lock(node: &Node, lock: &Lock) -> String {
    let lease = take(node, lock, "a", HOUR);
    give_back(node, lock, &lease);
    node.terminate();
    let errors = node.errors();
    let lines = errors
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut locks =
        lines.filter_map(|line: Value| line["fields"]["lock"].as_str().map(str::to_owned));
    locks
        .next()
        .unwrap_or_else(|| panic!("no lock in {errors}"))
}

#[test]
fn a_lock_has_the_same_hash_in_the_logs_of_all_nodes_and_another_one_elsewhere() {
    let redis = RedisServer::start();
    let json = [
        "--log-level",
        "debug",
        "--log-format",
        "json",
        "--redis-prefix",
    ];
    let nodes = ["one", "one", "two"]
        .map(|prefix| node_with(&redis.url(), &[&json[..], &[prefix]].concat()));
    let lock = Lock::global("k");
    let [one, other, elsewhere] = nodes.map(|node| shown_lock(&node, &lock));
    assert_eq!(one, other);
    assert_ne!(one, elsewhere);
    let restarted = node_with(&redis.url(), &[&json[..], &["one"]].concat());
    assert_eq!(shown_lock(&restarted, &lock), one);
}
