//! What the patterns of a vector see of a request: the same for all spellings that mean the same.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::HeaderMap;
use serde_json::{Map, Value, json};

const PREFIXES: [&str; 3] = [
    "urn:cline:forrst:ext:atomic-lock:fn:",
    "urn:cline:forrst:ext:cancellation:fn:",
    "urn:cline:forrst:fn:",
];
const LOCK: [&str; 2] = [
    "urn:forrst:ext:atomicLock",
    "urn:cline:forrst:ext:atomic-lock",
];
const DEADLINE: [&str; 2] = ["urn:forrst:ext:deadline", "urn:cline:forrst:ext:deadline"];

/// The function of a request, by its last part if it is a system function.
pub(super) fn function_of(request: &Value) -> Option<String> {
    let function = request.pointer("/call/function")?.as_str()?;
    let short = PREFIXES
        .iter()
        .find_map(|prefix| function.strip_prefix(prefix));
    Some(short.unwrap_or(function).to_owned())
}

/// The `atomicLock` extension of a request.
pub(super) fn lock_of(request: &Value) -> Option<&Value> {
    extension(request, &LOCK)
}

fn extension<'a>(request: &'a Value, urns: &[&str]) -> Option<&'a Value> {
    let mut all = request["extensions"].as_array()?.iter();
    all.find(|entry| entry["urn"].as_str().is_some_and(|urn| urns.contains(&urn)))
}

/// `{function, arguments, context, lock, deadline_ms, headers, since}`, with durations as milliseconds.
pub(super) fn view(
    request: &Value,
    headers: &HeaderMap,
    since: &BTreeMap<String, Duration>,
) -> Value {
    let mut view = Map::new();
    view.insert("id".into(), request["id"].clone());
    view.insert("function".into(), json!(function_of(request)));
    let arguments = request.pointer("/call/arguments");
    let no_arguments = json!({});
    let arguments = in_milliseconds(arguments.unwrap_or(&no_arguments));
    view.insert("arguments".into(), arguments);
    if let Some(lock) = lock_of(request) {
        view.insert("lock".into(), in_milliseconds(&lock["options"]));
    }
    if let Some(deadline) = extension(request, &DEADLINE) {
        let options = &deadline["options"];
        let span = milliseconds(options).or_else(|| milliseconds(&options["timeout"]));
        view.insert("deadline_ms".into(), json!(span));
    }
    let headers: Map<String, Value> = headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), json!(value))
        })
        .collect();
    view.insert("headers".into(), headers.into());
    let since: Map<String, Value> = since
        .iter()
        .map(|(function, span)| {
            (
                function.clone(),
                json!(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
            )
        })
        .collect();
    view.insert("since".into(), since.into());
    view.into()
}

/// `ttl`, `block` and `wait` become `ttl_ms`, `block_ms` and `wait_ms`.
fn in_milliseconds(object: &Value) -> Value {
    let Value::Object(members) = object else {
        return object.clone();
    };
    members
        .iter()
        .map(|(name, value)| match milliseconds(value) {
            Some(span) => (format!("{name}_ms"), json!(span)),
            None => (name.clone(), value.clone()),
        })
        .collect::<Map<String, Value>>()
        .into()
}

/// A duration of the protocol in milliseconds.
pub(super) fn milliseconds(duration: &Value) -> Option<u64> {
    let unit = match duration["unit"].as_str()? {
        "millisecond" => 1,
        "second" => 1_000,
        "minute" => 60_000,
        "hour" => 3_600_000,
        "day" => 86_400_000,
        _ => return None,
    };
    let value = duration["value"].as_u64()?;
    (value > 0).then(|| value.checked_mul(unit)).flatten()
}
