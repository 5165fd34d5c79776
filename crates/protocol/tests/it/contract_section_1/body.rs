//! The body as a whole: its JSON, its size and its nesting.

use forrst_protocol::{DEFAULT_MAX_BODY_BYTES, ErrorCode, MAX_NESTING, Request};
use serde_json::{Value, json};

use crate::contract_section_1::checks::{accepted, answer, check, message, valid, with};

#[test]
fn one_json_object_with_all_its_parts_is_accepted() {
    let body = valid().to_string();
    let request = accepted(&body);
    assert_eq!(request.id.as_str(), "req_001");
    assert_eq!(request.protocol_version().to_string(), "0.1.0");
    assert_eq!(request.call.function.as_str(), "payments.charge");
    assert_eq!(request.call.version.as_ref().unwrap().to_string(), "1.0.0");
    assert_eq!(request.call.arguments.get(), r#"{"amount":100}"#);
    assert_eq!(
        request.context.as_ref().unwrap().get(),
        r#"{"caller":"checkout"}"#
    );
    let [lock] = request.extensions.as_slice() else {
        panic!("one extension");
    };
    assert_eq!(lock.urn.as_str(), "urn:forrst:ext:atomicLock");
    assert_eq!(
        lock.options.as_ref().unwrap().get(),
        r#"{"key":"user:123"}"#
    );
    assert!(lock.required);
}

#[test]
fn only_protocol_id_and_function_are_needed() {
    let body =
        r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"r","call":{"function":"a.b"}}"#;
    let request = accepted(body);
    assert_eq!(request.call.version, None);
    assert_eq!(request.call.arguments.get(), "{}");
    assert!(request.context.is_none());
    assert!(request.extensions.is_empty());
}

#[test]
fn what_is_not_json_is_a_parse_error_with_its_position_and_no_id() {
    assert_eq!(
        answer(r#"{"id": "req_001", "call": }"#),
        json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": null,
            "result": null,
            "errors": [{
                "code": "PARSE_ERROR",
                "message": "Invalid JSON at byte 26: expected value",
                "source": {"position": 26},
            }],
        })
    );
}

#[test]
fn an_early_end_is_a_parse_error_at_the_length_of_the_body() {
    let error = &answer(r#"{"protocol": {"name": "forrst""#)["errors"][0];
    assert_eq!(error["code"], "PARSE_ERROR");
    assert_eq!(error["source"], json!({"position": 30}));
}

#[test]
fn what_is_not_utf_8_is_a_parse_error() {
    let rejection = Request::parse(b"{\"id\": \"\xff\"}").unwrap_err();
    assert_eq!(rejection.id(), None);
    let [error] = rejection.errors().as_slice() else {
        panic!("one error");
    };
    assert_eq!(error.code, ErrorCode::ParseError);
    assert_eq!(
        serde_json::to_value(&error.source).unwrap(),
        json!({"position": 8})
    );
}

#[test]
fn two_requests_in_one_body_are_a_parse_error() {
    let one = valid().to_string();
    let error = &answer(&format!("{one}{one}"))["errors"][0];
    assert_eq!(error["code"], "PARSE_ERROR");
    assert_eq!(error["source"], json!({"position": one.len()}));
}

#[test]
fn an_array_is_an_invalid_request() {
    check("[]", &Value::Null, &[("INVALID_REQUEST", "")]);
    check(
        &format!("[{}]", valid()),
        &Value::Null,
        &[("INVALID_REQUEST", "")],
    );
    assert_eq!(
        message("[]"),
        "The request must be an object, found an array"
    );
}

#[test]
fn a_scalar_is_an_invalid_request() {
    for scalar in ["null", "true", "42", "-1e999", "\"{}\"", " \n\"\\ud800\""] {
        check(scalar, &Value::Null, &[("INVALID_REQUEST", "")]);
    }
}

#[test]
fn the_default_limit_of_the_body_is_1_mib() {
    assert_eq!(DEFAULT_MAX_BODY_BYTES, 1_048_576);
}

/// The envelope, `call` and `arguments` are the first three levels.
fn nested(levels: usize) -> String {
    let inner = levels - 3;
    let body = with("/call/arguments", json!({"x": "here"}));
    body.replace(
        "\"here\"",
        &format!("{}{}", "[".repeat(inner), "]".repeat(inner)),
    )
}

#[test]
fn nesting_of_64_is_accepted() {
    assert_eq!(MAX_NESTING, 64);
    accepted(&nested(64));
}

#[test]
fn nesting_of_65_is_an_invalid_request_at_the_bracket_that_is_too_deep() {
    let body = nested(65);
    let answer = answer(&body);
    assert_eq!(answer["id"], "req_001");
    let errors = answer["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0]["code"], "INVALID_REQUEST");
    let innermost = body.find("[]").unwrap();
    assert_eq!(errors[0]["source"], json!({"position": innermost}));
    assert!(errors[0]["message"].as_str().unwrap().contains("64"));
}

#[test]
fn nesting_counts_also_where_fields_are_ignored() {
    let deep = format!("{}{}", "[".repeat(64), "]".repeat(64));
    let body = valid()
        .to_string()
        .replacen('{', &format!(r#"{{"other":{deep},"#), 1);
    assert_eq!(
        answer(&body)["errors"][0]["source"],
        json!({"position": 9 + 63})
    );
}

#[test]
fn many_brackets_that_are_not_nested_are_accepted() {
    accepted(&with(
        "/call/arguments",
        json!({"x": vec![json!([{}]); 1000]}),
    ));
    accepted(&with("/call/arguments", json!({"x": "[{".repeat(1000)})));
    accepted(&with(
        "/call/arguments",
        json!({"x": "\\\"[{".repeat(1000)}),
    ));
}

#[test]
fn a_syntax_error_wins_over_nesting() {
    let body = nested(100).replace("]]", "]}");
    let errors = answer(&body)["errors"].clone();
    assert_eq!(errors.as_array().unwrap().len(), 1);
    assert_eq!(errors[0]["code"], "PARSE_ERROR");
}
