//! A Redis that can lose locks, that cannot be reached, or that requires a password or TLS.

use forrst_testkit::{Lock, RedisOptions, RedisReplicas, RedisServer, Serve, until};

use crate::redis::nodes::{FORRST, HOUR, node_with, take};

/// A server that may fail to start.
fn serve(store: &str, arguments: &[&str]) -> Serve {
    Serve::new(FORRST, &[&["--store", store], arguments].concat())
}

/// Checks that the server exits with code 1 and prints all of these words, but not the password.
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

/// Checks that the server warns about this Redis, and does not start with `--strict`.
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
fn a_redis_that_persists_every_write_is_safe() {
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
fn a_replica_that_is_not_waited_for_is_unsafe() {
    let set = RedisReplicas::alone();
    is_unsafe(&set.url(), &["replica", "--redis-wait"]);
    let waits = node_with(&set.url(), &["--redis-wait", "1", "--strict"]);
    // A new replica takes a while for its first acknowledgement.
    let acquire = Lock::global("waited for").acquire("a", HOUR);
    until("a replica has a lock", || {
        waits.ask(&acquire).granted().is_some()
    });
    let lease = set.replicas()[0].cli(&["KEYS", "*"]);
    assert!(!lease.is_empty(), "the replica has nothing");
}

/// It is safe when the server starts, but no longer when the server connects again.
#[test]
fn a_redis_that_becomes_unsafe_is_warned_about_after_each_reconnect() {
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
fn the_password_is_sent_to_redis_and_never_printed() {
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
        format!("redis://other:{PASSWORD}@{address}"),
        format!("redis://{address}"),
    ] {
        refuses(&serve(&wrong, &[]), &[&address]);
    }
}

#[test]
fn the_certificate_of_redis_is_verified() {
    let redis = RedisOptions::default().tls().password(PASSWORD).start();
    let ca = redis.ca().display().to_string();
    let node = node_with(&redis.url(), &["--redis-ca", &ca]);
    take(&node, &Lock::global("k"), "a", HOUR);
    let said = node.output() + &node.errors();
    assert!(!said.contains(PASSWORD), "{said}");

    // Without its authority, or with another one, it is not trusted.
    refuses(&serve(&redis.url(), &[]), &["localhost"]);
    let other = RedisOptions::default().tls().start();
    let other_ca = other.ca().display().to_string();
    let distrusting = ["--redis-ca", &other_ca];
    refuses(&serve(&redis.url(), &distrusting), &["localhost"]);
    let no_file = ["--redis-ca", "no/such/file.pem"];
    refuses(&serve(&redis.url(), &no_file), &["no/such/file.pem"]);
}

#[test]
fn an_error_names_the_url_that_cannot_be_reached() {
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
fn a_server_that_is_not_redis_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It accepts connections, and never answers.
    refuses(&serve(&format!("redis://{address}"), &[]), &[&address]);
}
