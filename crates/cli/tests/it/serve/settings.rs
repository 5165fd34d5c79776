//! The sources of options: a flag overrides the environment, which overrides the file.

use std::net::TcpStream;
use std::time::Duration;

use forrst_testkit::{Lock, Running, Serve, request, until, until_for};
use serde_json::{Value, json};

use crate::serve::command::{bare, demo, serve};

fn millis(count: u64) -> Value {
    json!({"value": count, "unit": "millisecond"})
}

/// A limit in the capabilities of a server, with durations in milliseconds.
fn limit(running: &Running, name: &str) -> Value {
    let answer = running.call("urn:cline:forrst:fn:capabilities", json!({}));
    let limit = answer["result"]["limits"][name].clone();
    let Some(unit) = limit["unit"].as_str() else {
        return limit;
    };
    let factor = match unit {
        "millisecond" => 1,
        "second" => 1_000,
        "minute" => 60_000,
        "hour" => 3_600_000,
        "day" => 86_400_000,
        other => panic!("{other}"),
    };
    millis(limit["value"].as_u64().unwrap() * factor)
}

#[test]
fn a_flag_overrides_the_environment_and_the_environment_the_file() {
    // The option, its value in the file, the environment and the flag, and the limits that the server reports then.
    for (option, capability, [file, variable, flag], [of_file, of_variable, of_flag]) in [
        (
            "max-ttl",
            "max_lock_ttl",
            ["1h", "30m", "1m 30s"],
            [millis(3_600_000), millis(1_800_000), millis(90_000)],
        ),
        (
            "max-block",
            "max_lock_block",
            ["10s", "1500ms", "7m"],
            [millis(10_000), millis(1_500), millis(420_000)],
        ),
        (
            "max-body",
            "max_body_bytes",
            ["64KiB", "2MiB", "70000"],
            [json!(65_536), json!(2_097_152), json!(70_000)],
        ),
    ] {
        let file = format!("{option} = '{file}'");
        let name = format!("FORRST_{}", option.to_uppercase().replace('-', "_"));
        let check = |serve: Serve, expected: &Value| {
            let running = serve.start();
            assert_eq!(limit(&running, capability), *expected, "{option}");
        };
        check(demo(&[]).config(&file), &of_file);
        check(
            demo(&[]).config(&file).variable(&name, variable),
            &of_variable,
        );
        let flag = demo(&[&format!("--{option}"), flag]);
        check(flag.config(&file).variable(&name, variable), &of_flag);
    }
}

#[test]
fn every_option_can_come_from_the_environment() {
    let serve = bare(&[])
        .variable("FORRST_LISTEN", "127.0.0.1:0")
        .variable("FORRST_STORE", "memory:")
        .variable("FORRST_UNIX", "socket")
        .variable("FORRST_DEMO", "true")
        .variable("FORRST_NODE", "from-env")
        .variable("FORRST_LOG_FORMAT", "json")
        .variable("FORRST_LOG_LEVEL", "warn")
        .variable("FORRST_DRAIN_TIMEOUT", "1s")
        .variable("FORRST_MAX_CONNECTIONS", "5");
    let running = serve.start();
    assert!(running.address().starts_with("127.0.0.1:"));
    assert!(running.banner("store").starts_with("memory:"));
    assert_eq!(running.banner("unix"), "socket");
    let answer = running.call("demo.echo", json!({"x": 1}));
    assert_eq!(answer["result"], json!({"x": 1}));
    assert_eq!(answer["meta"]["node"], "from-env");
}

#[test]
fn every_option_can_come_from_the_file() {
    let serve = bare(&[]).config(
        "listen = '127.0.0.1:0'\nstore = 'memory:'\nunix = 'socket'\ndemo = true\nnode = 'from-file'\nlog-format = 'json'\nlog-level = 'warn'\n\
         max-ttl = '1h'\nmax-block = '1m'\nmax-body = '1KiB'\nmax-connections = 5\ndrain-timeout = '1s'\nremember-releases = '2s'\ndurability = 'process'\n",
    );
    let running = serve.start();
    assert_eq!(running.banner("unix"), "socket");
    let answer = running.call("demo.echo", json!({"x": 1}));
    assert_eq!(answer["result"], json!({"x": 1}));
    assert_eq!(answer["meta"]["node"], "from-file");
    assert_eq!(limit(&running, "max_body_bytes"), json!(1024));
}

