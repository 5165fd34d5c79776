//! A request with several problems is answered with all of them.

use forrst_protocol::{ErrorCode, ErrorObject, Errors, Request, Response};
use serde_json::{Value, json};

use crate::contract_section_1::checks::check;

#[test]
fn several_problems_are_reported_together() {
    let body = r#"{
        "extensions": [{"options": [1]}, 7, {"urn": "x", "required": "no"}],
        "call": {"version": 1, "arguments": null},
        "protocol": {"version": "1.0.0"},
        "id": "req_001"
    }"#;
    check(
        body,
        &json!("req_001"),
        &[
            ("INVALID_REQUEST", "/protocol/name"),
            ("INVALID_PROTOCOL_VERSION", "/protocol/version"),
            ("INVALID_REQUEST", "/call/function"),
            ("INVALID_REQUEST", "/call/version"),
            ("INVALID_REQUEST", "/call/arguments"),
            ("INVALID_REQUEST", "/extensions/0/urn"),
            ("INVALID_REQUEST", "/extensions/0/options"),
            ("INVALID_REQUEST", "/extensions/1"),
            ("INVALID_REQUEST", "/extensions/2/urn"),
            ("INVALID_REQUEST", "/extensions/2/required"),
        ],
    );
}

#[test]
fn an_empty_object_is_answered_with_all_missing_members() {
    let expected = ["/protocol", "/id", "/call"];
    check(
        "{}",
        &Value::Null,
        &expected.map(|pointer| ("INVALID_REQUEST", pointer)),
    );
}

#[test]
fn several_errors_have_status_400_whatever_their_codes() {
    let rejection = Request::parse(b"{}").unwrap_err();
    assert_eq!(Response::from(rejection).http_status(), 400);
    let errors = vec![
        ErrorObject::new(ErrorCode::Unavailable, "one"),
        ErrorObject::new(ErrorCode::Unavailable, "two"),
    ];
    let response = Response::failure(None, Errors::try_from(errors).unwrap());
    assert_eq!(response.http_status(), 400);
}
