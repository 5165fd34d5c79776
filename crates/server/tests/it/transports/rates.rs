//! Rate limits: everything that arrives on `/rpc` is counted, exactly once.

use axum::http::StatusCode;
use forrst_server::Limits;
use serde_json::{Value, json};

use crate::transports::guarded::Guarded;
use crate::transports::host::Host;
use crate::transports::http1::{Http1, post};
use crate::transports::websocket_client::Socket;
use crate::wire::ask;

/// The burst and the rate of a caller.
const RATE: u32 = 10;

/// More than could be admitted while a slow machine reads a batch.
const BATCH: usize = 60;

fn limited(rate: u32) -> Limits {
    Limits {
        max_rate: Some(rate),
        ..Limits::default()
    }
}

fn is_refused(answer: &Value) -> bool {
    answer["error"]["code"] == -32002 || answer["result"]["errors"][0]["code"] == "RATE_LIMITED"
}

fn refused(answers: &Value) -> usize {
    let answers = answers.as_array().expect("the answer to a batch");
    answers.iter().filter(|answer| is_refused(answer)).count()
}

#[tokio::test]
async fn every_entry_of_a_batch_is_counted() {
    let broken =
        json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": {"extensions": 1}});
    for entry in [
        json!(0),
        json!({"jsonrpc": "1.0", "id": 1, "method": "forrst.call"}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "unknown"}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call"}),
        broken,
        ask("test.echo").rpc(1),
    ] {
        let host = Host::with(limited(RATE)).await;
        let batch = Value::from(vec![entry.clone(); BATCH]).to_string();
        let mut http = Http1::connect(&host).await;
        http.send(post("/rpc", &batch)).await;
        let count = refused(&http.answer().await.json());
        println!("{entry}: {count} of {BATCH} were refused");
        assert!(count >= BATCH / 2, "{entry}: {count}");
        assert!(count <= BATCH - RATE as usize, "{entry}: {count}");
        let mut socket = Socket::connect(&host).await;
        socket.send(&batch).await;
        let count = refused(&socket.answer().await);
        assert!(count >= BATCH / 2, "{entry}: {count} over a WebSocket");
    }
}

#[tokio::test]
async fn notifications_are_counted() {
    let host = Host::with(limited(RATE)).await;
    let notification = json!({"jsonrpc": "2.0", "method": "forrst.call"});
    let mut batch = vec![notification; BATCH];
    batch.push(ask("test.echo").rpc(1));
    let mut http = Http1::connect(&host).await;
    http.send(post("/rpc", &Value::from(batch).to_string()))
        .await;
    assert_eq!(refused(&http.answer().await.json()), 1);
}

#[tokio::test]
async fn frames_that_are_not_json_are_counted() {
    let host = Host::with(limited(1)).await;
    let mut http = Http1::connect(&host).await;
    let mut refused = Value::Null;
    for _ in 0..1_000 {
        http.send(post("/rpc", "{")).await;
        refused = http.answer().await.json();
        if is_refused(&refused) {
            break;
        }
    }
    assert!(is_refused(&refused), "{refused}");
}

#[tokio::test]
async fn a_call_is_counted_once() {
    let host = Host::with(limited(RATE)).await;
    let batch = Value::from(vec![ask("test.echo").rpc(1); RATE as usize]).to_string();
    let mut http = Http1::connect(&host).await;
    http.send(post("/rpc", &batch)).await;
    let answer = http.answer().await.json();
    assert_eq!(refused(&answer), 0, "{answer}");
    assert_eq!(host.seen.started(), RATE as usize);
}

#[tokio::test]
async fn unauthenticated_clients_are_limited_by_their_address() {
    let guarded = Guarded::new(
        Limits {
            max_unauthenticated_rate: 1,
            ..Limits::default()
        },
        1,
    );
    let key = &guarded.keys[0];
    let request = ask("test.echo").text();
    for path in ["/forrst", "/rpc"] {
        let mut last = StatusCode::OK;
        for _ in 0..1_000 {
            (last, _) = guarded.send(path, Some("wrong"), request.clone()).await;
            if last != StatusCode::UNAUTHORIZED {
                break;
            }
        }
        assert_eq!(last, StatusCode::TOO_MANY_REQUESTS, "{path}");
        let (status, _) = guarded.send("/forrst", Some(key), request.clone()).await;
        assert_eq!(status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_batch_of_an_unauthenticated_client_has_a_small_answer() {
    let guarded = Guarded::new(Limits::default(), 1);
    let key = &guarded.keys[0];
    let batch = Value::from(vec![ask("test.echo").rpc(1); 30]).to_string();
    assert!(batch.len() < 8 * 1024, "{}", batch.len());
    let (status, answer) = guarded.send("/rpc", None, batch.clone()).await;
    println!("{} bytes for {}", answer.len(), batch.len());
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(answer.len() < 2 * batch.len(), "{} bytes", answer.len());
    let answers: Vec<Value> = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answers.len(), 30);
    for answer in answers {
        assert_eq!(answer["result"]["errors"][0]["code"], "UNAUTHORIZED");
    }
    assert_eq!(
        guarded.send("/rpc", Some(key), batch).await.0,
        StatusCode::OK
    );
}
