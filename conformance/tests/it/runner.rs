//! Tests of the runner against a stub server with scripted answers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_conformance::{Counts, Failure, Options, Report, RunError, Transport, run};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A server that answers each request with the next of its answers, and repeats the last one. It never answers where that is `null`.
struct Stub {
    url: String,
    state: Arc<Mutex<StubState>>,
}

#[derive(Default)]
struct StubState {
    answers: VecDeque<Value>,
    requests: Vec<Value>,
    disconnects: usize,
}

impl Stub {
    async fn start(answers: impl IntoIterator<Item = Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(StubState {
            answers: answers.into_iter().collect(),
            ..StubState::default()
        }));
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        Self { url, state }
    }

    fn requests(&self) -> Vec<Value> {
        self.state.lock().unwrap().requests.clone()
    }

    fn disconnects(&self) -> usize {
        self.state.lock().unwrap().disconnects
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<StubState>>) {
    let Some(request) = read_request(&mut stream).await else {
        return;
    };
    let answer = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        match state.answers.len() {
            0 | 1 => state.answers.front().cloned().unwrap_or_default(),
            _ => state.answers.pop_front().unwrap_or_default(),
        }
    };
    if answer.is_null() {
        if let Ok(0) | Err(_) = stream.read(&mut [0; 1]).await {
            state.lock().unwrap().disconnects += 1;
        }
        return;
    }
    let mut body = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": request["id"],
        "meta": {"node": "stub"},
    });
    let members = body.as_object_mut().unwrap();
    members.extend(answer.as_object().unwrap().clone());
    let body = body.to_string();
    let id = request["id"].as_str().unwrap_or_default();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         x-forrst-request-id: {id}\r\nx-forrst-duration-ms: 0\r\nx-forrst-node: stub\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + &body).as_bytes()).await;
}

pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<Value> {
    let mut received = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let length = stream
            .read(&mut chunk)
            .await
            .ok()
            .filter(|length| *length > 0)?;
        received.extend_from_slice(&chunk[..length]);
        let body = received
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .and_then(|end| serde_json::from_slice(&received[end + 4..]).ok());
        if body.is_some() {
            return body;
        }
    }
}

