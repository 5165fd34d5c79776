//! Unknown members of a request are ignored.

use serde_json::json;

use crate::contract_section_1::checks::{accepted, valid};

/// They are ignored, and nothing else with them.
fn check_ignored(body: &str) {
    let request = serde_json::to_value(accepted(body)).unwrap();
    assert_eq!(request, valid(), "{body}");
}

#[test]
fn unknown_fields_are_ignored_at_the_top_level_and_in_call() {
    let mut request = valid();
    for parent in ["", "/call", "/protocol", "/extensions/0"] {
        let parent = request.pointer_mut(parent).unwrap();
        parent["x-trace"] = json!({"deep": [1, {"a": null}]});
    }
    check_ignored(&request.to_string());
}

#[test]
fn unknown_fields_are_ignored_even_when_they_are_repeated() {
    let body = valid()
        .to_string()
        .replacen('{', r#"{"x":{"a":1,"a":2},"x":3,"#, 1);
    check_ignored(&body);
}

#[test]
fn unknown_fields_are_ignored_even_when_they_are_not_unicode_or_not_a_number() {
    let body = valid()
        .to_string()
        .replacen('{', r#"{"\ud800":"\udfff","y":1e999,"#, 1);
    check_ignored(&body);
}
