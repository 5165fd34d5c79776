//! `forrst bench`.

use forrst_testkit::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::commands::fake_server;
use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

/// Four connections, two keys, held for a moment.
const CROWDED: [&str; 9] = [
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
fn a_server_that_keeps_its_promises() {
    let server = Server::start();
    let ended = Forrst::new(&server, &CROWDED).run().check(0);
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
        "no progress where there is no terminal: {ended:#?}"
    );
    let summary = Forrst::new(&server, &[&CROWDED[..], &["--json"]].concat()).json();
    assert!(summary["granted"].as_u64() > Some(0), "{summary:#}");
    assert_eq!(summary["violations"]["count"], 0);
    assert!(summary["latency_us"]["acquire"]["p99"].as_u64() > Some(0));
    assert_eq!(summary["errors"], serde_json::json!({}));
    let list = Forrst::new(&server, &["lock", "list"]).run().check(0);
    assert_eq!(list.output, "No locks are held\n", "nothing is left behind");
}

#[test]
fn waits_that_are_too_short_are_counted() {
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

#[track_caller]
fn violations(url: &str, kind: &str) -> Value {
    let ended = Forrst::alone(&[&CROWDED[..], &["--json", "--url", url]].concat())
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
fn a_server_that_grants_to_everybody_is_found_out() {
    let url = fake_server::generous(|number| number);
    violations(&url, "overlap");
    let ended = Forrst::alone(&[&CROWDED[..], &["--url", &url]].concat())
        .run()
        .check(1);
    assert!(
        ended.output.contains("while it was held with fence"),
        "{ended:#?}"
    );
}

#[test]
fn a_server_whose_fences_do_not_grow_is_found_out() {
    let url = fake_server::generous(|_| 7);
    violations(&url, "fence");
    // One at a time, nobody overlaps: only the fences are wrong.
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
fn interrupted_it_tells_what_it_has_seen() {
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

/// Also those that it holds or waits for in that moment.
#[test]
fn ended_gently_it_leaves_no_locks() {
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
fn without_a_server_there_is_nothing_to_measure() {
    let bench = ["bench", "--url", "http://127.0.0.1:1"];
    Forrst::alone(&bench)
        .run()
        .check(69)
        .complains(&["http://127.0.0.1:1"]);
}
