//! `forrst bench`: what it measures, and which violations it finds.

use forrst_testkit::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::commands::fake_server;
use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

/// Four connections contend for two keys.
const CONTENDED: [&str; 9] = [
    "bench",
    "--duration",
    "500ms",
    "--connections",
    "4",
    "--keys",
    "2",
    "--hold",
    "5ms",
];

#[test]
fn a_correct_server_has_no_violations() {
    let server = Server::start();
    let ended = Forrst::new(&server, &CONTENDED).run().check(0);
    for words in [
        "granted",
        "acquire",
        "release",
        "p99.9",
        "No two holders overlapped",
    ] {
        assert!(ended.output.contains(words), "{words} in {ended:#?}");
    }
    assert!(
        ended.errors.is_empty(),
        "no progress bar without a terminal: {ended:#?}"
    );
    let summary = Forrst::new(&server, &[&CONTENDED[..], &["--json"]].concat()).json();
    assert!(summary["granted"].as_u64() > Some(0), "{summary:#}");
    assert_eq!(summary["violations"]["count"], 0);
    assert!(summary["latency_us"]["acquire"]["p99"].as_u64() > Some(0));
    assert_eq!(summary["errors"], serde_json::json!({}));
    let list = Forrst::new(&server, &["lock", "list"]).run().check(0);
    assert_eq!(list.output, "No locks are held\n", "no lock is left behind");
}

#[test]
fn waits_that_time_out_are_counted() {
    let server = Server::start();
    let short = [
        "bench",
        "--duration",
        "500ms",
        "--keys",
        "1",
        "--hold",
        "200ms",
        "--block",
        "1ms",
        "--json",
    ];
    let summary = Forrst::new(&server, &short).json();
    assert!(summary["timed_out"].as_u64() > Some(0), "{summary:#}");
}

fn count(summary: &Value, pointer: &str) -> u64 {
    let count = summary.pointer(pointer).and_then(Value::as_u64);
    count.unwrap_or_else(|| panic!("no number at {pointer} in {summary:#}"))
}

/// Otherwise a server that lets every client wait would look fast.
#[test]
fn calls_that_time_out_are_in_the_histogram() {
    let server = Server::start();
    let short = [
        "bench",
        "--duration",
        "500ms",
        "--keys",
        "1",
        "--hold",
        "200ms",
        "--block",
        "50ms",
        "--json",
    ];
    let summary = Forrst::new(&server, &short).json();
    let timed_out = count(&summary, "/timed_out");
    assert!(timed_out > 0, "{summary:#}");
    let all = count(&summary, "/granted") + timed_out;
    assert_eq!(count(&summary, "/latency_us/acquire/count"), all);
    assert!(count(&summary, "/latency_us/waiting/max") >= 50_000 - 50);
}

/// Three connections contend for one lock: each waits at least while another one holds it.
#[test]
fn waiting_and_service_are_measured_separately() {
    let server = Server::start();
    let crowded = [
        "bench",
        "--duration",
        "2s",
        "--connections",
        "3",
        "--keys",
        "1",
        "--hold",
        "200ms",
        "--ttl",
        "100s",
        "--block",
        "60s",
        "--json",
    ];
    let summary = Forrst::new(&server, &crowded).json();
    assert!(
        count(&summary, "/latency_us/waiting/p50") >= 150_000,
        "{summary:#}"
    );
    // The first acquisition does not wait, but is counted.
    let parts = ["acquire", "waiting", "service"];
    let counts = parts.map(|part| count(&summary, &format!("/latency_us/{part}/count")));
    assert_eq!(counts, [count(&summary, "/granted"); 3]);
}

#[test]
fn a_fixed_rate_is_not_exceeded() {
    let server = Server::start();
    let slow = ["bench", "--duration", "1s", "--rate", "20", "--json"];
    let summary = Forrst::new(&server, &slow).json();
    let granted = count(&summary, "/granted");
    assert!((1..=20).contains(&granted), "{summary:#}");
    let printed = Forrst::new(&server, &slow[..5]).run().check(0);
    assert!(
        printed.output.contains("20 due each second"),
        "{printed:#?}"
    );
}

