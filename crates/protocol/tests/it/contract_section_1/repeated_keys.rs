//! A key that is repeated within one object is refused, at any depth.

use serde_json::json;

use crate::contract_section_1::checks::{accepted, check_invalid, message, valid, with};

#[test]
fn repeated_keys_in_the_envelope_are_an_invalid_request() {
    for (place, member, pointer) in [
        ("{", r#""call":{"function":"a.b"},"#, "/call"),
        ("{", r#""context":{},"#, "/context"),
        ("{", r#""c\u006fntext":{},"#, "/context"),
        ("{", r#""extensions":[],"#, "/extensions"),
        (
            "{",
            r#""protocol":{"name":"forrst","version":"0.1.0"},"#,
            "/protocol",
        ),
        (
            r#""protocol":{"#,
            r#""version":"0.1.0","#,
            "/protocol/version",
        ),
        (r#""call":{"#, r#""function":"a.b","#, "/call/function"),
        (r#""call":{"#, r#""arguments":{},"#, "/call/arguments"),
        (
            r#""extensions":[{"#,
            r#""urn":"urn:ab:c","#,
            "/extensions/0/urn",
        ),
        (
            r#""extensions":[{"#,
            r#""options":{},"#,
            "/extensions/0/options",
        ),
    ] {
        let body = valid()
            .to_string()
            .replacen(place, &format!("{place}{member}"), 1);
        check_invalid(&body, pointer);
    }
}

#[test]
fn repeated_keys_in_arguments_context_and_options_are_an_invalid_request_at_any_depth() {
    let twice = r#"{"items":[0,{"a/b":{"amount":1,"amount":100}}]}"#;
    for (old, parent) in [
        (r#"{"amount":100}"#, "/call/arguments"),
        (r#"{"caller":"checkout"}"#, "/context"),
        (r#"{"key":"user:123"}"#, "/extensions/0/options"),
    ] {
        let body = valid().to_string().replace(old, twice);
        check_invalid(&body, &format!("{parent}/items/1/a~1b/amount"));
    }
}

#[test]
fn keys_are_the_same_however_they_are_escaped() {
    let body = valid()
        .to_string()
        .replace(r#"{"amount":100}"#, r#"{"amount":1,"\u0061mount":100}"#);
    check_invalid(&body, "/call/arguments/amount");
    assert_eq!(message(&body), r#"The key "amount" appears more than once"#);
}

#[test]
fn repeated_keys_behind_numbers_and_escapes_that_cannot_be_represented_are_still_found() {
    let twice = r#"{"x":1e999,"s":"\ud800","amount":1,"amount":100}"#;
    let body = valid().to_string().replace(r#"{"amount":100}"#, twice);
    check_invalid(&body, "/call/arguments/amount");
}

#[test]
fn keys_that_are_not_unicode_are_refused_since_parsers_disagree_on_them() {
    let broken = r#"{"a":[{"\ud800":1}]}"#;
    let body = valid().to_string().replace(r#"{"amount":100}"#, broken);
    check_invalid(&body, "/call/arguments/a/0");
}

#[test]
fn equal_keys_in_different_objects_are_not_repeated() {
    accepted(&with(
        "/call/arguments",
        json!({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}),
    ));
    accepted(&with(
        "/call/arguments",
        json!({"a": "a", "b": ["a", "a", "b"]}),
    ));
}
