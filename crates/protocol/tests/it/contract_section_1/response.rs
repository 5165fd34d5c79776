//! The members of a response.

use forrst_protocol::{ErrorCode, ErrorObject, Errors, RawObject, Response};
use serde_json::{Value, json};

#[test]
fn a_success_has_a_result_and_no_errors() {
    let response =
        Response::success("req_001".parse().unwrap(), &json!({"charge_id": "ch_abc"})).unwrap();
    assert_eq!(
        serde_json::to_value(&response).unwrap(),
        json!({"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "req_001",
               "result": {"charge_id": "ch_abc"}})
    );
    assert_eq!(response.http_status(), 200);
}

#[test]
fn a_failure_has_a_null_result_and_at_least_one_error() {
    let error = ErrorObject::new(ErrorCode::Forbidden, "Only admins may do this");
    let response = Response::failure(Some("req_001".parse().unwrap()), error);
    let written = serde_json::to_value(&response).unwrap();
    assert_eq!(written.get("result"), Some(&Value::Null));
    assert_eq!(
        written["errors"],
        json!([{"code": "FORBIDDEN", "message": "Only admins may do this"}])
    );
    assert!(Errors::try_from(Vec::new()).is_err());
}

#[test]
fn a_response_has_extensions_and_meta_only_if_they_are_not_empty() {
    let response = Response::success("r".parse().unwrap(), &1).unwrap();
    let written = serde_json::to_value(&response).unwrap();
    assert!(written.get("extensions").is_none() && written.get("meta").is_none());

    let data = RawObject::from_serialize(&json!({"acquired": true})).unwrap();
    let response = response
        .with_extension("urn:forrst:ext:atomicLock".parse().unwrap(), data)
        .with_node("node-1");
    let written = serde_json::to_value(&response).unwrap();
    assert_eq!(
        written["extensions"],
        json!([{"urn": "urn:forrst:ext:atomicLock", "data": {"acquired": true}}])
    );
    assert_eq!(written["meta"], json!({"node": "node-1"}));
}