/// A folder with one vector, removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn with(steps: &Value) -> Self {
        Self::over("http", steps)
    }

    fn over(transport: &str, steps: &Value) -> Self {
        let name = format!(
            "forrst-conformance-{}-{}",
            std::process::id(),
            fastrand::u64(..)
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("group")).unwrap();
        let vector = json!({
            "name": "case", "source": "test", "about": "A case.", "transports": [transport], "steps": steps
        });
        let folder = Self(folder);
        folder.write(&vector);
        folder
    }

    fn write(&self, vector: &Value) {
        std::fs::write(self.0.join("group/case.json"), vector.to_string()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn play(stub: &Stub, steps: Value) -> Report {
    let folder = Folder::with(&steps);
    let options = Options {
        transports: vec![Transport::Http],
        patience: Duration::from_millis(500),
        vectors: Some(folder.0.clone()),
        ..Options::default()
    };
    run(&stub.url, &options).await.unwrap()
}

async fn passes(stub: &Stub, steps: Value) {
    let report = play(stub, steps).await;
    assert_eq!(report.counts().passed, 1, "{report}");
}

async fn fails(stub: &Stub, steps: Value) -> Failure {
    let report = play(stub, steps).await;
    let (_, failure) = report.failures().next().expect("a failure");
    failure.clone()
}

fn call(expect: &Value) -> Value {
    json!({"call": {"function": "a.b"}, "expect": expect})
}

#[tokio::test]
async fn a_captured_value_is_used_in_later_requests_and_expectations() {
    let stub = Stub::start([json!({"result": {"owner": "me"}})]).await;
    let steps = json!([
        {"call": {"function": "a.b"}, "expect": {}, "capture": {"owner": "/result/owner"}},
        {
            "call": {"function": "a.c", "arguments": {"owner": "${owner}", "key": "lock:${unique}"}},
            "expect": {"body": {"result": {"owner": "${owner}"}}}
        }
    ]);
    passes(&stub, steps).await;
    let arguments = &stub.requests()[1]["call"]["arguments"];
    assert_eq!(arguments["owner"], "me");
    assert_eq!(arguments["key"].as_str().map(str::len), Some(5 + 12));
}

#[tokio::test]
async fn a_missing_value_to_capture_is_a_failure() {
    let stub = Stub::start([json!({"result": {}})]).await;
    let steps = json!([{"call": {"function": "a.b"}, "expect": {}, "capture": {"x": "/result/x"}}]);
    assert_eq!(fails(&stub, steps).await.mismatches[0].at, "/result/x");
}

#[tokio::test]
async fn the_first_step_that_fails_ends_the_vector() {
    let stub = Stub::start([json!({"result": 1})]).await;
    let wrong = call(&json!({"body": {"result": 2}}));
    let failure = fails(&stub, json!([call(&json!({})), wrong, call(&json!({}))])).await;
    assert_eq!(failure.step, 2);
    assert_eq!(failure.mismatches[0].at, "/result");
    assert!(
        failure.answer.starts_with("HTTP 200 "),
        "{}",
        failure.answer
    );
    assert_eq!(stub.requests().len(), 2);
}

#[tokio::test]
async fn the_rules_are_checked_even_if_a_vector_expects_nothing() {
    let stub = Stub::start([json!({"result": 1, "id": "another"})]).await;
    assert_eq!(
        fails(&stub, json!([call(&json!({}))])).await.mismatches[0].at,
        "/id"
    );
}

#[tokio::test]
async fn until_retries_until_the_expectation_holds() {
    let not_yet = || json!({"result": {"locked": true}});
    let stub = Stub::start([not_yet(), not_yet(), json!({"result": {"locked": false}})]).await;
    let mut step = call(&json!({"body": {"result": {"locked": false}}}));
    step["until_ms"] = json!(5000);
    passes(&stub, json!([step])).await;
    assert_eq!(stub.requests().len(), 3);
}

#[tokio::test]
async fn until_gives_up() {
    let stub = Stub::start([json!({"result": 1})]).await;
    let mut step = call(&json!({"body": {"result": 2}}));
    step["until_ms"] = json!(100);
    fails(&stub, json!([step])).await;
    assert!(stub.requests().len() > 1);
}

#[tokio::test]
async fn a_started_step_runs_concurrently_and_hang_up_closes_its_connection() {
    let stub = Stub::start([Value::Null, json!({"result": 1})]).await;
    let steps = json!([
        {"start": "waiter", "call": {"function": "a.b"}},
        {"sleep_ms": 100},
        call(&json!({"body": {"result": 1}})),
        {"hang_up": "waiter"}
    ]);
    passes(&stub, steps).await;
    timeout(Duration::from_secs(5), async {
        while stub.disconnects() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the connection to be closed");
}

#[tokio::test]
async fn an_awaited_step_is_checked_when_it_is_awaited() {
    let stub = Stub::start([json!({"result": 1})]).await;
    let steps = |expected: i32| {
        json!([
            {"start": "one", "call": {"function": "a.b"}},
            {"await": "one", "expect": {"body": {"result": expected}}}
        ])
    };
    passes(&stub, steps(1)).await;
    assert_eq!(fails(&stub, steps(2)).await.step, 2);
}

#[tokio::test]
async fn an_answer_that_never_comes_is_a_failure() {
    let stub = Stub::start([Value::Null]).await;
    let failure = fails(&stub, json!([call(&json!({}))])).await;
    assert!(
        failure.answer.contains("no answer within"),
        "{}",
        failure.answer
    );
}

#[tokio::test]
async fn time_limits_are_checked() {
    let stub = Stub::start([json!({"result": 1})]).await;
    let failure = fails(&stub, json!([call(&json!({"at_least_ms": 400}))])).await;
    assert_eq!(failure.mismatches[0].at, "time");
    passes(&stub, json!([call(&json!({"at_most_ms": 400}))])).await;
}

#[tokio::test]
async fn answers_of_steps_together_are_counted() {
    let winner = json!({"result": "won"});
    let loser = json!({"result": "lost"});
    let together = |won: usize| {
        json!([{
            "times": 5,
            "together": [{"call": {"function": "a.b", "arguments": {"index": "${index}"}}, "expect": {}}],
            "counts": [
                {"body": {"result": "won"}, "exactly": won},
                {"body": {"result": "lost"}, "exactly": 5 - won}
            ]
        }])
    };
    let stub = Stub::start([winner.clone(), loser.clone()]).await;
    passes(&stub, together(1)).await;
    let mut indices: Vec<i64> = stub
        .requests()
        .iter()
        .filter_map(|request| request["call"]["arguments"]["index"].as_i64())
        .collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2, 3, 4]);

    let stub = Stub::start([winner, loser]).await;
    let failure = fails(&stub, together(2)).await;
    assert_eq!(failure.mismatches.len(), 2);
}

#[tokio::test]
async fn each_case_of_a_table_is_counted_and_reported_by_its_name() {
    let stub = Stub::start([json!({"result": 1})]).await;
    let mut step = call(&json!({"body": {"result": 1}}));
    step["change"] = json!("/call");
    let folder = Folder::with(&json!([]));
    folder.write(&json!({
        "name": "case", "source": "test", "about": "A table.", "steps": [step],
        "cases": [
            {"name": "good", "about": "As expected.", "set": {"/arguments": {"a": 1}}},
            {"name": "bad", "about": "Not so.", "set": {"/function": "a.c"}, "expect": {"body": {"result": 2}}}
        ]
    }));
    let options = |filter: Option<&str>| Options {
        transports: vec![Transport::Http],
        vectors: Some(folder.0.clone()),
        filter: filter.map(str::to_owned),
        ..Options::default()
    };
    let report = run(&stub.url, &options(None)).await.unwrap();
    assert_eq!((report.counts().passed, report.counts().failed), (1, 1));
    let text = report.to_string();
    assert!(text.contains("FAILED group/case/bad over http"), "{text}");
    let functions: Vec<Value> = stub
        .requests()
        .iter()
        .map(|sent| sent["call"]["function"].clone())
        .collect();
    assert!(
        functions.contains(&json!("a.b")) && functions.contains(&json!("a.c")),
        "{functions:?}"
    );
    let report = run(&stub.url, &options(Some("case/good"))).await.unwrap();
    assert_eq!((report.counts().passed, report.counts().failed), (1, 0));
}

#[tokio::test]
async fn a_vector_for_another_transport_is_skipped() {
    let stub = Stub::start([json!({"result": 1})]).await;
    let folder = Folder::with(&json!([call(&json!({}))]));
    let options = Options {
        vectors: Some(folder.0.clone()),
        ..Options::default()
    };
    let counts = run(&stub.url, &options).await.unwrap().counts();
    let expected = Counts {
        passed: 1,
        failed: 0,
        skipped: 2,
    };
    assert_eq!(counts, expected);
}

#[tokio::test]
async fn a_run_that_cannot_start_is_an_error_and_has_no_report() {
    let options = Options::default();
    let unreachable = run("http://127.0.0.1:1", &options).await;
    assert!(matches!(unreachable, Err(RunError::Unreachable { .. })));
    let wrong = run("127.0.0.1:7420", &options).await;
    assert!(matches!(wrong, Err(RunError::Url(_))));
    let nothing = Options {
        filter: Some("no vector has this".to_owned()),
        ..options
    };
    let nothing = run("http://127.0.0.1:1", &nothing).await;
    assert!(matches!(nothing, Err(RunError::NothingMatches(_))));
}

#[tokio::test]
async fn a_websocket_that_is_never_opened_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let folder = Folder::over("ws", &json!([call(&json!({"body": {}}))]));
    let options = Options {
        transports: vec![Transport::Ws],
        patience: Duration::from_millis(100),
        vectors: Some(folder.0.clone()),
        ..Options::default()
    };
    let report = timeout(Duration::from_secs(20), run(&url, &options)).await;
    assert_eq!(report.expect("an end").unwrap().counts().failed, 1);
}
