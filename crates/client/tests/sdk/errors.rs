//! Each error code of the server has its variant of `Error`.

use forrst_client::{Client, Error, Retry};
use forrst_protocol::ErrorCode;
use serde_json::json;

use crate::host::soon;
use crate::raw_server::{RawServer, Reply};

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Contended(_) => "contended",
        Error::TimedOut(_) => "timed out",
        Error::Mismatch(_) => "mismatch",
        Error::NotHeld(_) => "not held",
        Error::AlreadyReleased(_) => "already released",
        Error::DeadlineExceeded(Some(_)) => "deadline",
        Error::Cancelled(Some(_)) => "cancelled",
        Error::Unavailable(_) => "unavailable",
        Error::RateLimited(_) => "rate limited",
        Error::Unauthorized(Some(_)) => "unauthorized",
        Error::Forbidden(Some(_)) => "forbidden",
        Error::Rejected(_) => "rejected",
        Error::Function(_) => "function",
        _ => "other",
    }
}

fn expected(code: &ErrorCode) -> &'static str {
    match code.as_str() {
        "LOCK_ACQUISITION_FAILED" => "contended",
        "LOCK_TIMEOUT" => "timed out",
        "LOCK_OWNERSHIP_MISMATCH" => "mismatch",
        "LOCK_NOT_FOUND" => "not held",
        "LOCK_ALREADY_RELEASED" => "already released",
        "DEADLINE_EXCEEDED" => "deadline",
        "CANCELLED" => "cancelled",
        "UNAVAILABLE" | "SERVER_MAINTENANCE" | "FUNCTION_MAINTENANCE" | "FUNCTION_DISABLED" => {
            "unavailable"
        }
        "RATE_LIMITED" => "rate limited",
        "UNAUTHORIZED" => "unauthorized",
        "FORBIDDEN" => "forbidden",
        "PARSE_ERROR"
        | "INVALID_REQUEST"
        | "INVALID_PROTOCOL_VERSION"
        | "INVALID_ARGUMENTS"
        | "EXTENSION_NOT_SUPPORTED"
        | "EXTENSION_NOT_APPLICABLE"
        | "FUNCTION_NOT_FOUND"
        | "VERSION_NOT_FOUND"
        | "SCHEMA_VALIDATION_FAILED" => "rejected",
        _ => "function",
    }
}

async fn fails(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Error {
    let server = RawServer::start(reply).await;
    soon(server.call().retry(Retry::never())).await.unwrap_err()
}

#[tokio::test]
async fn every_code_maps_to_its_variant() {
    let mut codes = ErrorCode::STANDARD.to_vec();
    codes.push("ORDERS_SOLD_OUT".parse().unwrap());
    for code in codes {
        let text = code.to_string();
        let error = fails(move |_| Reply::error(&text, &json!({"a": 1}))).await;
        assert_eq!(kind(&error), expected(&code), "{code}");
        assert_eq!(error.may_have_run(), code.may_have_run(), "{code}");
        assert_eq!(error.code(), Some(&code));
        let failure = error.failure().unwrap();
        assert_eq!(failure.details().unwrap()["a"], 1);
        assert!(
            error.to_string().contains("as the test wants it"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_the_lock_extension_says_decides_whether_the_function_may_have_run() {
    for code in ["DEADLINE_EXCEEDED", "RATE_LIMITED", "INVALID_ARGUMENTS"] {
        for acquired in [true, false] {
            let lock = json!({"urn": "urn:forrst:ext:atomicLock", "data": {"acquired": acquired}});
            let errors = json!([{"code": code, "message": "m"}]);
            let answer = json!({"result": null, "errors": errors, "extensions": [lock]});
            let error = fails(move |_| Reply::Forrst(answer.clone())).await;
            assert_eq!(error.may_have_run(), acquired, "{code}: {error}");
        }
    }
}

#[tokio::test]
async fn http_statuses_without_a_forrst_answer_map_to_their_variants() {
    let error = fails(|_| Reply::Http(401, "who?")).await;
    assert!(matches!(error, Error::Unauthorized(None)), "{error}");
    let error = fails(|_| Reply::Http(403, "no")).await;
    assert!(matches!(error, Error::Forbidden(None)), "{error}");
    let error = fails(|_| Reply::Http(200, "<html>")).await;
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    let error = fails(|_| Reply::Http(307, "elsewhere")).await;
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}

#[tokio::test]
async fn an_answer_to_another_request_is_a_protocol_error() {
    let error = fails(|_| Reply::Forrst(json!({"id": "another", "result": 1}))).await;
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}

#[test]
fn invalid_settings_are_reported_when_the_client_is_built() {
    let built = |builder: forrst_client::ClientBuilder| builder.build().unwrap_err();
    let local = || Client::builder("https://127.0.0.1");
    for error in [
        built(Client::builder("127.0.0.1:7420")),
        built(local().api_key("")),
        built(local().ca_certificate("no certificate")),
    ] {
        assert!(matches!(error, Error::Configuration(_)), "{error}");
    }
}
