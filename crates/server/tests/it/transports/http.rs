//! HTTP/1.1: statuses, headers, methods, and many requests on one connection.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use forrst_server::Limits;
use serde_json::{Value, json};
use std::time::Duration;
use tower::ServiceExt;

use crate::transports::host::Host;
use crate::transports::http1::{Http1, post};
use crate::wire::{TRACING, ask, data, expect, millis};

/// One POST to `/forrst` on a connection of its own.
async fn check(
    host: &Host,
    body: &str,
    status: u16,
    expected: &Value,
) -> crate::transports::http1::Answer {
    let mut client = Http1::connect(host).await;
    client.check(&post("/forrst", body), status, expected).await
}

fn code(code: &str) -> Value {
    json!({"result": null, "errors": [{"code": code}]})
}

#[tokio::test]
async fn the_status_is_that_of_the_single_error_and_400_for_several() {
    let host = Host::start().await;
    for (name, status) in [
        ("PARSE_ERROR", 400),
        ("INVALID_REQUEST", 400),
        ("INVALID_ARGUMENTS", 400),
        ("UNAUTHORIZED", 401),
        ("FORBIDDEN", 403),
        ("LOCK_NOT_FOUND", 404),
        ("DEADLINE_EXCEEDED", 408),
        ("LOCK_OWNERSHIP_MISMATCH", 403),
        ("LOCK_ALREADY_RELEASED", 409),
        ("LOCK_ACQUISITION_FAILED", 423),
        ("LOCK_TIMEOUT", 423),
        ("RATE_LIMITED", 429),
        ("INTERNAL_ERROR", 500),
        ("UNAVAILABLE", 503),
        ("SHOP_IS_CLOSED", 400),
    ] {
        let request = ask("test.fail").arguments(json!({"code": name})).text();
        check(&host, &request, status, &code(name)).await;
    }
    let several = ask("test.nothing")
        .version("9.9.9")
        .lock(json!({"key": ""}))
        .text();
    let expected =
        json!({"errors": [{"code": "FUNCTION_NOT_FOUND"}, {"code": "INVALID_ARGUMENTS"}]});
    check(&host, &several, 400, &expected).await;
    check(
        &host,
        &ask("test.nothing").text(),
        404,
        &code("FUNCTION_NOT_FOUND"),
    )
    .await;
    check(
        &host,
        &ask("test.panic").text(),
        500,
        &code("INTERNAL_ERROR"),
    )
    .await;
    check(
        &host,
        &ask("test.echo").version("9.9.9").text(),
        404,
        &code("VERSION_NOT_FOUND"),
    )
    .await;
    let late = ask("test.gate").deadline(millis(20)).text();
    check(&host, &late, 408, &code("DEADLINE_EXCEEDED")).await;
}

#[tokio::test]
async fn an_answer_names_its_request_its_node_and_its_time() {
    let host = Host::start().await;
    for id in ["req_1", "a b/c", "\u{e9}t\u{e9}"] {
        let request = ask("test.echo").id(id).text();
        let answer = check(
            &host,
            &request,
            200,
            &json!({"id": id, "meta": {"node": "node-test"}}),
        )
        .await;
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-forrst-request-id"), Some(id));
        assert_eq!(answer.header("x-forrst-node"), Some("node-test"));
        let took = answer.header("x-forrst-duration-ms").unwrap();
        took.parse::<u64>().unwrap();
    }
    // A failure has these headers, too.
    let answer = check(
        &host,
        &ask("test.nothing").text(),
        404,
        &json!({"id": "req_1"}),
    )
    .await;
    assert_eq!(answer.header("x-forrst-request-id"), Some("req_1"));
    let slow = ask("test.sleep").arguments(json!({"ms": 120})).text();
    let answer = check(&host, &slow, 200, &json!({})).await;
    let took: u64 = answer
        .header("x-forrst-duration-ms")
        .unwrap()
        .parse()
        .unwrap();
    assert!(took >= 119, "{took}");
}

