//! The cost of a request: memory in proportion to its size, and an answer that is hardly longer than the request.

#[path = "it/functions/mod.rs"]
mod functions;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use forrst_server::{Limits, Server};
use forrst_stores::MemoryStore;
use http_body_util::BodyExt;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::functions::{Seen, register};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MIB: usize = 1024 * 1024;

/// How many times its own size a request may take in memory while it is answered.
const MOST_TIMES: usize = 8;

/// How much longer than an invalid request its answer may be.
const LONGER: usize = 64 * 1024;

const ACQUIRE: &str = "urn:cline:forrst:ext:atomic-lock:fn:acquire";
const TTL: &str = r#"{"value":1,"unit":"minute"}"#;

fn server() -> Server {
    let builder = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .node("node-test");
    register(builder, &Seen::default()).build().unwrap()
}

/// Elements, separated by commas, up to a mebibyte.
fn mebibyte_of(element: impl Fn(usize) -> String) -> String {
    let mut text = String::with_capacity(MIB + 1024);
    for index in 0.. {
        text.push_str(&element(index));
        if text.len() > MIB - 1024 {
            break;
        }
        text.push(',');
    }
    text
}

fn request(function: &str, arguments: &str, more: &str) -> String {
    format!(
        r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"r","call":{{"function":"{function}","arguments":{arguments}}}{more}}}"#
    )
}

