//! Many calls over one WebSocket.

use forrst_client::{Error, Retry};
use futures_util::future::join_all;
use serde_json::json;

use crate::host::{Charge, Host, Receipt, charging, ms, soon, wait_at_the_gate};
use crate::proxy::host_behind_proxy;

#[tokio::test]
async fn many_calls_share_one_connection_and_each_gets_its_own_answer() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.websocket().build().unwrap();
    let calls = (0..3_000).map(|amount| {
        let charge = Charge {
            user: "u".to_owned(),
            amount,
        };
        let call = client.call::<_, Receipt>("payments.charge", charge);
        call.into_future()
    });
    let receipts = soon(join_all(calls)).await;
    for (amount, receipt) in (0..).zip(receipts) {
        assert_eq!(receipt.unwrap().charged, amount);
    }
    assert_eq!(host.charges(), 3_000);
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn a_slow_call_does_not_delay_the_others() {
    let host = Host::start().await;
    let client = host.websocket();
    let slow = wait_at_the_gate(&client);
    soon(charging(&client)).await.unwrap();
    assert!(!slow.is_finished());
    host.open_gate();
    soon(slow).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_connection_is_opened_again_after_a_restart_of_the_server() {
    let host = Host::start().await;
    let client = host.websocket();
    soon(client.ping()).await.unwrap();
    host.stop().await;
    let patient = Retry::default()
        .first_pause(ms(5))
        .longest_pause(ms(20))
        .attempts(1_000);
    let call = tokio::spawn(charging(&client).retry(patient).into_future());
    tokio::time::sleep(ms(50)).await;
    let host = host.start_again().await;
    soon(call).await.unwrap().unwrap();
    assert_eq!(host.charges(), 1);
}

#[tokio::test]
async fn calls_under_way_when_the_connection_breaks_may_have_run() {
    let (_host, proxy) = host_behind_proxy().await;
    let client = proxy.websocket().build().unwrap();
    let calls = [(); 10].map(|()| wait_at_the_gate(&client));
    soon(client.ping()).await.unwrap();
    proxy.refuse_all();
    for call in calls {
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Interrupted(_)), "{error}");
    }
    proxy.pass();
    soon(client.ping()).await.unwrap();
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn the_connection_is_closed_when_the_client_is_dropped() {
    let host = Host::start().await;
    let client = host.websocket();
    soon(client.ping()).await.unwrap();
    drop(client);
    // A server that drains waits for every connection that is open.
    soon(host.server.shut_down(ms(60_000))).await;
}

#[tokio::test]
async fn a_request_that_is_too_large_fails_at_once() {
    let host = Host::start().await;
    let client = host.websocket();
    let huge = json!({"user": "x".repeat(2 * 1024 * 1024), "amount": 1});
    let call = client.call::<_, Receipt>("payments.charge", huge);
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted(_)), "{error}");
    soon(client.ping()).await.unwrap();
}