#[tokio::test]
async fn an_id_that_is_not_valid_in_a_header_is_left_out() {
    let host = Host::start().await;
    for id in ["two\nlines", "nul\u{0}", "evil\r\nx-injected: 1"] {
        let request = ask("test.echo").id(id).text();
        let answer = check(&host, &request, 200, &json!({"id": id})).await;
        assert_eq!(answer.header("x-forrst-request-id"), None);
        assert_eq!(answer.header("x-injected"), None);
        assert_eq!(answer.header("x-forrst-node"), Some("node-test"));
    }
}

#[tokio::test]
async fn an_invalid_request_is_answered_without_an_id() {
    let host = Host::start().await;
    for (body, expected) in [
        (
            "",
            json!({"code": "PARSE_ERROR", "source": {"position": 0}}),
        ),
        (
            "{\"a\":}",
            json!({"code": "PARSE_ERROR", "source": {"position": 5}}),
        ),
        ("[]", json!({"code": "INVALID_REQUEST"})),
        ("7", json!({"code": "INVALID_REQUEST"})),
    ] {
        let answer = check(
            &host,
            body,
            400,
            &json!({"id": null, "result": null, "errors": [expected]}),
        )
        .await;
        assert_eq!(answer.header("x-forrst-request-id"), None);
        assert_eq!(answer.header("x-forrst-node"), Some("node-test"));
    }
}

#[tokio::test]
async fn a_body_has_to_be_declared_as_json() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let body = ask("test.echo").text();
    for (content_type, status) in [
        ("content-type: application/json\r\n", 200),
        ("Content-Type: Application/JSON\r\n", 200),
        ("content-type: application/json; charset=utf-8\r\n", 200),
        ("content-type: application/json ;charset=utf-8\r\n", 200),
        ("", 415),
        ("content-type: text/plain\r\n", 415),
        ("content-type: application/x-www-form-urlencoded\r\n", 415),
        ("content-type: application/jsonp\r\n", 415),
        ("content-type: application/json-patch+json\r\n", 415),
    ] {
        for path in ["/forrst", "/rpc"] {
            let request = format!(
                "POST {path} HTTP/1.1\r\nhost: test\r\n{content_type}content-length: {}\r\n\r\n{body}",
                body.len()
            );
            client.send(request).await;
            let answer = client.answer().await;
            assert_eq!(answer.status, status, "{path} {content_type}");
            if status == 415 && path == "/forrst" {
                expect(
                    &answer.json(),
                    &json!({"id": null, "result": null, "errors": [{"code": "INVALID_REQUEST"}]}),
                );
            }
        }
    }
}

#[tokio::test]
async fn other_methods_are_refused_with_an_allow_header() {
    let host = Host::start().await;
    for (path, methods, allowed) in [
        (
            "/forrst",
            &["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"][..],
            "POST",
        ),
        ("/health", &["POST", "PUT", "DELETE"], "GET, HEAD"),
        ("/ready", &["POST", "PUT", "DELETE"], "GET, HEAD"),
        ("/rpc", &["GET", "PUT", "DELETE", "HEAD"], "POST"),
    ] {
        for method in methods {
            let mut client = Http1::connect(&host).await;
            let length = if *method == "GET" || *method == "HEAD" {
                ""
            } else {
                "content-length: 2\r\n\r\n{}"
            };
            client
                .send(format!(
                    "{method} {path} HTTP/1.1\r\nhost: test\r\n{length}\r\n"
                ))
                .await;
            let answer = if *method == "HEAD" {
                client.answer_to_head().await
            } else {
                client.answer().await
            };
            assert_eq!(answer.status, 405, "{method} {path}");
            let allow = answer.header("allow").unwrap_or_default();
            assert!(allow.starts_with(allowed), "{method} {path}: {allow}");
        }
    }
}

#[tokio::test]
async fn health_and_readiness_are_served() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    client
        .check(
            "GET /health HTTP/1.1\r\nhost: test\r\n\r\n",
            200,
            &json!({"status": "healthy"}),
        )
        .await;
    let ready = json!({"status": "healthy", "store": {"status": "healthy"}});
    client
        .check("GET /ready HTTP/1.1\r\nhost: test\r\n\r\n", 200, &ready)
        .await;
    client
        .send("HEAD /health HTTP/1.1\r\nhost: test\r\n\r\n")
        .await;
    assert_eq!(client.answer_to_head().await.status, 200);
    client.expect_alive().await;
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    for path in ["/forrst/", "/forrst/x", "/FORRST", "/rpc/x", "/page"] {
        let expected = json!({"id": null, "result": null, "errors": [{"code": "NOT_FOUND", "message": "<text>"}]});
        client.check(&post(path, "{}"), 404, &expected).await;
    }
    client
        .check(
            &post("/forrst?x=1", &ask("test.echo").text()),
            200,
            &json!({}),
        )
        .await;
}