/// An `acquire` of a free lock with these options of `tracing`.
fn traced(options: &str) -> String {
    let arguments = format!(r#"{{"key":"k","ttl":{TTL},"owner":"o"}}"#);
    let extension = format!(
        r#","extensions":[{{"urn":"urn:forrst:ext:tracing","options":{{"trace_id":"t","span_id":"s",{options}}}}}]"#
    );
    request(ACQUIRE, &arguments, &extension)
}

fn locked(options: &str) -> String {
    let extension =
        format!(r#","extensions":[{{"urn":"urn:forrst:ext:atomicLock","options":{options}}}]"#);
    request("test.sleep", r#"{"ms":0}"#, &extension)
}

fn large_requests() -> Vec<(&'static str, String)> {
    let zeros = mebibyte_of(|_| "0".to_owned());
    let lists = mebibyte_of(|_| "[]".to_owned());
    let members = mebibyte_of(|index| format!(r#""k{index}":0"#));
    let texts = mebibyte_of(|index| format!(r#""k{index}":"v""#));
    let escaped = mebibyte_of(|index| format!(r#""\n{index}":0"#));
    vec![
        (
            "baggage of numbers",
            traced(&format!(r#""baggage":{{"a":[{zeros}]}}"#)),
        ),
        (
            "baggage of lists",
            traced(&format!(r#""baggage":{{"a":[{lists}]}}"#)),
        ),
        (
            "baggage of many members",
            traced(&format!(r#""baggage":{{{texts}}}"#)),
        ),
        (
            "baggage of escaped names",
            traced(&format!(r#""baggage":{{{escaped}}}"#)),
        ),
        ("unknown options", traced(&members)),
        (
            "a list for a key",
            locked(&format!(r#"{{"key":[{zeros}],"ttl":{TTL}}}"#)),
        ),
        (
            "a list for a ttl",
            locked(&format!(r#"{{"key":"k","ttl":[{lists}]}}"#)),
        ),
        (
            "unknown options of a lock",
            locked(&format!(r#"{{"key":"k","ttl":{TTL},{members}}}"#)),
        ),
        (
            "unknown arguments",
            request(ACQUIRE, &format!("{{{members}}}"), ""),
        ),
        (
            "arguments of another type",
            request("test.sleep", &format!(r#"{{"ms":[{zeros}]}}"#), ""),
        ),
        (
            "unknown arguments of a function",
            request("test.sleep", &format!(r#"{{"ms":-1,{members}}}"#), ""),
        ),
        (
            "context",
            request(
                "test.sleep",
                r#"{"ms":0}"#,
                &format!(r#","context":{{"a":[{zeros}]}}"#),
            ),
        ),
        (
            "brackets inside of each other",
            request(
                "test.sleep",
                r#"{"ms":0}"#,
                &format!(
                    r#","context":{{"a":{}{}}}"#,
                    "[".repeat(512 * 1024),
                    "]".repeat(512 * 1024)
                ),
            ),
        ),
        (
            "one extension over and over",
            request(
                "test.sleep",
                r#"{"ms":0}"#,
                &format!(
                    r#","extensions":[{}]"#,
                    mebibyte_of(|_| r#"{"urn":"urn:forrst:ext:retry"}"#.to_owned())
                ),
            ),
        ),
        (
            "unknown extensions",
            request(
                "test.sleep",
                r#"{"ms":0}"#,
                &format!(
                    r#","extensions":[{}]"#,
                    mebibyte_of(|_| r#"{"urn":"urn:ab:c"}"#.to_owned())
                ),
            ),
        ),
        (
            "bad extensions",
            request("test.sleep", "{}", &format!(r#","extensions":[{zeros}]"#)),
        ),
    ]
}

#[test]
fn a_request_costs_a_few_times_its_size() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut too_much = Vec::new();
    runtime.block_on(async {
        let server = server();
        // Builds what is built only once, such as validators.
        server
            .handle(request("test.sleep", "{}", "").as_bytes())
            .await;
        for (name, body) in large_requests() {
            let before = ALLOCATOR.current_usage();
            ALLOCATOR.reset_peak_usage();
            let answer = server.handle(body.as_bytes()).await;
            let times = (ALLOCATOR.peak_usage() - before) as f64 / body.len() as f64;
            let length = serde_json::to_vec(&answer).unwrap().len();
            println!("{name}: {times:.1} times its size, answered with {length} bytes");
            if times > MOST_TIMES as f64 || length > LONGER {
                too_much.push(name);
            }
        }
    });
    assert!(too_much.is_empty(), "{too_much:?}");
}

#[test]
fn a_waiting_call_keeps_one_copy_of_its_request() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = server();
        let taken = request(ACQUIRE, &format!(r#"{{"key":"k","ttl":{TTL}}}"#), "");
        server.handle(taken.as_bytes()).await;
        let zeros = mebibyte_of(|_| "0".to_owned());
        for more in [
            format!(r#","context":{{"a":[{zeros}]}}"#),
            format!(
                r#","extensions":[{{"urn":"urn:forrst:ext:tracing","options":{{"trace_id":"t","span_id":"s","baggage":{{"a":[{zeros}]}}}}}}]"#
            ),
        ] {
            let arguments = format!(r#"{{"key":"k","ttl":{TTL},"block":{TTL}}}"#);
            let mut body = request(ACQUIRE, &arguments, &more);
            body.shrink_to_fit();
            let size = body.len();
            let waiting = Bad { path: "/forrst", body };
            let before = ALLOCATOR.current_usage() - size;
            let call = tokio::spawn({
                let server = server.clone();
                async move { send(&server, waiting).await }
            });
            while server.locks().waiting() == 0 {
                tokio::task::yield_now().await;
            }
            let times = (ALLOCATOR.current_usage() - before) as f64 / size as f64;
            println!("a call that waits keeps {times:.2} times its size");
            assert!(times < 1.5, "{times}");
            call.abort();
            let _ = call.await;
        }
    });
}

#[derive(Deserialize, JsonSchema)]
struct Late {
    bytes: usize,
}

/// Even if the results of a function have been small so far.
#[test]
fn results_that_no_client_reads_stay_within_the_budget() {
    const BUDGET: usize = 16 * MIB;
    const CALLS: usize = 200;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let seen = Seen::default();
        let late = seen.clone();
        let builder = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .function("test.late", "1.0.0", move |_, Late { bytes }: Late| {
                let seen = late.clone();
                async move {
                    let running = seen.run();
                    seen.pass_gate().await;
                    running.returns();
                    Ok("x".repeat(bytes))
                }
            })
            .limits(Limits {
                max_bytes: BUDGET,
                max_bytes_per_caller: BUDGET,
                ..Limits::default()
            });
        let server = register(builder, &seen).build().unwrap();
        let router = server.router();
        let small = request("test.late", r#"{"bytes":10}"#, "");
        seen.open_gate();
        assert_eq!(post(&router, "/forrst", small).await.status(), 200);
        let large = request("test.late", &format!(r#"{{"bytes":{MIB}}}"#), "");
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let (router, large) = (router.clone(), large.clone());
                tokio::spawn(async move { post(&router, "/forrst", large).await })
            })
            .collect();
        while seen.started() <= CALLS {
            tokio::task::yield_now().await;
        }
        for _ in 0..CALLS {
            seen.open_gate();
        }
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        let grown = ALLOCATOR.peak_usage() - before;
        let (taken, refused): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .partition(|answer| answer.status() == 200);
        println!(
            "{grown} bytes for {} results, {} refused",
            taken.len(),
            refused.len()
        );
        assert!(grown < 2 * BUDGET, "{grown} bytes");
        assert!(!taken.is_empty());
        for answer in refused {
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["errors"][0]["code"], "INTERNAL_ERROR", "{body}");
        }
        // Calls of this function are now refused before they run; calls of others are not.
        let answer = post(&router, "/forrst", large.clone()).await;
        assert_eq!(answer.status(), 429);
        assert_eq!(seen.started(), CALLS + 1);
        let sleep = request("test.sleep", r#"{"ms":0}"#, "");
        assert_eq!(post(&router, "/forrst", sleep).await.status(), 200);
        drop(taken);
        seen.open_gate();
        assert_eq!(post(&router, "/forrst", large).await.status(), 200);
    });
}

#[derive(Debug, Clone)]
struct Bad {
    path: &'static str,
    body: String,
}

fn name() -> impl Strategy<Value = String> {
    let of = |text: &'static str, most: usize| (1..most).prop_map(|length| text.repeat(length));
    prop_oneof![
        20 => "[a-z]{1,8}",
        4 => "[~/]{200,700}",
        2 => of("n", 2_000),
        2 => of("\u{1}", 600),
        2 => of("\u{10ffff}\"", 600),
        1 => of("n", 300_000),
    ]
}

fn bad_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!(-1)),
        Just(json!([0, 0, 0])),
        name().prop_map(Value::from),
        (name(), 1usize..40).prop_map(|(name, depth)| {
            (0..depth).fold(json!({}), |inner, _| json!({name.clone(): inner}))
        }),
        prop::collection::vec(name(), 0..90)
            .prop_map(|names| names.into_iter().map(|name| (name, json!(0))).collect()),
    ]
}

fn bad_request() -> impl Strategy<Value = Value> {
    let functions = vec!["test.sleep", "test.fail", ACQUIRE, "no.such", "wrong"];
    let urns = vec![
        "urn:forrst:ext:atomicLock",
        "urn:forrst:ext:tracing",
        "urn:forrst:ext:deadline",
        "urn:forrst:ext:retry",
        "urn:acme:forrst:ext:unknown",
        "bad",
    ];
    let extension = (prop::sample::select(urns), bad_value())
        .prop_map(|(urn, options)| json!({"urn": urn, "options": options}));
    let member = prop::sample::select(vec!["key", "ttl", "ms", "trace_id", "baggage", "code"]);
    let arguments = prop_oneof![
        bad_value(),
        (member, bad_value()).prop_map(|(member, value)| json!({member: value})),
    ];
    (
        prop::sample::select(functions),
        arguments,
        prop::collection::vec(extension, 0..40),
        prop::option::of(bad_value()),
    )
        .prop_map(|(function, arguments, extensions, id)| {
            json!({
                "protocol": {"name": "forrst", "version": "0.1.0"},
                "id": id.unwrap_or_else(|| "r".into()),
                "call": {"function": function, "arguments": arguments},
                "extensions": extensions,
            })
        })
}

/// The same request, with repeated members.
fn with_repeated_keys(request: &Value) -> String {
    let text = request.to_string();
    let again: String = (0..80)
        .map(|index| format!(r#""d{index}":1,"d{index}":2,"#))
        .collect();
    text.replacen(r#""arguments":{"#, &format!(r#""arguments":{{{again}"#), 1)
        .replace(",}", "}")
}

fn bad() -> impl Strategy<Value = Bad> {
    let forrst = |body| Bad {
        path: "/forrst",
        body,
    };
    let rpc = |body| Bad { path: "/rpc", body };
    let entry = prop_oneof![
        2 => bad_request().prop_map(|request| {
            json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": request}).to_string()
        }),
        1 => Just(r#"{"jsonrpc":"2.0","id":1,"method":"forrst.call","params":{}}"#.to_owned()),
        2 => (1usize..80).prop_map(|count| {
            let zeros = vec!["0"; count].join(",");
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"forrst.call","params":{{"extensions":[{zeros}]}}}}"#)
        }),
        1 => Just("0".to_owned()),
        1 => Just(r#"{"jsonrpc":"2.0","id":1,"method":"none"}"#.to_owned()),
        1 => name().prop_map(|name| json!({"jsonrpc": "2.0", "id": name, "method": name}).to_string()),
    ];
    let same = (entry.clone(), 1usize..100)
        .prop_map(|(entry, count)| format!("[{}]", vec![entry; count].join(",")));
    let batch =
        prop::collection::vec(entry, 1..100).prop_map(|entries| format!("[{}]", entries.join(",")));
    prop_oneof![
        3 => bad_request().prop_map(move |request| forrst(request.to_string())),
        1 => bad_request().prop_map(move |request| forrst(with_repeated_keys(&request))),
        2 => same.prop_map(rpc),
        1 => batch.prop_map(rpc),
    ]
}

async fn post(router: &Router, path: &str, body: String) -> Response {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap();
    router.clone().oneshot(request).await.unwrap()
}

async fn send(server: &Server, bad: Bad) -> usize {
    let answer = post(&server.router(), bad.path, bad.body).await;
    answer.into_body().collect().await.unwrap().to_bytes().len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_to_invalid_input_is_hardly_longer_than_the_input(bad in bad()) {
        static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
        static SERVER: LazyLock<Server> = LazyLock::new(server);
        let length = RUNTIME.block_on(async { send(&SERVER, bad.clone()).await });
        let most = bad.body.len() + LONGER;
        let start: String = bad.body.chars().take(300).collect();
        prop_assert!(length <= most, "{length} bytes for {} of {start}", bad.body.len());
    }
}
