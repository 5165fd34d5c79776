//! `waiters` and `activity`, and the numbers of waiters in `list` and `status`.

use serde_json::{Value, json};

use crate::transports::host::{Host, soon};
use crate::wire::{ask, expect, pointers, seconds};

async fn call(host: &Host, name: &str, arguments: Value) -> Value {
    let function = format!("urn:cline:forrst:ext:atomic-lock:fn:{name}");
    let request = ask(&function).arguments(arguments).text();
    let answer = soon(host.server.handle(request.as_bytes())).await;
    serde_json::to_value(&answer).unwrap()
}

/// Panics unless the result matches the schema in `describe`.
async fn expect_schema(host: &Host, name: &str, result: &Value) {
    let function = format!("urn:cline:forrst:ext:atomic-lock:fn:{name}");
    let describe = ask("urn:cline:forrst:fn:describe").arguments(json!({"function": function}));
    let answer = soon(host.server.handle(describe.text().as_bytes())).await;
    let document = serde_json::to_value(&answer).unwrap();
    let schema = &document["result"]["functions"][0]["result"]["schema"];
    assert!(
        schema["properties"].is_object(),
        "{name} has no schema: {document}"
    );
    let validator = jsonschema::validator_for(schema).unwrap();
    let violations: Vec<String> = validator
        .iter_errors(result)
        .map(|e| e.to_string())
        .collect();
    assert!(
        violations.is_empty(),
        "{name}: {violations:?} in {result:#}"
    );
}

/// A host on which `lock:k` is held by `a`, and waited for by `b` and then `c`.
async fn queued() -> Host {
    let host = Host::start().await;
    call(
        &host,
        "acquire",
        json!({"key": "k", "owner": "a", "ttl": seconds(60)}),
    )
    .await;
    for (place, owner) in ["b", "c"].into_iter().enumerate() {
        let arguments =
            json!({"key": "k", "owner": owner, "ttl": seconds(60), "block": seconds(60)});
        let request = ask("urn:cline:forrst:ext:atomic-lock:fn:acquire").arguments(arguments);
        let server = host.server.clone();
        tokio::spawn(async move { server.handle(request.text().as_bytes()).await });
        host.until_waiting(place + 1).await;
    }
    host
}

#[tokio::test]
async fn waiters_are_shown_in_their_order_with_their_times() {
    let host = queued().await;
    let answer = call(&host, "waiters", json!({"key": "lock:k"})).await;
    let waiter = |owner: &str| json!({"owner": owner, "since": "<time>", "until": "<time>"});
    let expected = json!({"key": "lock:k", "waiters": [waiter("b"), waiter("c")]});
    expect(&answer["result"], &expected);
    expect_schema(&host, "waiters", &answer["result"]).await;
    let first = call(&host, "waiters", json!({"key": "lock:k", "limit": 1})).await;
    expect(&first["result"]["waiters"], &json!([waiter("b")]));
    let free = call(&host, "waiters", json!({"key": "lock:other"})).await;
    expect(
        &free["result"],
        &json!({"key": "lock:other", "waiters": []}),
    );
    let wrong = call(&host, "waiters", json!({"key": "k", "limit": 1001})).await;
    assert_eq!(
        pointers(&wrong),
        ["/call/arguments/key", "/call/arguments/limit"]
    );
}

#[tokio::test]
async fn list_and_status_count_the_waiters() {
    let host = queued().await;
    let list = call(&host, "list", json!({})).await;
    expect(
        &list["result"],
        &json!({"locks": [{"key": "lock:k", "waiters": 2}]}),
    );
    expect_schema(&host, "list", &list["result"]).await;
    let status = call(&host, "status", json!({"key": "lock:k"})).await;
    expect(&status["result"], &json!({"locked": true, "waiters": 2}));
    expect_schema(&host, "status", &status["result"]).await;
}

#[tokio::test]
async fn activity_counts_what_happened_in_each_second() {
    let host = queued().await;
    let mut seen = Value::Null;
    let total = |seen: &Value, series: &str| -> u64 {
        let series = seen[series].as_array();
        series.into_iter().flatten().filter_map(Value::as_u64).sum()
    };
    for _ in 0..200 {
        seen = call(&host, "activity", json!({})).await["result"].clone();
        if total(&seen, "waiting") >= 4 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    expect_schema(&host, "activity", &seen).await;
    let lengths = [
        "requests",
        "failures",
        "granted",
        "contended",
        "timed_out",
        "waiting",
    ]
    .map(|series| seen[series].as_array().map(Vec::len));
    assert!(lengths[0] >= Some(2), "{seen}");
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{seen}");
    // Requests before the first sample are not in the series.
    assert!(total(&seen, "requests") >= 1, "{seen}");
}