#[tokio::test]
async fn one_connection_serves_many_requests_whatever_their_answers() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let good = ask("test.echo").lock(json!({"key": "k"})).text();
    for _ in 0..3 {
        client
            .check(&post("/forrst", &good), 200, &json!({"result": {}}))
            .await;
        client
            .check(&post("/forrst", "nonsense"), 400, &code("PARSE_ERROR"))
            .await;
        client
            .check(
                &post("/forrst", &ask("test.panic").text()),
                500,
                &code("INTERNAL_ERROR"),
            )
            .await;
        client
            .check(&post("/nowhere", "{}"), 404, &code("NOT_FOUND"))
            .await;
        client
            .check(
                "GET /health HTTP/1.1\r\nhost: test\r\n\r\n",
                200,
                &json!({}),
            )
            .await;
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let slow = ask("test.gate").id("slow").text();
    let mut ahead = post("/forrst", &slow);
    for id in ["one", "two", "three"] {
        ahead += &post("/forrst", &ask("test.echo").id(id).text());
    }
    client.send(ahead).await;
    host.seen.open_gate();
    for id in ["slow", "one", "two", "three"] {
        let answer = client.answer().await;
        expect(&answer.json(), &json!({"id": id, "errors": "<absent>"}));
        assert_eq!(answer.header("x-forrst-request-id"), Some(id));
    }
}

#[tokio::test]
async fn connection_close_closes_the_connection_after_the_answer() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let body = ask("test.echo").text();
    client.send(format!("POST /forrst HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    assert_eq!(client.answer().await.status, 200);
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_traceparent_header_joins_the_trace() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let header = |parent: &str, body: &str| {
        post("/forrst", body).replacen(
            "host: test",
            &format!("host: test\r\ntraceparent: {parent}"),
            1,
        )
    };
    let good = format!("00-{trace_id}-00f067aa0ba902b7-01");
    let plain = ask("test.context");
    let expected = json!({
        "result": {"trace": {"trace_id": trace_id, "parent_span_id": "00f067aa0ba902b7", "span_id": "<span>"}},
        "extensions": "<absent>",
    });
    client
        .check(&header(&good, &plain.text()), 200, &expected)
        .await;
    let named = plain.clone().with(TRACING, Value::Null);
    let expected = json!({
        "result": {"trace": {"trace_id": trace_id, "parent_span_id": "00f067aa0ba902b7", "span_id": "<span>"}},
        "extensions": [{"urn": TRACING, "data": {"trace_id": trace_id, "span_id": "<span>"}}],
    });
    let answer = client
        .check(&header(&good, &named.text()), 200, &expected)
        .await
        .json();
    assert_eq!(
        data(&answer, TRACING)["span_id"],
        answer["result"]["trace"]["span_id"]
    );
    // The extension takes precedence; an invalid header is ignored.
    let own = plain
        .clone()
        .with(TRACING, json!({"trace_id": "mine", "span_id": "s"}));
    let expected = json!({"result": {"trace": {"trace_id": "mine", "parent_span_id": "s"}}});
    client
        .check(&header(&good, &own.text()), 200, &expected)
        .await;
    let none = json!({"result": {"trace": null}, "extensions": "<absent>"});
    client
        .check(&header("garbage", &plain.text()), 200, &none)
        .await;
}

#[tokio::test]
async fn a_malformed_request_ends_only_its_own_connection() {
    let host = Host::start().await;
    let mut neighbour = Http1::connect(&host).await;
    neighbour.expect_alive().await;
    for nonsense in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "POST /forrst HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        "POST /forrst HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        "PRI * HTTP/1.1\r\n\r\n",
    ] {
        let mut client = Http1::connect(&host).await;
        client.send(nonsense).await;
        client.send("GET /health HTTP/1.0\r\n\r\n").await;
        let rest = client.rest().await;
        let rest = String::from_utf8_lossy(&rest);
        assert!(!rest.starts_with("HTTP/1.1 200"), "{nonsense:?} got {rest}");
    }
    neighbour.expect_alive().await;
}

