//! The banner of a server, and the command to try in it.

use std::process::Command;

use forrst_testkit::{Running, until};
use serde_json::{Value, json};

use crate::serve::command::{demo, serve};

/// Runs the command to try in a shell, as it is printed.
fn try_it(running: &Running) -> Value {
    let output = running.output();
    let line = output
        .lines()
        .find(|line| line.trim_start().starts_with("curl "));
    let line = line.unwrap_or_else(|| panic!("no curl line in\n{output}"));
    let tried = Command::new("sh").arg("-c").arg(line).output().unwrap();
    let answer = String::from_utf8_lossy(&tried.stdout);
    assert!(
        tried.status.success(),
        "{line}\n{answer}{}",
        String::from_utf8_lossy(&tried.stderr)
    );
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn it_shows_the_address_the_store_the_functions_and_a_command_to_try() {
    let serve = demo(&["--node", "node-7"]);
    let running = serve.start();
    let output = running.output();
    assert!(
        output.starts_with(&format!("forrst {}", env!("CARGO_PKG_VERSION"))),
        "{output}"
    );
    assert!(output.contains("node-7"), "{output}");
    let port = running.address().rsplit(':').next().unwrap().parse::<u16>();
    assert_ne!(port.unwrap(), 0);
    assert!(running.banner("store").starts_with("memory:"), "{output}");
    let functions = running.banner("functions");
    for function in [
        "payments.charge",
        "billing.generateReport",
        "demo.echo",
        "demo.sleep",
        "demo.fail",
        "demo.panic",
        "demo.counter",
    ] {
        assert!(functions.contains(function), "{functions}");
    }
    assert!(output.lines().count() < 15, "too long:\n{output}");
}

#[test]
fn the_command_to_try_works_as_it_is_printed() {
    let serve = demo(&[]);
    let running = serve.start();
    for _ in 0..2 {
        let answer = try_it(&running);
        assert_eq!(answer["id"], "req_001", "{answer:#}");
        assert_eq!(answer["errors"], Value::Null, "{answer:#}");
        assert_eq!(answer["result"]["status"], "succeeded", "{answer:#}");
        assert_eq!(
            answer["extensions"][0]["data"]["acquired"], true,
            "{answer:#}"
        );
    }
}

#[test]
fn the_command_to_try_works_without_the_demo_functions() {
    let serve = serve(&["--store", "memory:"]);
    let running = serve.start();
    assert!(
        running.banner("functions").contains("--demo"),
        "{}",
        running.output()
    );
    let answer = try_it(&running);
    assert_eq!(answer["errors"], Value::Null, "{answer:#}");
    assert_eq!(answer["result"]["acquired"], true, "{answer:#}");
    let unknown = running.call("demo.echo", json!({}));
    assert_eq!(unknown["errors"][0]["code"], "FUNCTION_NOT_FOUND");
}

#[test]
fn the_default_store_is_a_folder() {
    let serve = serve(&[]);
    let running = serve.start();
    assert!(
        running
            .banner("store")
            .starts_with("embedded:./forrst-data"),
        "{}",
        running.output()
    );
    assert!(serve.path("forrst-data").is_dir());
}

#[test]
fn the_demo_functions_do_what_they_say() {
    let serve = demo(&[]);
    let running = serve.start();
    for (function, arguments, at, expected) in [
        ("demo.echo", json!({"a": [1]}), "/result", json!({"a": [1]})),
        (
            "demo.sleep",
            json!({"ms": 1}),
            "/result",
            json!({"slept_ms": 1}),
        ),
        (
            "demo.fail",
            json!({}),
            "/errors/0/code",
            json!("DEMO_FAILED"),
        ),
        (
            "demo.fail",
            json!({"code": "CONFLICT", "message": "no"}),
            "/errors/0/message",
            json!("no"),
        ),
        (
            "demo.fail",
            json!({"code": "lower"}),
            "/errors/0/source/pointer",
            json!("/call/arguments/code"),
        ),
        (
            "demo.panic",
            json!({}),
            "/errors/0/code",
            json!("INTERNAL_ERROR"),
        ),
        (
            "demo.counter",
            json!({"name": "n"}),
            "/result",
            json!({"value": 1}),
        ),
        (
            "demo.counter",
            json!({"name": "n", "ms": 1}),
            "/result",
            json!({"value": 2}),
        ),
        (
            "payments.charge",
            json!({"user_id": "u", "amount": 5}),
            "/result/amount",
            json!(5),
        ),
        (
            "payments.charge",
            json!({"user_id": "u", "amount": 0}),
            "/errors/0/source/pointer",
            json!("/call/arguments/amount"),
        ),
        (
            "billing.generateReport",
            json!({"month": "2024-03"}),
            "/result/month",
            json!("2024-03"),
        ),
    ] {
        let answer = running.call(function, arguments);
        assert_eq!(
            answer.pointer(at),
            Some(&expected),
            "{function}: {answer:#}"
        );
    }
}

/// As in `forrst serve | head -1`.
#[test]
fn a_closed_output_does_not_end_the_server() {
    let serve = demo(&[]).argument("--unix").argument("socket");
    let running = serve.spawn_unread();
    let socket = serve.path("socket");
    until("it listens", || {
        assert!(!running.has_ended(), "it ended: {}", running.errors());
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
}
