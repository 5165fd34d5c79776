//! `GET /metrics`: everything that happens is counted, and callers cannot create series.

use forrst_server::{Limits, Server};
use forrst_testkit::asynchronous::eventually;
use serde_json::{Value, json};

use crate::observe::scrape::{Scrape, get};
use crate::transports::host::{Host, soon};
use crate::wire::{Ask, ask, millis, seconds};

fn function(name: &str) -> String {
    format!("urn:cline:forrst:ext:atomic-lock:fn:{name}")
}

async fn send(server: &Server, ask: &Ask) -> Value {
    let answer = soon(server.handle(ask.text().as_bytes())).await;
    serde_json::to_value(&answer).unwrap()
}

async fn take(server: &Server, key: &str, owner: &str) {
    let taken = ask(&function("acquire"))
        .arguments(json!({"key": key, "owner": owner, "ttl": seconds(60)}));
    let answer = send(server, &taken).await;
    assert_eq!(answer["errors"], Value::Null, "{answer}");
}

#[tokio::test]
async fn every_outcome_of_an_acquisition_is_counted() {
    let host = Host::start().await;
    let server = &host.server;
    send(server, &ask("test.echo").lock(json!({"key": "a"}))).await;
    take(server, "b", "me").await;
    send(
        server,
        &ask("test.echo").lock(json!({"key": "b", "scope": "global"})),
    )
    .await;
    let wait = json!({"key": "b", "scope": "global", "block": millis(5)});
    send(server, &ask("test.echo").lock(wait)).await;
    let wait = ask("test.echo").lock(json!({"key": "b", "scope": "global", "block": seconds(60)}));
    let waiting = tokio::spawn({
        let (server, wait) = (server.clone(), wait.clone());
        async move { send(&server, &wait).await }
    });
    host.until_waiting(1).await;
    let hangs_up = tokio::spawn({
        let server = server.clone();
        async move { send(&server, &wait).await }
    });
    host.until_waiting(2).await;

    let during = Scrape::fetch(host.address).await;
    during.expect("locks_held", 1.0);
    during.expect("lock_waiters", 2.0);

    hangs_up.abort();
    host.until_waiting(1).await;
    let key = json!({"key": "lock:b", "owner": "me"});
    send(server, &ask(&function("release")).arguments(key)).await;
    waiting.await.unwrap();

    let after = Scrape::fetch(host.address).await;
    after.expect("lock_acquire_total{result=\"granted\"}", 2.0);
    after.expect("lock_acquire_total{result=\"held\"}", 1.0);
    after.expect("lock_acquire_total{result=\"timed_out\"}", 1.0);
    after.expect("lock_acquire_total{result=\"granted_after_wait\"}", 1.0);
    after.expect("lock_acquire_total{result=\"given_up\"}", 1.0);
    after.expect("lock_acquire_total{result=\"error\"}", 0.0);
    after.expect("lock_contended_total", 4.0);
    after.expect("lock_wait_seconds_count", 2.0);
    after.expect("lock_hold_seconds_count", 3.0);
    after.expect("locks_held", 0.0);
    after.expect("lock_waiters", 0.0);
}

#[tokio::test]
async fn leases_and_keys_are_counted_separately() {
    let host = Host::start().await;
    let server = &host.server;
    let acquire = |mut arguments: Value| {
        arguments["ttl"] = seconds(60);
        ask(&function("acquire")).arguments(arguments)
    };
    for arguments in [
        json!({"keys": ["a", "b", "c"]}),
        json!({"key": "s", "mode": "shared"}),
        json!({"key": "s", "mode": "shared"}),
    ] {
        send(server, &acquire(arguments)).await;
    }
    let waits = acquire(json!({"keys": ["a", "x", "y"], "block": seconds(60)}));
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { send(&server, &waits).await }
    });
    host.until_waiting(1).await;
    let during = Scrape::fetch(host.address).await;
    during.expect("locks_held", 4.0);
    during.expect("leases_held", 3.0);
    during.expect("lock_waiters", 1.0);
    during.expect("lock_keys_reserved", 2.0);
    during.expect("lock_acquire_total{result=\"granted\"}", 3.0);

    waiting.abort();
    host.until_waiting(0).await;
    let after = Scrape::fetch(host.address).await;
    after.expect("lock_keys_reserved", 0.0);
}

#[tokio::test]
async fn renewals_and_releases_are_counted() {
    let host = Host::start().await;
    let server = &host.server;
    take(server, "a", "me").await;
    let extend = |owner: &str| {
        let arguments = json!({"key": "lock:a", "owner": owner, "ttl": seconds(60)});
        ask(&function("extend")).arguments(arguments)
    };
    send(server, &extend("me")).await;
    send(server, &extend("somebody else")).await;
    let release = |owner: &str| {
        let arguments = json!({"key": "lock:a", "owner": owner});
        ask(&function("release")).arguments(arguments)
    };
    send(server, &release("somebody else")).await;
    send(server, &release("me")).await;
    send(server, &release("me")).await;
    take(server, "a", "me").await;
    send(
        server,
        &ask(&function("force-release")).arguments(json!({"key": "lock:a"})),
    )
    .await;

    let scrape = Scrape::fetch(host.address).await;
    scrape.expect("lock_renew_total{result=\"extended\"}", 1.0);
    scrape.expect("lock_renew_total{result=\"refused\"}", 1.0);
    scrape.expect("lock_release_total{result=\"released\"}", 1.0);
    scrape.expect("lock_release_total{result=\"refused\"}", 2.0);
    scrape.expect("lock_release_total{result=\"forced\"}", 1.0);
    scrape.expect("lock_op_latency_seconds_count{op=\"extend\"}", 2.0);
    scrape.expect("lock_op_latency_seconds_count{op=\"release\"}", 3.0);
    scrape.expect("lock_op_latency_seconds_count{op=\"acquire\"}", 2.0);
}

