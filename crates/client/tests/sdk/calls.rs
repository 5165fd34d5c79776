//! Calls whose answers arrive.

use forrst_client::{Client, Error, Held, Lock};
use forrst_protocol::{ErrorCode, RawObject};
use serde_json::{Value, json};

use crate::host::{Charge, Host, Receipt, acquired, charge, charging, free_address, ms, soon};

#[tokio::test]
async fn a_call_returns_the_result_of_the_function() {
    let host = Host::start().await;
    for client in host.clients() {
        let call = client.call::<Charge, Receipt>("payments.charge", charge());
        let receipt = soon(call.version("1.0.0")).await.unwrap();
        assert_eq!(
            receipt,
            Receipt {
                charged: 100,
                fence: None
            }
        );
    }
}

#[tokio::test]
async fn connect_checks_that_a_server_answers() {
    let host = Host::start().await;
    for scheme in ["http", "ws"] {
        let url = format!("{scheme}://{}", host.address);
        soon(Client::connect(&url)).await.unwrap();
        let url = format!("{scheme}://{}", free_address().await);
        let error = soon(Client::connect(&url)).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error}");
    }
    soon(Client::connect(&host.unix_url())).await.unwrap();
}

#[tokio::test]
async fn a_function_runs_under_its_lock() {
    let host = Host::start().await;
    for client in host.clients() {
        let lock = Lock::key("user:123").ttl(ms(30_000)).wait(ms(5_000));
        let receipt = soon(charging(&client).lock(lock)).await.unwrap();
        assert!(receipt.fence.is_some());
        host.until_free("lock:payments.charge:user:123").await;
    }
}

#[tokio::test]
async fn a_kept_lock_is_in_the_answer_and_can_be_released() {
    let host = Host::start().await;
    let client = host.http();
    let lock = Lock::key("k").ttl(ms(30_000)).global().owner("me").keep();
    let response = soon(charging(&client).lock(lock).response()).await.unwrap();
    assert_eq!(response.node(), Some("node-test"));
    let held = Held::from_response(&response).unwrap();
    assert_eq!((held.full_key(), held.owner.as_str()), ("lock:k", "me"));

    let lock = Lock::key("k").ttl(ms(30_000)).global();
    let error = soon(charging(&client).lock(lock)).await.unwrap_err();
    let Error::Contended(failure) = &error else {
        panic!("{error}")
    };
    assert_eq!(failure.details().unwrap()["full_key"], "lock:k");
    assert!(failure.retry_after().is_some());
    assert!(!error.may_have_run());
    assert_eq!(host.charges(), 1, "nothing runs without its lock");

    client
        .locks()
        .release(held.full_key(), &held.owner, Some(held.fence))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_wait_that_times_out_has_an_error_of_its_own() {
    let host = Host::start().await;
    let lease = acquired(host.http().lock("k")).await;
    for client in host.clients() {
        let lock = Lock::key("k").global().wait(ms(30));
        let error = soon(charging(&client).lock(lock)).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
    }
    lease.release().await.unwrap();
    assert_eq!(host.charges(), 0);
}

#[tokio::test]
async fn an_error_of_a_function_has_all_its_members() {
    let host = Host::start().await;
    for client in host.clients() {
        let call = client.call::<_, Value>("test.decline", json!({}));
        let error = soon(call).await.unwrap_err();
        let Error::Function(failure) = &error else {
            panic!("{error}")
        };
        assert_eq!(failure.code().as_str(), "PAYMENTS_DECLINED");
        assert_eq!(failure.message(), "No money left");
        assert_eq!(failure.pointer(), Some("/call/arguments/amount"));
        assert_eq!(failure.details().unwrap()["limit"], 100);
        assert!(
            error
                .to_string()
                .contains("No money left (PAYMENTS_DECLINED)")
        );
    }
}

#[tokio::test]
async fn an_invalid_request_is_rejected_with_all_its_errors() {
    let host = Host::start().await;
    let call = host
        .http()
        .call::<_, Value>("payments.charge", json!({"user": 1, "amount": "x"}));
    let error = soon(call).await.unwrap_err();
    let Error::Rejected(failure) = &error else {
        panic!("{error}")
    };
    assert_eq!(failure.errors().len(), 2);
    assert!(
        failure
            .errors()
            .iter()
            .all(|e| e.code == ErrorCode::InvalidArguments)
    );
    assert_eq!(host.charges(), 0);
}

#[tokio::test]
async fn a_call_that_cannot_be_sent_fails_when_it_is_awaited() {
    let host = Host::start().await;
    let client = host.http();
    for call in [
        client.call::<_, Value>("no name", json!({})),
        client.call::<_, Value>("payments.charge", json!([1])),
        client
            .call::<_, Value>("payments.charge", json!({}))
            .version("one"),
        client
            .call::<_, Value>("payments.charge", json!({}))
            .context("text"),
    ] {
        let error = soon(call).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
    }
}

#[tokio::test]
async fn a_result_of_another_type_is_a_protocol_error() {
    let host = Host::start().await;
    let call = host.http().call::<_, Vec<u8>>("payments.charge", charge());
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}

#[tokio::test]
async fn a_raw_call_returns_the_whole_answer_even_of_a_failure() {
    let host = Host::start().await;
    for client in host.clients() {
        let arguments = RawObject::from_serialize(&charge()).unwrap();
        let response = soon(client.call_raw("payments.charge", arguments).response())
            .await
            .unwrap();
        assert_eq!(
            response.result().unwrap().get(),
            r#"{"charged":100,"fence":null}"#
        );
        let refused = client
            .call_raw("payments.nothing", RawObject::default())
            .response();
        let refused = soon(refused).await.unwrap();
        let errors = refused.result().unwrap_err();
        assert_eq!(errors.as_slice()[0].code, ErrorCode::FunctionNotFound);
        assert_eq!(refused.node(), Some("node-test"));
    }
}

#[tokio::test]
async fn the_function_receives_the_context() {
    let host = Host::start().await;
    let call = host.http().call::<_, Value>("test.context", json!({}));
    let call = call.context(&json!({"tenant": "t1"}));
    let seen = soon(call).await.unwrap();
    assert_eq!(seen["context"], r#"{"tenant":"t1"}"#);
}