/// `curl --http2` offers an upgrade to HTTP/2. A server may ignore that, but must serve the request.
#[tokio::test]
async fn an_offer_to_upgrade_to_http2_is_ignored() {
    let host = Host::start().await;
    let offer = "host: test\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA";
    for (path, body) in [
        ("/forrst", ask("test.echo").text()),
        ("/rpc", ask("test.echo").rpc(1).to_string()),
    ] {
        let mut client = Http1::connect(&host).await;
        let request = post(path, &body).replacen("host: test", offer, 1);
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!(
            answer.status,
            200,
            "{path}: {}",
            String::from_utf8_lossy(&answer.body)
        );
    }
}

#[tokio::test]
async fn the_routes_can_be_mounted_into_another_application() {
    let host = Host::start().await;
    let app = Router::new().nest("/api", host.server.router());
    let request = |path: &str| {
        Request::post(path)
            .header("content-type", "application/json")
            .body(Body::from(
                ask("test.echo").lock(json!({"key": "k"})).text(),
            ))
            .unwrap()
    };
    let answer = app.clone().oneshot(request("/api/forrst")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["x-forrst-request-id"], "req_1");
    let answer = app.oneshot(request("/forrst")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn mounted_routes_check_the_host() {
    let host = Host::start().await;
    let app = Router::new().nest("/api", host.server.router());
    for (name, status) in [
        (Some("evil.example"), StatusCode::FORBIDDEN),
        (Some("[::1]evil.example"), StatusCode::FORBIDDEN),
        (Some("localhost:80"), StatusCode::OK),
        (Some("[::1]:80"), StatusCode::OK),
        (Some("test"), StatusCode::OK),
        (None, StatusCode::OK),
    ] {
        let mut request = Request::post("/api/forrst").header("content-type", "application/json");
        if let Some(name) = name {
            request = request.header("host", name);
        }
        let request = request.body(Body::from(ask("test.echo").text())).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status, "{name:?}");
    }
}

#[tokio::test]
async fn a_server_that_shuts_down_is_not_ready() {
    let host = Host::start().await;
    let app = host.server.router();
    host.server.shut_down(Duration::from_millis(10)).await;
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let answer = app.clone().oneshot(get("/ready")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let answer = app.oneshot(get("/health")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_long_unknown_path_is_shortened_in_the_answer() {
    let host = Host::start().await;
    let mut client = Http1::connect(&host).await;
    let path = format!("/{}", "x".repeat(4000));
    client
        .send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"))
        .await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 404);
    assert!(answer.body.len() < 600, "{} bytes", answer.body.len());
}

#[tokio::test]
async fn a_refusal_before_the_request_is_read_is_a_whole_answer() {
    let host = Host::with(Limits {
        max_body: 1000,
        ..Limits::default()
    })
    .await;
    let large = post("/forrst", &"x".repeat(1001));
    for (request, status, code) in [
        (
            "GET /elsewhere HTTP/1.1\r\nhost: test\r\n\r\n".to_owned(),
            404,
            "NOT_FOUND",
        ),
        (
            "GET /forrst HTTP/1.1\r\nhost: test\r\n\r\n".to_owned(),
            405,
            "INVALID_REQUEST",
        ),
        (
            "POST /forrst HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n".to_owned(),
            415,
            "INVALID_REQUEST",
        ),
        (
            "GET / HTTP/1.1\r\nhost: other\r\n\r\n".to_owned(),
            403,
            "FORBIDDEN",
        ),
        (large, 413, "INVALID_REQUEST"),
    ] {
        let mut client = Http1::connect(&host).await;
        client.send(&request).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{request}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(
            answer.header("x-forrst-node"),
            Some("node-test"),
            "{request}"
        );
        assert!(answer.header("x-forrst-duration-ms").is_some(), "{request}");
        let expected = json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": null,
            "result": null,
            "errors": [{"code": code, "message": "<text>"}],
            "meta": {"node": "node-test"},
        });
        expect(&answer.json(), &expected);
    }
}
