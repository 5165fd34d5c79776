//! `call`: its function, version and arguments.

use serde_json::json;

use crate::contract_section_1::checks::{
    accepted, check_invalid, message, valid, values_other_than, with, without,
};

#[test]
fn a_missing_call_or_one_of_another_type_is_an_invalid_request() {
    check_invalid(&without("", "call"), "/call");
    for (value, _) in values_other_than(&["an object"]) {
        check_invalid(&with("/call", value), "/call");
    }
}

#[test]
fn a_missing_function_or_one_of_another_type_is_an_invalid_request() {
    check_invalid(&without("/call", "function"), "/call/function");
    for (value, _) in values_other_than(&["a string"]) {
        check_invalid(&with("/call/function", value), "/call/function");
    }
}

#[test]
fn a_function_name_is_dotted_or_a_urn() {
    for name in [
        "payments.charge",
        "billing.generateReport",
        "a.b.c",
        "urn:cline:forrst:ext:atomic-lock:fn:release",
        "urn:cline:forrst:fn:ping",
        "urn:acme:forrst:fn:ping",
    ] {
        let body = with("/call/function", json!(name));
        assert_eq!(accepted(&body).call.function.as_str(), name);
    }
}

#[test]
fn a_malformed_function_name_is_an_invalid_request() {
    for name in [
        "",
        "charge",
        "payments.",
        ".charge",
        "a b.c",
        "urn:forrst:ext:atomicLock",
        "urn:x:forrst:fn",
    ] {
        let body = with("/call/function", json!(name));
        check_invalid(&body, "/call/function");
    }
    let message = message(&with("/call/function", json!("charge")));
    assert!(
        message.starts_with("`call.function` is wrong: a function name must be"),
        "{message}"
    );
    assert!(message.ends_with(r#"found "charge""#), "{message}");
}

#[test]
fn the_version_is_optional_and_semantic() {
    assert_eq!(accepted(&without("/call", "version")).call.version, None);
    let body = with("/call/version", json!("2.0.0-beta.1"));
    assert!(!accepted(&body).call.version.unwrap().is_stable());
    for version in ["", "1", "1.0", "latest", "v1.0.0"] {
        check_invalid(&with("/call/version", json!(version)), "/call/version");
    }
    for (value, _) in values_other_than(&["a string"]) {
        check_invalid(&with("/call/version", value), "/call/version");
    }
}

#[test]
fn arguments_default_to_an_empty_object() {
    assert_eq!(
        accepted(&without("/call", "arguments"))
            .call
            .arguments
            .get(),
        "{}"
    );
}

#[test]
fn arguments_of_another_type_are_an_invalid_request() {
    for (value, kind) in values_other_than(&["an object"]) {
        let body = with("/call/arguments", value);
        check_invalid(&body, "/call/arguments");
        assert_eq!(
            message(&body),
            format!("`call.arguments` must be an object, found {kind}")
        );
    }
}

#[test]
fn arguments_are_passed_on_as_they_were_sent() {
    let sent = r#"{ "b" : 1.50, "a":1e999 ,"s":"\ud800\u0041" }"#;
    let body = valid().to_string().replace(r#"{"amount":100}"#, sent);
    assert_eq!(accepted(&body).call.arguments.get(), sent);
}
