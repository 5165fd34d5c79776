//! `id`: what it may be, and that every answer echoes it.

use serde_json::{Value, json};

use crate::contract_section_1::checks::{
    accepted, check, message, valid, values_other_than, with, without,
};

fn check_id(body: &str) {
    check(body, &Value::Null, &[("INVALID_REQUEST", "/id")]);
}

#[test]
fn a_missing_id_is_an_invalid_request_without_id() {
    check_id(&without("", "id"));
}

#[test]
fn an_id_that_is_not_a_string_is_an_invalid_request_without_id() {
    for (value, kind) in values_other_than(&["a string"]) {
        let body = with("/id", value);
        check_id(&body);
        assert_eq!(
            message(&body),
            format!("`id` must be a string, found {kind}")
        );
    }
}

#[test]
fn an_empty_id_is_an_invalid_request_without_id() {
    check_id(&with("/id", json!("")));
}

#[test]
fn an_id_of_up_to_256_bytes_is_accepted() {
    accepted(&with("/id", json!("x".repeat(256))));
    check_id(&with("/id", json!("x".repeat(257))));
    accepted(&with("/id", json!("é".repeat(128))));
    check_id(&with("/id", json!("é".repeat(129))));
}

#[test]
fn escapes_in_an_id_are_decoded() {
    let body = valid()
        .to_string()
        .replace("req_001", "r\\u00e9\\n\\ud83d\\ude00");
    assert_eq!(accepted(&body).id.as_str(), "ré\n😀");
}

#[test]
fn half_a_surrogate_pair_in_an_id_is_an_invalid_request_without_id() {
    check_id(&valid().to_string().replace("req_001", "\\ud83d"));
}

#[test]
fn a_repeated_id_is_an_invalid_request_without_id_since_either_may_be_meant() {
    let body = valid().to_string().replacen('{', r#"{"id":"req_000","#, 1);
    check_id(&body);
    let escaped = valid()
        .to_string()
        .replacen('{', r#"{"\u0069d":"req_001","#, 1);
    check_id(&escaped);
}

#[test]
fn an_id_is_echoed_wherever_it_appears_in_a_bad_request() {
    let last =
        r#"{"protocol": 1, "call": [], "context": 1e999, "extensions": "\ud800", "id": "req_001"}"#;
    let first =
        r#"{"id": "req_001", "protocol": 1, "call": [], "context": 1e999, "extensions": "\ud800"}"#;
    for body in [first, last] {
        let expected = ["/protocol", "/call", "/context", "/extensions"];
        check(
            body,
            &json!("req_001"),
            &expected.map(|pointer| ("INVALID_REQUEST", pointer)),
        );
    }
}
