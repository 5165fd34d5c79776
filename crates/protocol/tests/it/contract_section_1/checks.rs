//! Variants of a valid request, and checks of how they are answered.

use forrst_protocol::{Request, Response};
use serde_json::{Value, json};

pub(crate) fn valid() -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_001",
        "call": {"function": "payments.charge", "version": "1.0.0", "arguments": {"amount": 100}},
        "context": {"caller": "checkout"},
        "extensions": [{"urn": "urn:forrst:ext:atomicLock", "options": {"key": "user:123"}}],
    })
}

/// The valid request with the value at one pointer replaced.
pub(crate) fn with(pointer: &str, value: Value) -> String {
    let mut request = valid();
    *request
        .pointer_mut(pointer)
        .expect("a pointer into the request") = value;
    request.to_string()
}

/// The valid request without one member.
pub(crate) fn without(parent: &str, member: &str) -> String {
    let mut request = valid();
    let parent = request
        .pointer_mut(parent)
        .expect("a pointer into the request");
    parent
        .as_object_mut()
        .unwrap()
        .remove(member)
        .expect("a member to remove");
    request.to_string()
}

pub(crate) fn accepted(body: &str) -> Request<'_> {
    Request::parse(body.as_bytes()).unwrap_or_else(|rejection| panic!("{body}: {rejection}"))
}

/// The answer to a request that is not accepted, as it goes over the wire.
pub(crate) fn answer(body: &str) -> Value {
    match Request::parse(body.as_bytes()) {
        Ok(_) => panic!("accepted: {body}"),
        Err(rejection) => serde_json::to_value(Response::from(rejection)).unwrap(),
    }
}

/// Checks the codes and sources of an answer, in any order, and that it echoes the id.
pub(crate) fn check(body: &str, id: &Value, expected: &[(&str, &str)]) {
    let answer = answer(body);
    assert_eq!(&answer["id"], id, "{body}");
    assert_eq!(answer["result"], Value::Null, "{body}");
    let mut found: Vec<(&str, &str)> = answer["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| {
            let pointer = error["source"]["pointer"].as_str().unwrap_or("no pointer");
            (error["code"].as_str().unwrap(), pointer)
        })
        .collect();
    let mut expected = expected.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{body}: {answer:#}");
}

pub(crate) fn check_invalid(body: &str, pointer: &str) {
    check(body, &json!("req_001"), &[("INVALID_REQUEST", pointer)]);
}

pub(crate) fn message(body: &str) -> String {
    answer(body)["errors"][0]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A value of every JSON type but those named, with the name of its type in messages.
pub(crate) fn values_other_than(kinds: &[&str]) -> impl Iterator<Item = (Value, &'static str)> {
    let all = [
        (json!(null), "null"),
        (json!(true), "a boolean"),
        (json!(7), "a number"),
        (json!("text"), "a string"),
        (json!([1]), "an array"),
        (json!({}), "an object"),
    ];
    let kinds: Vec<String> = kinds.iter().map(|&kind| kind.to_owned()).collect();
    all.into_iter()
        .filter(move |(_, kind)| !kinds.iter().any(|other| other == kind))
}
