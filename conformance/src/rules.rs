//! The rules that hold for every Forrst answer, whatever a vector expects: the shape of the response, the id, and the
//! HTTP status and headers. `conformance/README.md` lists them.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::mismatch::{Mismatch, shown};
use crate::pattern::Pattern;
use crate::template::Variables;
use crate::transport::Answer;
use crate::vector::Profile;

/// The statuses of all codes of the protocol.
static CODES: LazyLock<Vec<Code>> = LazyLock::new(|| {
    let codes = serde_json::from_str(include_str!("../../schemas/codes.json"));
    codes.expect("the embedded schemas/codes.json lists codes with their statuses")
});

/// A row of `schemas/codes.json`.
#[derive(Deserialize)]
struct Code {
    code: String,
    status: u16,
}

/// The longest id, in bytes.
const MAX_ID: usize = 256;

/// The shape that the contract prescribes for every response.
static RESPONSE: LazyLock<Pattern> = LazyLock::new(|| response(json!({"node": "$regex:."})));

/// The shape of every response in the published specification.
static CORE_RESPONSE: LazyLock<Pattern> =
    LazyLock::new(|| response(json!({"$one_of": ["$absent", "$any"]})));

#[expect(clippy::needless_pass_by_value, reason = "JSON made on the spot")]
fn response(meta: Value) -> Pattern {
    let source = json!({"$one_of": [
        {"$exact": {"pointer": "$regex:^(/([^~/]|~[01])*)*$"}},
        {"$exact": {"position": {"$range": [0, u32::MAX]}}},
    ]});
    let optional = |pattern: Value| json!({"$one_of": ["$absent", pattern]});
    let error = json!({
        "code": "$regex:^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$",
        "message": "$regex:.",
        "source": optional(source),
        "details": optional(json!("$object")),
    });
    let pattern = json!({
        "protocol": {"name": "forrst", "version": r"$regex:^\d+\.\d+\.\d+"},
        "id": {"$one_of": ["$regex:.", null]},
        "result": "$any",
        "errors": optional(json!({"$all_of": [{"$each": error}, {"$not": []}]})),
        "extensions": optional(json!({"$each": {"$exact": {"urn": "$regex:^urn:", "data": "$object"}}})),
        "meta": meta,
    });
    Pattern::parse(&pattern).unwrap_or(Pattern::Absent)
}

/// The id that an answer must have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Id {
    /// Unknown, because the runner did not build the request.
    Unknown,
    Echoed(String),
    Null,
}

impl Id {
    /// The id to expect for an envelope: its own, or null if that is invalid.
    pub(crate) fn expected_for(envelope: &Value) -> Self {
        match envelope.get("id").and_then(Value::as_str) {
            Some(id) if !id.is_empty() && id.len() <= MAX_ID => Self::Echoed(id.to_owned()),
            _ => Self::Null,
        }
    }
}

/// All rules that a response violates.
pub(crate) fn mismatches(body: &Value, id: &Id, profile: Profile) -> Vec<Mismatch> {
    let response = match profile {
        Profile::Core => &CORE_RESPONSE,
        Profile::Extended => &RESPONSE,
    };
    let mut mismatches = response.mismatches(Some(body), &Variables::new());
    let has_errors = body.get("errors").is_some();
    if has_errors && body.get("result").is_some_and(|result| !result.is_null()) {
        let found = shown(body.get("result"));
        mismatches.push(Mismatch::new("/result", "null beside errors", found));
    }
    let expected = match id {
        Id::Unknown => return mismatches,
        Id::Echoed(id) => json!(id),
        Id::Null => Value::Null,
    };
    if body.get("id") != Some(&expected) {
        let found = shown(body.get("id"));
        mismatches.push(Mismatch::new("/id", expected.to_string(), found));
    }
    mismatches
}

/// All rules that the HTTP response around an answer violates.
pub(crate) fn http_mismatches(
    answer: &Answer,
    body: &Value,
    expected: Option<u16>,
) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    let status = expected.unwrap_or_else(|| status(body));
    if answer.status != Some(status) {
        let found = answer
            .status
            .map_or("none".into(), |found| found.to_string());
        mismatches.push(Mismatch::new("status", status.to_string(), found));
    }
    let mut header = |name: &str, expected: &str, is_right: &dyn Fn(&str) -> bool| {
        let found = answer.header(name);
        if !found.is_some_and(is_right) {
            let at = format!("header {name}");
            mismatches.push(Mismatch::new(at, expected, found.unwrap_or("nothing")));
        }
    };
    header("content-type", "application/json", &|found| {
        found.starts_with("application/json")
    });
    header("x-forrst-duration-ms", "a number", &|found| {
        found.parse::<f64>().is_ok()
    });
    let node = body.pointer("/meta/node").and_then(Value::as_str);
    if let Some(node) = node {
        header("x-forrst-node", node, &|found| found == node);
    }
    // An id with other characters is not a valid header value.
    let id = body.get("id").and_then(Value::as_str);
    if let Some(id) = id.filter(|id| id.bytes().all(|byte| byte.is_ascii_graphic())) {
        header("x-forrst-request-id", id, &|found| found == id);
    }
    mismatches
}

