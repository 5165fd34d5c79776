//! The request log: one line for each request that fails, and for all requests at `--log-level debug`.

use forrst_testkit::{Running, Serve, request, until};
use rustix::process::Signal;
use serde_json::{Value, json};

fn serve(arguments: &[&str]) -> Running {
    let all = [
        &["--demo", "--store", "memory:", "--log-format", "json"],
        arguments,
    ]
    .concat();
    Serve::new(env!("CARGO_BIN_EXE_forrst"), &all).start()
}

/// The lines about requests, once the server has ended.
fn lines(running: &Running) -> Vec<Value> {
    running.signal(Signal::TERM);
    running.wait();
    let errors = running.errors();
    let lines = errors
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines
        .filter(|line: &Value| line["target"] == "forrst::request")
        .collect()
}

fn locked(function: &str, arguments: Value, key: &str) -> Value {
    let mut call = request(function, arguments);
    let options = json!({"key": key, "ttl": {"value": 30, "unit": "second"}});
    call["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": options}]);
    call
}

#[test]
fn a_request_is_one_line_with_its_id_function_code_and_duration() {
    let running = serve(&["--log-level", "debug"]);
    running.ask(&locked("demo.echo", json!({}), "card-4111"));
    let lines = lines(&running);
    let [line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(line["level"], "DEBUG");
    let fields = &line["fields"];
    assert_eq!(fields["function"], "demo.echo");
    assert_eq!(fields["code"], "OK");
    assert!(fields["id"].is_string(), "{line}");
    assert!(
        fields["duration_ms"].as_f64().is_some_and(|ms| ms > 0.0),
        "{line}"
    );
    assert_eq!(fields["lock"].as_str().map(str::len), Some(16), "{line}");
    assert!(!line.to_string().contains("4111"), "{line}");
}

#[test]
fn log_keys_shows_the_key() {
    let running = serve(&["--log-keys", "--log-level", "debug"]);
    running.ask(&locked("demo.echo", json!({}), "card-4111"));
    let lines = lines(&running);
    assert_eq!(lines[0]["fields"]["lock"], "lock:demo.echo:card-4111");
}

#[test]
fn errors_of_the_server_and_of_the_caller_have_different_levels() {
    let running = serve(&[]);
    running.ask(&request("demo.panic", json!({})));
    running.ask(&request("no.such", json!({})));
    running.ask(&request("urn:cline:forrst:fn:ping", json!({})));
    let seen: Vec<(Value, Value)> = lines(&running)
        .iter()
        .map(|line| (line["fields"]["code"].clone(), line["level"].clone()))
        .collect();
    let expected = [
        (json!("INTERNAL_ERROR"), json!("ERROR")),
        (json!("FUNCTION_NOT_FOUND"), json!("INFO")),
    ];
    assert_eq!(seen, expected, "successful requests are logged at debug");
}

#[test]
fn a_request_id_cannot_forge_a_line() {
    let serve = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--demo", "--store", "memory:", "--log-level", "debug"],
    );
    let running = serve.start();
    let mut call = request("demo.echo", json!({}));
    call["id"] = json!("x\n2026-01-01 ERROR forged");
    running.ask(&call);
    until("the line is there", || running.errors().contains("forged"));
    let errors = running.errors();
    assert!(
        errors
            .lines()
            .all(|line| !line.starts_with("2026-01-01 ERROR")),
        "{errors}"
    );
}
