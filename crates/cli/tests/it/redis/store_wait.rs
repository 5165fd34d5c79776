//! `--store-wait`: a server that is started before its Redis.

use forrst_testkit::{Lock, RedisOptions, RedisServer, Running, Serve, until};
use rustix::process::Signal;

use crate::redis::nodes::{FORRST, HOUR, take};

const PASSWORD: &str = "s3cret-Pa55";

/// Longer than any test.
const LONG_WAIT: [&str; 2] = ["--store-wait", "1h"];

fn serve(store: &str, arguments: &[&str]) -> Serve {
    Serve::new(FORRST, &[&["--store", store], arguments].concat())
}

fn stopped(options: RedisOptions) -> RedisServer {
    let redis = options.start();
    redis.kill();
    redis
}

/// Starts a server whose Redis is down, and returns when it has logged that it waits.
#[track_caller]
fn start_waiting(serve: &Serve, redis: &RedisServer) -> Running {
    let running = serve.spawn();
    until("it waits for the store", || {
        let errors = running.errors();
        assert!(!running.has_ended(), "it ended:\n{errors}");
        let mut lines = errors.lines();
        lines.any(|line| line.contains("waiting for the store") && line.contains(&redis.address()))
    });
    running
}

/// Checks that the server exits with code 1. Returns its standard error.
#[track_caller]
fn failure(serve: &Serve) -> String {
    let (code, output, errors) = serve.run();
    assert_eq!(code, Some(1), "{output}{errors}");
    assert!(!format!("{output}{errors}").contains(PASSWORD), "{errors}");
    errors
}

#[test]
fn a_server_that_is_started_before_its_redis_becomes_ready() {
    let mut redis = stopped(RedisOptions::default().password(PASSWORD));
    let url = redis.url();
    for serve in [
        serve(&url, &LONG_WAIT),
        serve(&url, &[]).variable("FORRST_STORE_WAIT", "1h"),
        serve(&url, &[]).config("store-wait = '1h'"),
    ] {
        let running = start_waiting(&serve, &redis);
        assert!(!running.output().contains("curl"), "{}", running.output());
        redis.restart();
        until("the banner is there", || {
            assert!(!running.has_ended(), "it ended:\n{}", running.errors());
            running.output().contains("curl") && running.output().ends_with("\n\n")
        });
        let lock = Lock::global(running.address());
        take(&running, &lock, "a", HOUR);
        assert!(!running.errors().contains(PASSWORD), "{}", running.errors());
        redis.kill();
    }
}

#[test]
fn without_a_wait_the_error_suggests_the_option() {
    let redis = stopped(RedisOptions::default());
    for arguments in [&[][..], &["--store-wait", "0"], &["--store-wait", "0s"]] {
        let serve = serve(&redis.url(), arguments).variable("FORRST_STORE_WAIT", "0");
        let errors = failure(&serve);
        for word in [&redis.address(), "Connection refused", "--store-wait 30s"] {
            assert!(errors.contains(word), "`{word}` is not in\n{errors}");
        }
        assert!(!errors.contains("waiting for the store"), "{errors}");
    }
}

#[test]
fn a_wait_of_zero_on_the_command_line_overrides_the_file() {
    let redis = stopped(RedisOptions::default());
    let serve = serve(&redis.url(), &["--store-wait", "0"]).config("store-wait = '1h'");
    let errors = failure(&serve);
    assert!(!errors.contains("waiting for the store"), "{errors}");
}

#[test]
fn a_server_gives_up_with_the_last_error_when_the_wait_is_over() {
    let redis = stopped(RedisOptions::default());
    let sentinel = redis.url().replace("redis://", "redis-sentinel://");
    for url in [
        redis.url(),
        redis.url().replace("redis://", "redis-cluster://"),
        format!("{sentinel}?sentinelServiceName=forrst"),
    ] {
        let errors = failure(&serve(&url, &["--store-wait", "300ms"]));
        for word in [
            "waiting for the store",
            "gave up after 300ms",
            &redis.address(),
        ] {
            assert!(errors.contains(word), "`{word}` is not in\n{errors}");
        }
        assert!(!errors.contains("--store-wait"), "{errors}");
    }
}

#[test]
fn a_permanent_error_is_not_retried() {
    let redis = RedisOptions::default().password(PASSWORD).tls().start();
    let forgetful = RedisOptions::default().forgetful().start();
    let address = redis.address();
    let stores = [
        (format!("redis://:not-{PASSWORD}@{address}"), "WRONGPASS"),
        (format!("redis://{address}"), "NOAUTH"),
        (redis.url(), "UnknownIssuer"),
        (forgetful.url(), "persistence"),
        (
            "redis://127.0.0.1:notaport".to_owned(),
            "is not a Redis URL",
        ),
        ("redis".to_owned(), "there is no store"),
    ];
    for (url, says) in stores {
        let serve = serve(&url, &LONG_WAIT).argument("--strict");
        let errors = failure(&serve);
        assert!(errors.contains(says), "`{says}` is not in\n{errors}");
        for word in ["waiting for the store", "gave up", "--store-wait"] {
            assert!(!errors.contains(word), "`{word}` is in\n{errors}");
        }
    }
}

#[test]
fn a_wrong_password_ends_the_wait_once_redis_is_up() {
    let mut redis = stopped(RedisOptions::default().password(PASSWORD));
    let url = format!("redis://:wrong@{}", redis.address());
    let running = start_waiting(&serve(&url, &LONG_WAIT), &redis);
    redis.restart();
    assert_eq!(running.wait().code(), Some(1));
    let errors = running.errors();
    assert!(errors.contains("WRONGPASS"), "{errors}");
    assert!(!errors.contains("gave up"), "{errors}");
}

#[test]
fn a_signal_ends_a_server_that_waits() {
    let redis = stopped(RedisOptions::default());
    for signal in [Signal::TERM, Signal::INT] {
        let serve = serve(&redis.url(), &LONG_WAIT);
        let running = start_waiting(&serve, &redis);
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(0), "{}", running.errors());
        assert!(!running.output().contains("curl"), "{}", running.output());
    }
}
