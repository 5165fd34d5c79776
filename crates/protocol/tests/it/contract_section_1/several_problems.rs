use forrst_protocol::{ErrorCode, ErrorObject, Errors, Request, Response};
use serde_json::{Value, json};

use crate::contract_section_1::checks::check;

#[test]
fn are_reported_together() {
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
fn of_an_empty_object_are_all_that_is_missing() {
    let expected = ["/protocol", "/id", "/call"];
    check(
        "{}",
        &Value::Null,
        &expected.map(|pointer| ("INVALID_REQUEST", pointer)),
    );
}

#[test]
fn have_status_400_whatever_they_are() {
    let rejection = Request::parse(b"{}").unwrap_err();
    assert_eq!(Response::from(rejection).http_status(), 400);
    let errors = vec![
        ErrorObject::new(ErrorCode::Unavailable, "one"),
        ErrorObject::new(ErrorCode::Unavailable, "two"),
    ];
    let response = Response::failure(None, Errors::try_from(errors).unwrap());
    assert_eq!(response.http_status(), 400);
}
