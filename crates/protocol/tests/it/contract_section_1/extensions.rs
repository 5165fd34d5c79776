//! `extensions`: the list, and the URN, options and `required` of each.

use serde_json::json;

use crate::contract_section_1::checks::{
    accepted, check_invalid, values_other_than, with, without,
};

#[test]
fn extensions_of_another_type_are_an_invalid_request() {
    for (value, _) in values_other_than(&["an array"]) {
        check_invalid(&with("/extensions", value), "/extensions");
    }
}

#[test]
fn an_empty_or_missing_list_is_accepted() {
    assert!(accepted(&without("", "extensions")).extensions.is_empty());
    assert!(
        accepted(&with("/extensions", json!([])))
            .extensions
            .is_empty()
    );
}

#[test]
fn an_element_of_another_type_is_an_invalid_request() {
    for (value, _) in values_other_than(&["an object"]) {
        let good = json!({"urn": "urn:forrst:ext:retry"});
        check_invalid(&with("/extensions", json!([good, value])), "/extensions/1");
    }
}

#[test]
fn an_element_without_a_urn_is_an_invalid_request() {
    check_invalid(&without("/extensions/0", "urn"), "/extensions/0/urn");
    for (value, _) in values_other_than(&["a string"]) {
        check_invalid(&with("/extensions/0/urn", value), "/extensions/0/urn");
    }
}

#[test]
fn a_malformed_urn_is_an_invalid_request() {
    for urn in [
        "",
        "atomicLock",
        "urn:",
        "urn:forrst",
        "https://forrst.dev/ext/lock",
        "urn:forrst:ext:é",
    ] {
        check_invalid(&with("/extensions/0/urn", json!(urn)), "/extensions/0/urn");
    }
}

#[test]
fn an_unknown_urn_is_left_to_the_server() {
    let body = with("/extensions/0/urn", json!("urn:forrst:ext:atomicLok"));
    let request = accepted(&body);
    assert_eq!(
        request.extensions[0].urn.as_str(),
        "urn:forrst:ext:atomicLok"
    );
    assert!(
        request.extensions[0].required,
        "fails closed unless the client says otherwise"
    );
}

#[test]
fn the_required_flag_of_an_extension_is_a_boolean() {
    let body = with(
        "/extensions/0",
        json!({"urn": "urn:ab:c", "required": false}),
    );
    assert!(!accepted(&body).extensions[0].required);
    let body = with(
        "/extensions/0",
        json!({"urn": "urn:ab:c", "required": true}),
    );
    assert!(accepted(&body).extensions[0].required);
    for (value, _) in values_other_than(&["a boolean"]) {
        let body = with(
            "/extensions/0",
            json!({"urn": "urn:ab:c", "required": value}),
        );
        check_invalid(&body, "/extensions/0/required");
    }
}

#[test]
fn options_are_an_object_or_absent() {
    assert!(
        accepted(&without("/extensions/0", "options")).extensions[0]
            .options
            .is_none()
    );
    for (value, _) in values_other_than(&["an object"]) {
        check_invalid(
            &with("/extensions/0/options", value),
            "/extensions/0/options",
        );
    }
}

#[test]
fn a_repeated_extension_is_left_to_the_server() {
    let lock = json!({"urn": "urn:forrst:ext:atomicLock"});
    assert_eq!(
        accepted(&with("/extensions", json!([lock, lock])))
            .extensions
            .len(),
        2
    );
}
