//! JSON-RPC 2.0, the same over HTTP and over a WebSocket.

use serde_json::{Value, json};

use crate::transports::host::Host;
use crate::transports::http1::{Http1, post};
use crate::transports::websocket_client::Socket;
use crate::wire::{ask, expect, seconds};

/// Sends a frame over HTTP and over a WebSocket: both must answer as expected, or both not at all.
async fn check(host: &Host, frame: &str, expected: Option<&Value>) {
    let mut http = Http1::connect(host).await;
    http.send(post("/rpc", frame)).await;
    let answer = http.answer().await;
    match expected {
        Some(expected) => {
            assert_eq!(answer.status, 200, "{frame}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            check_answer(frame, &answer.json(), expected);
        }
        None => assert_eq!((answer.status, answer.body), (204, Vec::new()), "{frame}"),
    }
    let mut socket = Socket::connect(host).await;
    socket.send(frame).await;
    if let Some(expected) = expected {
        check_answer(frame, &socket.answer().await, expected);
    }
    // Whatever the frame was, the connection stays open, and the next answer is to the next frame.
    socket.send(ask("test.echo").rpc("last")).await;
    expect(
        &socket.answer().await,
        &json!({"id": "last", "result": {"result": {}}}),
    );
    http.expect_alive().await;
}

#[track_caller]
fn check_answer(frame: &str, answer: &Value, expected: &Value) {
    println!("{frame}\n  {answer}");
    expect(answer, expected);
    for answer in answer
        .as_array()
        .map_or(std::slice::from_ref(answer), Vec::as_slice)
    {
        assert_eq!(answer["jsonrpc"], "2.0");
        let members = answer.as_object().unwrap();
        assert!(members.contains_key("id"));
        assert_ne!(
            members.contains_key("result"),
            members.contains_key("error")
        );
    }
}

fn error(id: impl Into<Value>, code: i32) -> Value {
    let id = id.into();
    json!({"id": id, "error": {"code": code, "message": "<text>"}, "result": "<absent>"})
}

#[tokio::test]
async fn a_call_may_have_named_params_or_one_positional() {
    let host = Host::start().await;
    let request = ask("test.echo")
        .arguments(json!({"x": 1}))
        .lock(json!({"key": "k"}));
    let answered = json!({"id": 1, "error": "<absent>", "result": {
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "result": {"x": 1},
        "extensions": [{"data": {"acquired": true}}],
        "meta": {"node": "node-test"},
    }});
    let mut frame = request.rpc(1);
    check(&host, &frame.to_string(), Some(&answered)).await;
    check(&host, &format!(" \r\n\t{frame:#}\n "), Some(&answered)).await;
    frame["params"] = json!([request.value()]);
    check(&host, &frame.to_string(), Some(&answered)).await;
    for params in [
        json!([]),
        json!([request.value(), 1]),
        json!([request.value(), request.value()]),
    ] {
        frame["params"] = params;
        check(&host, &frame.to_string(), Some(&error(1, -32602))).await;
    }
    frame.as_object_mut().unwrap().remove("params");
    check(&host, &frame.to_string(), Some(&error(1, -32602))).await;
}

#[tokio::test]
async fn a_forrst_error_is_a_result() {
    let host = Host::start().await;
    for (params, code) in [
        (json!({}), None),
        (json!([7]), Some("INVALID_REQUEST")),
        (json!([[]]), Some("INVALID_REQUEST")),
        (
            ask("test.nothing").value().clone(),
            Some("FUNCTION_NOT_FOUND"),
        ),
        (ask("test.panic").value().clone(), Some("INTERNAL_ERROR")),
    ] {
        let frame = json!({"jsonrpc": "2.0", "id": "a", "method": "forrst.call", "params": params});
        let errors = code.map_or(json!("<any>"), |code| json!([{"code": code}]));
        let expected =
            json!({"id": "a", "result": {"result": null, "errors": errors}, "error": "<absent>"});
        check(&host, &frame.to_string(), Some(&expected)).await;
    }
}

#[tokio::test]
async fn ids_are_returned_unchanged() {
    let host = Host::start().await;
    for id in [
        json!(0),
        json!(7),
        json!(u64::MAX),
        json!(""),
        json!("a"),
        json!("1"),
        json!("quote\" slash\\ line\n \u{e9} \u{1f600}"),
        Value::Null,
    ] {
        let expected = json!({"id": id, "result": {"result": {}}});
        check(
            &host,
            &ask("test.echo").rpc(id).to_string(),
            Some(&expected),
        )
        .await;
    }
    let escaped =
        r#"{"jsonrpc":"2.0","id":"\u0061","method":"forrst\u002ecall","params":[PARAMS]}"#
            .replace("PARAMS", &ask("test.echo").text());
    check(
        &host,
        &escaped,
        Some(&json!({"id": "a", "result": {"result": {}}})),
    )
    .await;
}

#[tokio::test]
async fn a_request_with_an_invalid_id_is_refused_and_not_run() {
    let host = Host::start().await;
    let refused = error(Value::Null, -32600);
    for id in [
        "-1",
        "1.5",
        "1e3",
        "18446744073709551616",
        "true",
        "{}",
        "[]",
        "[1]",
    ] {
        let frame = ask("test.sleep")
            .arguments(json!({"ms": 0}))
            .rpc("ID")
            .to_string();
        let frame = frame.replace("\"ID\"", id);
        check(&host, &frame, Some(&refused)).await;
    }
    let twice = r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"forrst.call","params":{}}"#;
    check(&host, twice, Some(&refused)).await;
    // Only the final calls of the checks ran.
    assert_eq!(host.seen.started(), 9);
}

