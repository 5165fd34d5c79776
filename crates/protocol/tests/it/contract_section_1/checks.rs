//! How the tests ask: a sound request with something changed, and what it gets.

use forrst_protocol::{Request, Response};
use serde_json::{Value, json};

pub(crate) fn sound() -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_001",
        "call": {"function": "payments.charge", "version": "1.0.0", "arguments": {"amount": 100}},
        "context": {"caller": "checkout"},
        "extensions": [{"urn": "urn:forrst:ext:atomicLock", "options": {"key": "user:123"}}],
    })
}

/// The sound request with the value at one place replaced.
pub(crate) fn with(pointer: &str, value: Value) -> String {
    let mut request = sound();
    *request
        .pointer_mut(pointer)
        .expect("a place in the request") = value;
    request.to_string()
}

/// The sound request without one member.
pub(crate) fn without(parent: &str, member: &str) -> String {
    let mut request = sound();
    let parent = request.pointer_mut(parent).expect("a place in the request");
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

/// Every kind of value but those named, with the words that a message has for it.
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
