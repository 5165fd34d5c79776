//! `protocol`: its name and its version.

use serde_json::json;

use crate::contract_section_1::checks::{
    accepted, answer, check_invalid, message, values_other_than, with, without,
};

#[test]
fn a_missing_protocol_is_an_invalid_request() {
    check_invalid(&without("", "protocol"), "/protocol");
    check_invalid(&without("/protocol", "name"), "/protocol/name");
    check_invalid(&without("/protocol", "version"), "/protocol/version");
    assert_eq!(
        message(&without("/protocol", "version")),
        "`protocol.version` is missing, expected a string"
    );
}

#[test]
fn a_protocol_of_another_shape_is_an_invalid_request() {
    for (value, kind) in values_other_than(&["an object"]) {
        let body = with("/protocol", value);
        check_invalid(&body, "/protocol");
        assert_eq!(
            message(&body),
            format!("`protocol` must be an object, found {kind}")
        );
    }
    check_invalid(&with("/protocol", json!("forrst/0.1")), "/protocol");
    check_invalid(&with("/protocol", json!(["forrst", "0.1.0"])), "/protocol");
}

#[test]
fn another_protocol_name_is_an_invalid_request() {
    let body = with("/protocol/name", json!("soap"));
    check_invalid(&body, "/protocol/name");
    assert_eq!(
        message(&body),
        r#"`protocol.name` must be "forrst", found "soap""#
    );
    check_invalid(&with("/protocol/name", json!("Forrst")), "/protocol/name");
    for (value, _) in values_other_than(&["a string"]) {
        check_invalid(&with("/protocol/name", value), "/protocol/name");
    }
}

#[test]
fn a_version_that_is_not_semantic_is_an_invalid_request() {
    for version in ["", "0", "0.1", "v0.1.0", "0.1.0.0", "latest"] {
        check_invalid(
            &with("/protocol/version", json!(version)),
            "/protocol/version",
        );
    }
    for (value, _) in values_other_than(&["a string"]) {
        check_invalid(&with("/protocol/version", value), "/protocol/version");
    }
}

#[test]
fn any_version_of_the_supported_major_is_accepted() {
    for version in [
        "0.0.1",
        "0.1.0",
        "0.1.7",
        "0.2.0",
        "0.99.0-beta.1",
        "0.1.0+build",
    ] {
        let body = with("/protocol/version", json!(version));
        assert_eq!(accepted(&body).protocol_version().to_string(), version);
    }
}

#[test]
fn another_major_is_answered_with_the_requested_and_the_supported_versions() {
    let body = with("/protocol/version", json!("99.0.0"));
    assert_eq!(
        answer(&body)["errors"],
        json!([{
            "code": "INVALID_PROTOCOL_VERSION",
            "message": "Unsupported protocol version: 99.0.0",
            "source": {"pointer": "/protocol/version"},
            "details": {"requested": "99.0.0", "supported": ["0.1.0"]},
        }])
    );
    assert_eq!(answer(&body)["id"], "req_001");
}
