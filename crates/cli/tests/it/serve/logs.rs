//! The log of the server: formats, levels, what it hides, and what happens when it is not read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forrst_testkit::{Running, Serve, request, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::command::demo;
use crate::serve::request::locked;

/// The log of a server with a panic, a call that is cut off, and a shutdown.
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

#[test]
fn a_line_about_a_traced_call_has_its_trace_id() {
    let errors = eventful(&["--log-format", "json"]);
    let panic = errors
        .lines()
        .find(|line| line.contains("the demonstration of a panic"));
    let panic = panic.unwrap_or_else(|| panic!("the panic is not logged:\n{errors}"));
    assert!(panic.contains("trace-of-the-panic"), "{panic}");
}

/// The log lines of a server that answers a ping and ends.
fn lines_of(serve: Serve) -> Vec<Value> {
    let running = serve.argument("--log-format").argument("json").start();
    running.call("urn:cline:forrst:fn:ping", json!({}));
    connect_by_http2(&running);
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
    let errors = running.errors();
    let lines = errors.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// Opens an HTTP/2 connection: the library for it logs much at `DEBUG`.
fn connect_by_http2(running: &Running) {
    let mut stream = TcpStream::connect(running.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&settings).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// Whether there are lines at `DEBUG`, about the ping, and at `INFO`, about the end.
fn shown(serve: Serve) -> (bool, bool) {
    let lines = lines_of(serve);
    let is_ping = |line: &Value| line["fields"]["function"] == "urn:cline:forrst:fn:ping";
    let is_end = |line: &Value| line["fields"]["message"] == "shutting down";
    (lines.iter().any(is_ping), lines.iter().any(is_end))
}

#[test]
fn the_level_chooses_the_lines() {
    let at = |level| shown(demo(&["--log-level", level]));
    assert_eq!(shown(demo(&[])), (false, true));
    assert_eq!(at("debug"), (true, true));
    assert_eq!(at("info"), (false, true));
    assert_eq!(at("warn"), (false, false));
    let by_variable = demo(&[]).variable("FORRST_LOG_LEVEL", "debug");
    assert_eq!(shown(by_variable), (true, true));
    assert_eq!(
        shown(demo(&[]).config("log-level = 'warn'")),
        (false, false)
    );
}

#[test]
fn rust_log_overrides_the_level() {
    let at_warn = |rust_log| demo(&["--log-level", "warn"]).variable("RUST_LOG", rust_log);
    assert_eq!(shown(at_warn("info")), (false, true));
    assert_eq!(shown(at_warn("error,forrst::request=debug")), (true, false));
    assert_eq!(
        shown(demo(&["--log-level", "debug"]).variable("RUST_LOG", "")),
        (true, true),
        "an empty variable counts as not set"
    );
}

#[test]
fn libraries_stay_quiet_at_every_level() {
    let lines = lines_of(demo(&["--log-level", "trace"]));
    assert!(lines.iter().any(|line| line["level"] == "DEBUG"));
    for line in lines {
        let target = line["target"].as_str().unwrap();
        let is_quiet = ["ERROR", "WARN", "INFO"].contains(&line["level"].as_str().unwrap());
        assert!(target.starts_with("forrst") || is_quiet, "{line}");
    }
}

#[test]
fn as_text_lines_are_neither_json_nor_coloured() {
    let errors = eventful(&[]);
    assert!(errors.contains("shutting down"), "{errors}");
    assert!(
        !errors.contains('\u{1b}'),
        "colours without a terminal: {errors}"
    );
    assert!(
        errors.lines().all(|line| !line.starts_with('{')),
        "{errors}"
    );
}

/// Keys often contain names of customers and the like.
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

/// More lines than a pipe and the queue of the log hold.
const MANY: usize = 12_000;

/// Sends a request that closes its connection, and reads the answer. A server that hangs fails the test.
fn exchange(running: &Running, text: &str) -> String {
    let mut stream = TcpStream::connect(running.address()).unwrap();
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(running: &Running, path: &str) -> String {
    let text = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let answer = exchange(running, &text);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Makes locked calls, each of which is logged in one line.
fn call_often(running: &Running, count: usize) {
    let mut entry = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call"});
    for batch in 0..count / 100 {
        let entries = (0..100).map(|number| {
            let call = request("demo.echo", json!({}));
            entry["params"] = locked(call, &format!("{batch}-{number}"));
            entry.clone()
        });
        let body = Value::from_iter(entries).to_string();
        let head = "POST /rpc HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                    content-type: application/json";
        let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let answer = exchange(running, &text);
        assert_eq!(answer.matches("acquired\":true").count(), 100, "{answer}");
    }
}

#[test]
fn a_log_that_is_not_read_blocks_neither_calls_nor_the_shutdown() {
    let running =
        demo(&["--drain-timeout", "2s", "--log-level", "debug"]).start_with_unread_errors();
    call_often(&running, MANY);
    get(&running, "/health");
    let metrics = get(&running, "/metrics");
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("forrst_log_lines_dropped_total "));
    let dropped = dropped.and_then(|count| count.parse::<u64>().ok());
    assert!(dropped > Some(0), "{metrics}");
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn a_log_that_is_read_again_counts_the_dropped_lines() {
    for format in ["text", "json"] {
        let options = ["--log-level", "debug", "--log-format", format];
        let running = demo(&options).start_with_unread_errors();
        call_often(&running, MANY);
        running.read_errors();
        until("the lines that are missing are counted", || {
            running.errors().contains(" lines dropped)")
        });
        running.signal(Signal::TERM);
        assert_eq!(running.wait().code(), Some(0));
        let errors = running.errors();
        assert!(errors.contains("bye"), "the last line is missing");
        if format == "json" {
            for line in errors.lines() {
                serde_json::from_str::<Value>(line).unwrap_or_else(|why| panic!("{why}: {line}"));
            }
        }
    }
}

/// A panic within a call that names its trace.
fn traced_panic(trace_id: &str) -> Value {
    let mut call = request("demo.panic", json!({}));
    let options = json!({"trace_id": trace_id, "span_id": trace_id});
    call["extensions"] = json!([{"urn": "urn:forrst:ext:tracing", "options": options}]);
    call
}

#[test]
fn what_a_caller_sends_is_escaped_and_cut() {
    for format in [&[][..], &["--log-format", "json"]] {
        let running = demo(format).start();
        let forged = "x\r\n2026-01-01 ERROR forged\u{1b}[31m\u{9b}31m\u{2028}";
        let long = "y".repeat(100_000);
        for trace_id in [forged, &long] {
            assert_eq!(running.ask(&traced_panic(trace_id)).status, 500);
        }
        running.signal(Signal::TERM);
        running.wait();
        let errors = running.errors();
        assert!(errors.contains("forged"), "{errors}");
        for line in errors.lines() {
            assert!(line.len() < 2048, "{} bytes: {line:.300}", line.len());
            assert!(!line.starts_with("2026-01-01 ERROR"), "{errors}");
        }
        let is_control = |c: char| (c.is_control() && c != '\n') || c == '\u{2028}';
        let raw = errors.chars().any(is_control);
        assert!(!raw || !format.is_empty(), "{errors:?}");
    }
}

#[test]
fn durations_have_three_decimals() {
    let errors = eventful(&[]);
    let mut durations = errors.split("duration_ms=").skip(1);
    let first = durations.next().unwrap_or_else(|| panic!("{errors}"));
    let first = first.split(' ').next().unwrap();
    let decimals = first.split_once('.').map(|(_, decimals)| decimals.len());
    assert_eq!(decimals, Some(3), "{first}");
    let errors = eventful(&["--log-format", "json"]);
    let lines = errors
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let durations = lines.filter_map(|line: Value| line["fields"]["duration_ms"].as_f64());
    for duration in durations {
        let text = duration.to_string();
        let decimals = text
            .split_once('.')
            .map_or(0, |(_, decimals)| decimals.len());
        assert!(decimals <= 3, "{text}");
    }
}