#[tokio::test]
async fn a_renewed_lease_is_counted_and_its_loss_is_counted_once() {
    let host = Host::start().await;
    let call = ask("test.gate").lock(json!({"key": "a", "ttl": seconds(3), "renew": true}));
    let running = tokio::spawn({
        let server = host.server.clone();
        async move { send(&server, &call).await }
    });
    eventually("it is renewed twice", async || {
        let scrape = Scrape::fetch(host.address).await;
        scrape.value("lock_renew_total{result=\"extended\"}") >= Some(2.0)
    })
    .await;
    let key = json!({"key": "lock:test.gate:a"});
    send(
        &host.server,
        &ask(&function("force-release")).arguments(key),
    )
    .await;
    eventually("its loss is counted", async || {
        let scrape = Scrape::fetch(host.address).await;
        scrape.value("lock_lost_total") == Some(1.0)
    })
    .await;
    host.seen.open_gate();
    running.await.unwrap();
    let scrape = Scrape::fetch(host.address).await;
    scrape.expect("lock_lost_total", 1.0);
    scrape.expect("lock_release_total{result=\"refused\"}", 1.0);
}

#[tokio::test]
async fn an_expired_lease_is_counted_with_the_time_it_was_held() {
    let host = Host::start().await;
    let taken = json!({"key": "a", "ttl": millis(200)});
    send(&host.server, &ask(&function("acquire")).arguments(taken)).await;
    eventually("its end is counted", async || {
        let scrape = Scrape::fetch(host.address).await;
        scrape.value("lock_expired_total") == Some(1.0)
    })
    .await;
    let scrape = Scrape::fetch(host.address).await;
    scrape.expect("lock_hold_seconds_count", 1.0);
    scrape.expect("lock_hold_seconds_sum", 0.2);
}

#[tokio::test]
async fn requests_are_counted_by_function_and_code_and_callers_cannot_create_series() {
    let host = Host::start().await;
    let server = &host.server;
    send(server, &ask("test.echo")).await;
    send(server, &ask("test.panic")).await;
    for number in 0..20 {
        send(server, &ask(&format!("made.up{number}"))).await;
        let code = json!({"code": format!("MADE_UP_{number}")});
        send(server, &ask("test.fail").arguments(code)).await;
    }
    server.handle(b"not JSON").await;
    let before = Scrape::fetch(host.address).await;
    before.expect(
        "forrst_requests_total{function=\"test.echo\",code=\"OK\"}",
        1.0,
    );
    before.expect(
        "forrst_requests_total{function=\"test.panic\",code=\"INTERNAL_ERROR\"}",
        1.0,
    );
    before.expect(
        "forrst_requests_total{function=\"unknown\",code=\"FUNCTION_NOT_FOUND\"}",
        20.0,
    );
    before.expect(
        "forrst_requests_total{function=\"unknown\",code=\"PARSE_ERROR\"}",
        1.0,
    );
    before.expect(
        "forrst_requests_total{function=\"test.fail\",code=\"OTHER\"}",
        20.0,
    );
    before.expect("forrst_request_seconds_count{function=\"test.echo\"}", 1.0);
    assert!(!before.0.contains("made.up"), "{}", before.0);
    assert!(!before.0.contains("MADE_UP"), "{}", before.0);
}

#[tokio::test]
async fn no_key_and_no_owner_is_ever_a_label() {
    let host = Host::start().await;
    take(&host.server, "secret-key", "secret-owner").await;
    let call = json!({"key": "secret-key", "owner": "secret-owner"});
    send(&host.server, &ask("test.echo").lock(call)).await;
    let scrape = Scrape::fetch(host.address).await;
    assert!(!scrape.0.contains("secret"), "{}", scrape.0);
}

#[tokio::test]
async fn each_server_has_its_own_metrics() {
    let (one, other) = (Host::start().await, Host::start().await);
    take(&one.server, "a", "me").await;
    Scrape::fetch(one.address)
        .await
        .expect("lock_acquire_total{result=\"granted\"}", 1.0);
    Scrape::fetch(other.address)
        .await
        .expect("lock_acquire_total{result=\"granted\"}", 0.0);
}

#[tokio::test]
async fn connections_and_refusals_by_limits_are_counted() {
    let host = Host::with(Limits {
        max_connections: 2,
        max_body: 100,
        ..Limits::default()
    })
    .await;
    let idle = tokio::net::TcpStream::connect(host.address).await.unwrap();
    loop {
        let scrape = Scrape::fetch(host.address).await;
        if scrape.value("forrst_connections") == Some(2.0) {
            break;
        }
    }
    let another = tokio::net::TcpStream::connect(host.address).await.unwrap();
    let (head, _) = get(host.address, "/ready").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    drop((idle, another));
    let (head, _) = loop {
        let answer = get(host.address, "/metrics").await;
        if answer.0.starts_with("http/1.1 200") {
            break answer;
        }
    };
    assert!(head.starts_with("http/1.1 200"));
    let scrape = Scrape::fetch(host.address).await;
    let refused = scrape.value("forrst_limits_hit_total{limit=\"connections\"}");
    assert!(refused >= Some(1.0), "{}", scrape.0);
}