/// The latency of a server that is too slow for the rate is not that of the few calls that were sent.
#[test]
fn acquisitions_that_were_due_but_not_sent_are_counted() {
    let server = Server::start();
    let overload = [
        "bench",
        "--duration",
        "1s",
        "--connections",
        "1",
        "--keys",
        "1",
        "--hold",
        "200ms",
        "--rate",
        "100",
        "--json",
    ];
    let summary = Forrst::new(&server, &overload).json();
    assert!(count(&summary, "/unsent") >= 80, "{summary:#}");
    assert!(
        count(&summary, "/latency_us/acquire/p90") >= 100_000,
        "{summary:#}"
    );
    let all = count(&summary, "/granted") + count(&summary, "/unsent");
    assert_eq!(count(&summary, "/latency_us/acquire/count"), all);
}

#[test]
fn grants_after_the_end_are_not_in_the_rate() {
    let server = Server::start();
    let long = [
        "bench",
        "--duration",
        "2s",
        "--connections",
        "1",
        "--keys",
        "1",
        "--hold",
        "5s",
        "--json",
    ];
    let summary = Forrst::new(&server, &long).json();
    assert_eq!(count(&summary, "/granted"), 1, "{summary:#}");
    assert_eq!(count(&summary, "/elapsed_ms"), 2000);
    assert_eq!(summary["granted_per_second"], 0.5);
}

#[track_caller]
fn violations(url: &str, kind: &str) -> Value {
    let ended = Forrst::alone(&[&CONTENDED[..], &["--json", "--url", url]].concat())
        .run()
        .check(1);
    let summary = ended.json();
    let first = summary["violations"]["first"].as_array().unwrap();
    assert!(
        first.iter().any(|one| one["violation"] == kind),
        "{summary:#}"
    );
    summary
}

#[test]
fn a_server_that_grants_a_lock_twice_is_detected() {
    let url = fake_server::start(|number| number);
    violations(&url, "overlap");
    let ended = Forrst::alone(&[&CONTENDED[..], &["--url", &url]].concat())
        .run()
        .check(1);
    assert!(
        ended.output.contains("while it was held with fence"),
        "{ended:#?}"
    );
}

#[test]
fn a_server_whose_fences_do_not_grow_is_detected() {
    let url = fake_server::start(|_| 7);
    violations(&url, "fence");
    // With one connection, no holders overlap: only the fences are wrong.
    let alone = [
        "bench",
        "--duration",
        "300ms",
        "--connections",
        "1",
        "--json",
        "--url",
        &url,
        "--keys",
        "1",
    ];
    let summary = Forrst::alone(&alone).run().check(1).json();
    let first = summary["violations"]["first"].as_array().unwrap();
    assert!(
        first.iter().all(|one| one["violation"] == "fence"),
        "{summary:#}"
    );
}

#[test]
fn an_interrupted_run_prints_its_summary() {
    let server = Server::start();
    let bench = Forrst::new(&server, &["bench", "--duration", "1h", "--json"]).start();
    until("it has begun", || {
        let list = Forrst::new(&server, &["lock", "list"]).run();
        list.output.contains("lock:bench:")
    });
    bench.signal(Signal::INT);
    let summary = bench.wait().check(0).json();
    assert!(summary["granted"].as_u64() > Some(0), "{summary:#}");
}

/// Including locks that it holds or waits for at that moment.
#[test]
fn a_run_that_is_ended_by_a_signal_leaves_no_locks() {
    let server = Server::start();
    let bench = [
        "bench",
        "--duration",
        "1h",
        "--connections",
        "3",
        "--keys",
        "1",
        "--hold",
        "10m",
        "--ttl",
        "20m",
        "--block",
        "5m",
        "--json",
    ];
    for signal in [Signal::TERM, Signal::INT] {
        let bench = Forrst::new(&server, &bench).start();
        let list = || Forrst::new(&server, &["lock", "list"]).run().output;
        until("it has begun", || list().contains("lock:bench:"));
        bench.signal(signal);
        bench.wait().check(0);
        assert_eq!(list(), "No locks are held\n");
    }
}

#[test]
fn an_unreachable_server_is_reported() {
    let bench = ["bench", "--url", "http://127.0.0.1:1"];
    Forrst::alone(&bench)
        .run()
        .check(69)
        .check_errors(&["http://127.0.0.1:1"]);
}