#[tokio::test]
async fn a_malformed_frame_is_an_invalid_request() {
    let host = Host::start().await;
    // The id is returned if it can be read.
    let (known, unknown) = (error(1, -32600), error(Value::Null, -32600));
    for (frame, refused) in [
        ("5", &unknown),
        ("\"forrst.call\"", &unknown),
        ("null", &unknown),
        ("{}", &unknown),
        (r#"{"jsonrpc":"1.0","id":1,"method":"forrst.call"}"#, &known),
        (r#"{"jsonrpc":2.0,"id":1,"method":"forrst.call"}"#, &known),
        (r#"{"id":1,"method":"forrst.call"}"#, &known),
        (r#"{"jsonrpc":"2.0","id":1}"#, &known),
        (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, &known),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":5}"#,
            &known,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":"y"}"#,
            &known,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
            &unknown,
        ),
        ("[]", &unknown),
        (" [ ] ", &unknown),
    ] {
        check(&host, frame, Some(refused)).await;
    }
}

#[tokio::test]
async fn a_frame_that_is_not_json_is_a_parse_error() {
    let host = Host::start().await;
    for frame in ["", "{", "nonsense", "[{}", r#"{"jsonrpc":"2.0",}"#, "{} {}"] {
        check(&host, frame, Some(&error(Value::Null, -32700))).await;
    }
}

#[tokio::test]
async fn an_unknown_method_is_not_found() {
    let host = Host::start().await;
    for method in ["test.echo", "forrst.Call", "", "rpc.modules"] {
        let frame = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": {}});
        check(&host, &frame.to_string(), Some(&error(3, -32601))).await;
    }
}

#[tokio::test]
async fn a_notification_is_neither_run_nor_answered() {
    let host = Host::start().await;
    let mut frame = ask("test.gate").rpc(0);
    frame.as_object_mut().unwrap().remove("id");
    check(&host, &frame.to_string(), None).await;
    check(&host, &json!([frame, frame]).to_string(), None).await;
    // Only the final calls of the checks ran.
    assert_eq!(host.seen.started(), 2);
}

#[tokio::test]
async fn a_batch_is_answered_entry_by_entry() {
    let host = Host::start().await;
    let mut notification = ask("test.echo").rpc(0);
    notification.as_object_mut().unwrap().remove("id");
    let batch = json!([
        ask("test.echo").id("x").rpc(1),
        ask("test.nothing").rpc("two"),
        notification,
        {"jsonrpc": "2.0", "id": 4, "method": "nothing"},
        ask("test.echo").rpc(-1),
        5,
    ]);
    let expected = json!([
        {"id": 1, "result": {"id": "x", "result": {}}},
        {"id": "two", "result": {"errors": [{"code": "FUNCTION_NOT_FOUND"}]}},
        error(4, -32601),
        error(Value::Null, -32600),
        error(Value::Null, -32600),
    ]);
    check(&host, &batch.to_string(), Some(&expected)).await;
    check(&host, "[1]", Some(&json!([error(Value::Null, -32600)]))).await;
}

#[tokio::test]
async fn a_batch_has_a_maximum_size() {
    let host = Host::start().await;
    let batch = |count| {
        let entry = json!({"jsonrpc": "2.0", "id": 1, "method": "nothing"});
        Value::from(vec![entry; count]).to_string()
    };
    let all = Value::from(vec![error(1, -32601); 100]);
    check(&host, &batch(100), Some(&all)).await;
    check(&host, &batch(101), Some(&error(Value::Null, -32007))).await;
}

#[tokio::test]
async fn discovery_describes_the_methods_and_the_functions() {
    let host = Host::start().await;
    let frame = json!({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"});
    let mut http = Http1::connect(&host).await;
    let answer = http
        .check(&post("/rpc", &frame.to_string()), 200, &json!({"id": 1}))
        .await
        .json();
    let document = &answer["result"];
    expect(
        document,
        &json!({"openrpc": "1.3.2", "info": {"title": "forrst", "version": "<text>"}}),
    );
    let methods = document["methods"].as_array().unwrap();
    let names: Vec<&Value> = methods.iter().map(|method| &method["name"]).collect();
    assert_eq!(
        names,
        [
            "forrst.call",
            "forrst.watch",
            "forrst.unwatch",
            "rpc.discover"
        ]
    );
    assert!(document.to_string().contains("test.echo"));
    let codes = &document["methods"][0]["x-forrst-codes"];
    let written = include_str!("../../../../../schemas/codes.json");
    assert_eq!(*codes, serde_json::from_str::<Value>(written).unwrap());
    check(&host, &frame.to_string(), Some(&answer)).await;
}

/// The first entry holds the lock that the second waits for.
fn dependent_batch() -> String {
    let holds = ask("test.gate")
        .id("holds")
        .lock(json!({"key": "k", "scope": "global"}));
    let waits = ask("test.echo")
        .id("waits")
        .lock(json!({"key": "k", "scope": "global", "block": seconds(20)}));
    json!([holds.rpc(1), waits.rpc(2)]).to_string()
}

fn both_done() -> Value {
    json!([
        {"id": 1, "result": {"id": "holds", "errors": "<absent>"}},
        {"id": 2, "result": {"id": "waits", "errors": "<absent>", "result": {}}},
    ])
}

#[tokio::test]
async fn the_entries_of_a_batch_run_concurrently_over_http() {
    let host = Host::start().await;
    let mut http = Http1::connect(&host).await;
    http.send(post("/rpc", &dependent_batch())).await;
    host.until_waiting(1).await;
    host.seen.open_gate();
    expect(&http.answer().await.json(), &both_done());
}

#[tokio::test]
async fn the_entries_of_a_batch_run_concurrently_over_a_websocket() {
    let host = Host::start().await;
    let mut socket = Socket::connect(&host).await;
    socket.send(dependent_batch()).await;
    host.until_waiting(1).await;
    host.seen.open_gate();
    expect(&socket.answer().await, &both_done());
}

#[tokio::test]
async fn a_traceparent_reaches_the_call() {
    let host = Host::start().await;
    let mut http = Http1::connect(&host).await;
    let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let header = format!("host: test\r\ntraceparent: 00-{trace_id}-00f067aa0ba902b7-01");
    let frame = ask("test.context").rpc(1).to_string();
    let request = post("/rpc", &frame).replacen("host: test", &header, 1);
    let expected = json!({"result": {
        "result": {"trace": {"trace_id": trace_id}},
        "extensions": "<absent>",
    }});
    http.check(&request, 200, &expected).await;
}

/// The PHP library posts its requests there by default.
#[tokio::test]
async fn a_bare_request_is_answered_as_on_forrst_even_if_it_is_not_valid() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let protocol = r#""protocol": {"name": "forrst", "version": "0.1.0"}"#;
    let nested = "[".repeat(200) + &"]".repeat(200);
    let invalid = json!({"errors": [{"code": "INVALID_REQUEST"}]});
    for (body, status, expected) in [
        (
            ask("test.echo").text(),
            200,
            json!({"id": "req_1", "result": {}}),
        ),
        (
            ask("test.nothing").text(),
            404,
            json!({"errors": [{"code": "FUNCTION_NOT_FOUND"}]}),
        ),
        (
            format!("{{{protocol}, \"id\": \"1\"}}"),
            400,
            json!({"id": "1", "errors": [{"code": "INVALID_REQUEST"}]}),
        ),
        (
            r#"{"id": "1", "call": {"function": "test.echo"}}"#.to_owned(),
            400,
            invalid.clone(),
        ),
        (r#"{"call": 5}"#.to_owned(), 400, json!({"id": null})),
        (
            format!(
                "{{{protocol}, {protocol}, \"id\": \"1\", \"call\": {{\"function\": \"test.echo\"}}}}"
            ),
            400,
            invalid.clone(),
        ),
        (
            format!("{{{protocol}, \"id\": \"1\", \"call\": {nested}}}"),
            400,
            json!({"id": "<any>"}),
        ),
    ] {
        client.send(post("/rpc", &body)).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(answer.header("x-forrst-node"), Some("node-test"), "{body}");
        expect(&answer.json(), &expected);
        expect(
            &answer.json(),
            &json!({"jsonrpc": "<absent>", "protocol": {"name": "forrst"}}),
        );
    }
    // Whatever has `jsonrpc`, or is not JSON, is JSON-RPC.
    for (body, code) in [
        (format!(r#"{{"jsonrpc": null, {protocol}}}"#), -32600),
        (
            format!(r#"{{"jsonrpc": "2.0", "id": 1, {protocol}}}"#),
            -32600,
        ),
        ("{}".to_owned(), -32600),
        (format!("[{{{protocol}}}]"), -32600),
        (format!("{{{protocol}"), -32700),
    ] {
        client.send(post("/rpc", &body)).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{body}");
        let answer = answer.json();
        let answer = answer.get(0).unwrap_or(&answer);
        expect(answer, &json!({"jsonrpc": "2.0", "error": {"code": code}}));
    }
}