/// The HTTP status that a response must have.
fn status(body: &Value) -> u16 {
    let errors = body.get("errors").and_then(Value::as_array);
    match errors.map(Vec::as_slice) {
        None => 200,
        Some([error]) => error
            .get("code")
            .and_then(Value::as_str)
            .map_or(400, status_of_code),
        Some(_) => 400,
    }
}

/// Codes that are not in the table belong to the application, and are 400.
pub(crate) fn status_of_code(code: &str) -> u16 {
    let row = CODES.iter().find(|row| row.code == code);
    row.map_or(400, |row| row.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success() -> Value {
        json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": "r",
            "result": null,
            "meta": {"node": "n"},
        })
    }

    fn failure(errors: Value) -> Value {
        let mut response = success();
        response["errors"] = errors;
        response
    }

    fn violations(response: &Value) -> Vec<String> {
        let mismatches = mismatches(response, &Id::Echoed("r".into()), Profile::Extended);
        mismatches.into_iter().map(|mismatch| mismatch.at).collect()
    }

    #[test]
    fn the_rules_are_a_pattern() {
        assert!(!matches!(&*RESPONSE, Pattern::Absent));
        assert!(!matches!(&*CORE_RESPONSE, Pattern::Absent));
    }

    #[test]
    fn valid_responses_violate_no_rule() {
        assert!(violations(&success()).is_empty());
        let error = json!({"code": "A_B1", "message": "m", "source": {"pointer": "/a~1b/0"}, "details": {}});
        assert!(violations(&failure(json!([error]))).is_empty());
        let error = json!({"code": "A", "message": "m", "source": {"position": 0}});
        assert!(violations(&failure(json!([error]))).is_empty());
    }

    #[test]
    fn each_violated_rule_is_reported() {
        let without = |name: &str| {
            let mut response = success();
            response.as_object_mut().unwrap().remove(name);
            violations(&response)
        };
        assert_eq!(without("protocol"), ["/protocol"]);
        assert_eq!(without("result"), ["/result"]);
        assert_eq!(without("meta"), ["/meta"]);
        assert_eq!(without("id"), ["/id", "/id"]);
        for error in [
            json!({"code": "a", "message": "m"}),
            json!({"code": "A"}),
            json!({"code": "A", "message": ""}),
            json!({"code": "A", "message": "m", "source": {"pointer": "a"}}),
            json!({"code": "A", "message": "m", "source": {"pointer": "", "position": 1}}),
            json!({"code": "A", "message": "m", "source": {}}),
            json!({"code": "A", "message": "m", "details": []}),
        ] {
            assert_eq!(violations(&failure(json!([error]))).len(), 1, "{error}");
        }
        assert_eq!(violations(&failure(json!([]))), ["/errors"]);
        let mut both = failure(json!([{"code": "A", "message": "m"}]));
        both["result"] = json!(1);
        assert_eq!(violations(&both), ["/result"]);
        let mut other_id = success();
        other_id["id"] = json!("s");
        assert_eq!(violations(&other_id), ["/id"]);
    }

    #[test]
    fn the_core_rules_do_not_ask_for_what_the_specification_lacks() {
        let mut response = success();
        response.as_object_mut().unwrap().remove("meta");
        let id = Id::Echoed("r".into());
        assert_eq!(mismatches(&response, &id, Profile::Core), []);
        response.as_object_mut().unwrap().remove("result");
        assert_eq!(mismatches(&response, &id, Profile::Core).len(), 1);
    }

    #[test]
    fn invalid_ids_are_answered_with_null() {
        let id = |id: Value| Id::expected_for(&json!({ "id": id }));
        assert_eq!(id(json!("r")), Id::Echoed("r".into()));
        for wrong in [
            json!(null),
            json!(1),
            json!(""),
            json!({}),
            json!("x".repeat(257)),
        ] {
            assert_eq!(id(wrong), Id::Null);
        }
        assert_eq!(Id::expected_for(&json!([])), Id::Null);
    }

    #[test]
    fn the_status_follows_from_the_errors() {
        assert_eq!(status(&success()), 200);
        let error = |code: &str| json!({"code": code, "message": "m"});
        assert_eq!(status(&failure(json!([error("LOCK_TIMEOUT")]))), 423);
        assert_eq!(status(&failure(json!([error("CANCELLED")]))), 499);
        assert_eq!(status(&failure(json!([error("CARD_DECLINED")]))), 400);
        let several = json!([error("LOCK_TIMEOUT"), error("LOCK_TIMEOUT")]);
        assert_eq!(status(&failure(several)), 400);
    }

    #[test]
    fn headers_repeat_what_the_body_says() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut answer = Answer {
            status: Some(200),
            headers: vec![
                header("content-type", "application/json; charset=utf-8"),
                header("x-forrst-duration-ms", "0.25"),
                header("x-forrst-node", "n"),
                header("x-forrst-request-id", "r"),
            ],
            ..Answer::default()
        };
        assert_eq!(http_mismatches(&answer, &success(), None), []);
        assert_eq!(http_mismatches(&answer, &success(), Some(201)).len(), 1);
        answer.headers.clear();
        assert_eq!(http_mismatches(&answer, &success(), None).len(), 4);
    }
}
