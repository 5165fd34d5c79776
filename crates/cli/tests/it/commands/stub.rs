//! `forrst conformance stub`, played by a client that is written here.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use forrst_testkit::{post, request};
use serde_json::{Value, json};

use crate::commands::forrst::Forrst;

const VECTOR: &str = "grant-is-handed-to-the-caller";
const FENCE: &str = "000000000000007";

#[test]
fn the_stub_lists_its_vectors() {
    let ended = Forrst::alone(&["conformance", "stub", "--list"]).run();
    let ended = ended.check(0);
    assert!(ended.output.lines().count() >= 40, "{}", ended.output);
    assert!(ended.output.lines().any(|name| name == VECTOR));
    Forrst::alone(&["conformance", "stub", "--vector", "no-such"])
        .run()
        .check(2)
        .check_errors(&["no-such", "--list"]);
}

#[test]
fn a_client_that_does_what_the_vector_says_passes() {
    let mut stub = Stub::start();
    stub.acquire_and_release(FENCE);
    let outcome = json!([
        {"ok": true, "fence": FENCE, "owner": "me", "full_keys": ["lock:k"]},
        {"ok": true},
    ]);
    let (verdict, code) = stub.end(&json!({"outcome": outcome}));
    assert_eq!((verdict, code), (vec![json!({"verdict": "passed"})], 0));
}

#[test]
fn a_wrong_request_and_a_wrong_outcome_fail() {
    let mut stub = Stub::start();
    stub.acquire_and_release("000000000000008");
    let outcome = json!([
        {"ok": true, "fence": FENCE, "owner": "me", "full_keys": ["lock:k"]},
        {"ok": false, "error": "lost"},
    ]);
    let (verdict, code) = stub.end(&json!({"outcome": outcome}));
    let wrong: Vec<&str> = verdict
        .iter()
        .filter_map(|line| line["mismatch"]["at"].as_str())
        .collect();
    let places = ["request 2 (release) /arguments/fence", "outcome /1/ok"];
    assert_eq!((wrong, code), (places.to_vec(), 1));
    assert_eq!(verdict.last(), Some(&json!({"verdict": "failed"})));
}

#[test]
fn a_vector_can_be_skipped_and_a_missing_outcome_is_an_error() {
    let (verdict, code) = Stub::start().end(&json!({"skip": "no watch"}));
    assert_eq!((verdict, code), (vec![json!({"verdict": "skipped"})], 0));
    let (verdict, code) = Stub::start().end(&json!({}));
    assert_eq!((verdict, code), (vec![], 1));
}

/// A stub that runs, and what it has told the client.
struct Stub {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Stub {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_forrst"))
            .args(["conformance", "stub", "--vector", VECTOR])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(told["vector"], VECTOR);
        assert_eq!(told["do"][1], json!({"release": {}}));
        let address = told["url"].as_str().unwrap().replace("http://", "");
        Self {
            process,
            output,
            address,
        }
    }

    fn acquire_and_release(&mut self, fence: &str) {
        let prefix = "urn:cline:forrst:ext:atomic-lock:fn";
        let ttl = json!({"value": 1, "unit": "minute"});
        let acquire = json!({"key": "k", "owner": "me", "attempt": "a", "ttl": ttl});
        let answer = post(
            &self.address,
            &request(&format!("{prefix}:acquire"), acquire),
        );
        assert_eq!(answer.unwrap().body["result"]["fence"], FENCE);
        let release = json!({"key": "lock:k", "owner": "me", "fence": fence});
        let release = request(&format!("{prefix}:release"), release);
        assert_eq!(post(&self.address, &release).unwrap().status, 200);
    }

    /// Writes the client's report, and returns the lines that follow and the exit code.
    fn end(mut self, report: &Value) -> (Vec<Value>, i32) {
        let mut input = self.process.stdin.take().unwrap();
        writeln!(input, "{report}").unwrap();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let lines = rest
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (lines, self.process.wait().unwrap().code().unwrap())
    }
}