#[test]
fn the_environment_can_name_the_file() {
    let serve = demo(&[]).variable("FORRST_CONFIG", "named.toml");
    std::fs::write(serve.path("named.toml"), "node = 'named'").unwrap();
    let running = serve.start();
    assert_eq!(
        running.call("demo.echo", json!({}))["meta"]["node"],
        "named"
    );
}

#[test]
fn a_switch_can_be_turned_off_as_well_as_on() {
    let has_demo = |serve: Serve| {
        let running = serve.start();
        running.call("demo.echo", json!({}))["errors"].is_null()
    };
    let plain = || serve(&["--store", "memory:"]);
    assert!(!has_demo(plain()));
    assert!(has_demo(plain().argument("--demo")));
    assert!(has_demo(plain().config("demo = true")));
    assert!(!has_demo(plain().config("demo = false")));
    assert!(has_demo(plain().variable("FORRST_DEMO", "true")));
    assert!(!has_demo(plain().variable("FORRST_DEMO", "false")));
    assert!(has_demo(
        plain()
            .config("demo = false")
            .variable("FORRST_DEMO", "true")
    ));
    assert!(has_demo(
        plain().argument("--demo").variable("FORRST_DEMO", "false")
    ));
}

#[test]
fn the_environment_can_turn_off_what_the_file_turns_on() {
    let serve = serve(&["--store", "memory:"])
        .config("demo = true")
        .variable("FORRST_DEMO", "false");
    let running = serve.start();
    let answer = running.call("demo.echo", json!({}));
    assert_eq!(
        answer["errors"][0]["code"], "FUNCTION_NOT_FOUND",
        "{answer:#}"
    );
}

/// Containers set switches to `1` and `0`.
#[test]
fn a_switch_in_the_environment_may_be_a_number() {
    for (value, is_on) in [("1", true), ("0", false)] {
        let serve = serve(&["--store", "memory:"]).variable("FORRST_DEMO", value);
        let running = serve.start();
        let is_there = running.call("demo.echo", json!({}))["errors"].is_null();
        assert_eq!(is_there, is_on, "FORRST_DEMO={value}");
    }
}

#[test]
fn limits_are_enforced() {
    let serve = demo(&[
        "--max-ttl",
        "10s",
        "--max-block",
        "1s",
        "--max-body",
        "1KiB",
    ]);
    let running = serve.start();
    let acquire = |ttl: u64, block: u64| {
        let second = |value: u64| json!({"value": value, "unit": "second"});
        let arguments = json!({"key": "k", "ttl": second(ttl), "block": second(block)});
        running.call("urn:cline:forrst:ext:atomic-lock:fn:acquire", arguments)
    };
    let refused = acquire(11, 2);
    let pointers: Vec<&Value> = refused["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["source"]["pointer"])
        .collect();
    assert_eq!(pointers, ["/call/arguments/ttl", "/call/arguments/block"]);
    assert_eq!(acquire(10, 1)["result"]["acquired"], true);
    let large = request("demo.echo", json!({"x": "x".repeat(1024)}));
    assert_eq!(running.ask(&large).status, 413);
}

#[test]
fn connections_are_limited() {
    let serve = demo(&["--max-connections", "1"]);
    let running = serve.start();
    let status = || running.ask(&request("demo.echo", json!({}))).status;
    let taken = TcpStream::connect(running.address()).unwrap();
    until("the only connection is taken", || status() == 503);
    drop(taken);
    until("it is free again", || status() == 200);
}

#[test]
fn a_release_is_remembered_for_as_long_as_the_option_says() {
    let running = serve(&["--store", "memory:", "--remember-releases", "1s"]).start();
    let lock = Lock::global("k");
    let lease = running.ask(&lock.acquire("a", Duration::from_secs(60)));
    let fence = lease.granted().unwrap().fence;
    let release = || running.ask(&lock.release("a", fence));
    assert_eq!(release().code(), None);
    // The default is longer.
    until_for(Duration::from_secs(20), "it is forgotten", || {
        release().code() == Some("LOCK_NOT_FOUND")
    });
}
