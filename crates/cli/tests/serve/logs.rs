//! What the server says while it runs.

use forrst_testkit::request;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command::demo;
use crate::request::locked;

/// Everything that makes a server speak: a panic, a call that is cut off, and its end.
fn eventful(format: &[&str]) -> String {
    let serve = demo(&[format, &["--drain-timeout", "100ms"]].concat());
    let running = serve.start();
    let mut traced = request("demo.panic", json!({}));
    traced["extensions"] = json!([{"urn": "urn:forrst:ext:tracing", "options": {"trace_id": "trace-of-the-panic", "span_id": "s"}}]);
    assert_eq!(running.ask(&traced).status, 500);
    let call = running.start_ask(locked(request("demo.sleep", json!({"ms": 600_000})), "k"));
    running.until_locked("lock:k");
    running.signal(Signal::TERM);
    assert_eq!(call.join().unwrap().unwrap().status, 503);
    assert_eq!(running.wait().code(), Some(0));
    running.errors()
}

#[test]
fn as_json_every_line_is_an_object() {
    let errors = eventful(&["--log-format", "json"]);
    let lines: Vec<Value> = errors
        .lines()
        .map(|line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{error}: {line}\nin\n{errors}"))
        })
        .collect();
    assert!(lines.len() >= 3, "{errors}");
    for line in &lines {
        for member in ["timestamp", "level", "target", "fields"] {
            assert!(!line[member].is_null(), "{line}");
        }
    }
    let messages: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["fields"]["message"].as_str())
        .collect();
    assert!(messages.contains(&"shutting down"), "{messages:?}");
}

/// The ids of the caller's trace lead to the lines that its call has caused.
#[test]
fn a_line_about_a_traced_call_has_the_ids_of_its_trace() {
    let errors = eventful(&["--log-format", "json"]);
    let panic = errors
        .lines()
        .find(|line| line.contains("the demonstration of a panic"));
    let panic = panic.unwrap_or_else(|| panic!("the panic is not logged:\n{errors}"));
    assert!(panic.contains("trace-of-the-panic"), "{panic}");
}

#[test]
fn as_text_lines_are_for_people() {
    let errors = eventful(&[]);
    assert!(errors.contains("shutting down"), "{errors}");
    assert!(
        !errors.contains('\u{1b}'),
        "colours where nobody sees them: {errors}"
    );
    assert!(
        errors.lines().all(|line| !line.starts_with('{')),
        "{errors}"
    );
}

/// Keys often contain whom and what a service deals with.
#[test]
fn keys_and_owners_stay_out_of_the_log() {
    let serve = demo(&["--log-format", "json"]).variable("RUST_LOG", "trace");
    let running = serve.start();
    let call = locked(
        request("demo.echo", json!({"secret": "argument-4111"})),
        "card-4111",
    );
    assert_eq!(running.ask(&call).status, 200);
    running.signal(Signal::TERM);
    running.wait();
    let own: Vec<String> = running
        .errors()
        .lines()
        .filter(|line| line.contains("\"target\":\"forrst"))
        .map(str::to_owned)
        .collect();
    for line in own {
        assert!(!line.contains("4111"), "{line}");
    }
}
