//! A Redis that can lose locks, that cannot be reached, or that wants a password or TLS.

use forrst_testkit::{Lock, RedisOptions, RedisReplicas, RedisServer, Serve, until};

use crate::redis::nodes::{FORRST, HOUR, node_with, take};

/// A server that may not start.
fn serve(store: &str, arguments: &[&str]) -> Serve {
    Serve::new(FORRST, &[&["--store", store], arguments].concat())
}

/// Ends by itself with exit code 1, and says all of these words, but none of the secret.
#[track_caller]
fn refuses(serve: &Serve, says: &[&str]) {
    let (code, output, errors) = serve.run();
    assert_eq!(code, Some(1), "{output}{errors}");
    for word in says {
        assert!(errors.contains(word), "`{word}` is not in\n{errors}");
    }
    assert!(!errors.contains("panicked"), "{errors}");
    assert!(!format!("{output}{errors}").contains(PASSWORD), "{errors}");
}

const PASSWORD: &str = "s3cret-Pa55";

/// Warns about it, and with `--strict` does not start.
#[track_caller]
fn is_unsafe(store: &str, says: &[&str]) {
    let node = node_with(store, &[]);
    until(&format!("a warning has {says:?}"), || {
        let errors = node.errors();
        let mut lines = errors.lines();
        lines.any(|line| line.contains("WARN") && says.iter().all(|word| line.contains(word)))
    });
    take(&node, &Lock::global("k"), "a", HOUR);
    refuses(&serve(store, &["--strict"]), says);
}

#[test]
fn a_redis_that_keeps_all_is_safe() {
    let redis = RedisServer::start();
    let node = node_with(&redis.url(), &["--strict"]);
    assert!(!node.errors().contains("WARN"), "{}", node.errors());
}

#[test]
fn a_redis_that_evicts_is_unsafe() {
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = RedisOptions::default().arguments(&evicting).start();
    is_unsafe(&redis.url(), &["maxmemory-policy", "allkeys-lru"]);
}

#[test]
fn a_redis_without_persistence_is_unsafe() {
    let redis = RedisOptions::default().forgetful().start();
    is_unsafe(&redis.url(), &["persistence", "appendonly"]);
}

#[test]
fn a_redis_that_only_saves_snapshots_is_unsafe() {
    let snapshots = ["--save", "3600 1"];
    let redis = RedisOptions::default().forgetful().arguments(&snapshots);
    is_unsafe(&redis.start().url(), &["snapshots", "appendonly"]);
}

#[test]
fn a_replica_that_nobody_waits_for_is_unsafe() {
    let set = RedisReplicas::alone();
    is_unsafe(&set.url(), &["replica", "--redis-wait"]);
    let waits = node_with(&set.url(), &["--redis-wait", "1", "--strict"]);
    // A replica that has just come takes a while for its first answer.
    let acquire = Lock::global("waited for").acquire("a", HOUR);
    until("a replica has a lock", || {
        waits.ask(&acquire).granted().is_some()
    });
    let lease = set.replicas()[0].cli(&["KEYS", "*"]);
    assert!(!lease.is_empty(), "the replica has nothing");
}

/// Found safe when the server started, and not any more when it connects again.
#[test]
fn a_redis_that_has_become_unsafe_is_warned_about_every_time() {
    let redis = RedisServer::start();
    let node = node_with(&redis.url(), &[]);
    let warnings = || node.errors().matches("UNSAFE").count();
    redis.cli(&["CONFIG", "SET", "appendonly", "no"]);
    for count in 0..5 {
        assert_eq!(warnings(), count);
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        until("there is another warning", || warnings() > count);
    }
}

#[test]
fn a_redis_that_wants_a_password_gets_it_and_nobody_else_does() {
    let redis = RedisOptions::default().password(PASSWORD).start();
    let node = node_with(&redis.url(), &[]);
    take(&node, &Lock::global("k"), "a", HOUR);
    let banner = node.banner("store");
    assert!(banner.contains(&redis.port().to_string()), "{banner}");
    node.terminate();
    let said = node.output() + &node.errors();
    assert!(!said.contains(PASSWORD), "{said}");

    let address = redis.address();
    for wrong in [
        format!("redis://:not-{PASSWORD}@{address}"),
        format!("redis://somebody:{PASSWORD}@{address}"),
        format!("redis://{address}"),
    ] {
        refuses(&serve(&wrong, &[]), &[&address]);
    }
}

#[test]
fn a_redis_with_tls_is_checked() {
    let redis = RedisOptions::default().tls().password(PASSWORD).start();
    let ca = redis.ca().display().to_string();
    let node = node_with(&redis.url(), &["--redis-ca", &ca]);
    take(&node, &Lock::global("k"), "a", HOUR);
    let said = node.output() + &node.errors();
    assert!(!said.contains(PASSWORD), "{said}");

    // Nobody has heard of its authority, or of another one's.
    refuses(&serve(&redis.url(), &[]), &["localhost"]);
    let stranger = RedisOptions::default().tls().start();
    let ca_of_stranger = stranger.ca().display().to_string();
    let distrusting = ["--redis-ca", &ca_of_stranger];
    refuses(&serve(&redis.url(), &distrusting), &["localhost"]);
    let no_file = ["--redis-ca", "no/such/file.pem"];
    refuses(&serve(&redis.url(), &no_file), &["no/such/file.pem"]);
}

#[test]
fn a_url_that_leads_nowhere_is_named() {
    let nowhere = RedisServer::start();
    nowhere.kill();
    let url = nowhere.url();
    refuses(&serve(&url, &[]), &[&nowhere.address()]);
    let cluster = url.replace("redis://", "redis-cluster://");
    refuses(&serve(&cluster, &[]), &[&nowhere.address()]);
    let sentinel = url.replace("redis://", "redis-sentinel://");
    let sentinel = format!("{sentinel}?sentinelServiceName=forrst");
    refuses(&serve(&sentinel, &[]), &[&nowhere.address()]);
    for bad in [
        "redis://",
        "redis://127.0.0.1:notaport",
        "redis-sentinel://127.0.0.1:1",
        "redis//127.0.0.1",
    ] {
        refuses(&serve(bad, &[]), &["redis"]);
    }
    let unresolved = "redis://no-such-host.invalid:6379";
    refuses(&serve(unresolved, &[]), &["no-such-host.invalid"]);
}

#[test]
fn somebody_who_is_no_redis_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It accepts, and never says a word.
    refuses(&serve(&format!("redis://{address}"), &[]), &[&address]);
}
