//! Builds requests, and compares answers with what is expected.
#![allow(dead_code, reason = "each test target uses a part of it")]

use serde_json::{Map, Value, json};

pub(crate) use forrst_testkit::asynchronous::until;

pub(crate) const LOCK: &str = "urn:forrst:ext:atomicLock";
pub(crate) const DEADLINE: &str = "urn:forrst:ext:deadline";
pub(crate) const TRACING: &str = "urn:forrst:ext:tracing";
pub(crate) const RETRY: &str = "urn:forrst:ext:retry";
pub(crate) const CANCELLATION: &str = "urn:forrst:ext:cancellation";

/// A builder of a request.
#[derive(Debug, Clone)]
pub(crate) struct Ask(Value);

/// A request for a function, without arguments.
pub(crate) fn ask(function: &str) -> Ask {
    Ask(json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "call": {"function": function},
    }))
}

impl Ask {
    pub(crate) fn id(mut self, id: impl Into<String>) -> Self {
        self.0["id"] = id.into().into();
        self
    }

    pub(crate) fn version(mut self, version: &str) -> Self {
        self.0["call"]["version"] = version.into();
        self
    }

    pub(crate) fn arguments(mut self, arguments: Value) -> Self {
        self.0["call"]["arguments"] = arguments;
        self
    }

    pub(crate) fn context(mut self, context: Value) -> Self {
        self.0["context"] = context;
        self
    }

    pub(crate) fn with(mut self, urn: &str, options: Value) -> Self {
        let extensions = &mut self.0["extensions"];
        if extensions.is_null() {
            *extensions = json!([]);
        }
        let entry = match options {
            Value::Null => json!({"urn": urn}),
            options => json!({"urn": urn, "options": options}),
        };
        extensions.as_array_mut().unwrap().push(entry);
        self
    }

    /// A lock with a ttl of 30 seconds, unless the options say otherwise.
    pub(crate) fn lock(self, mut options: Value) -> Self {
        let options_without_ttl = options.as_object_mut().unwrap();
        options_without_ttl
            .entry("ttl")
            .or_insert_with(|| seconds(30));
        self.with(LOCK, options)
    }

    pub(crate) fn deadline(self, after: Value) -> Self {
        self.with(DEADLINE, after)
    }

    pub(crate) fn cancellable(self, token: &str) -> Self {
        self.with(CANCELLATION, json!({"token": token}))
    }

    pub(crate) fn value(&self) -> &Value {
        &self.0
    }

    pub(crate) fn text(&self) -> String {
        self.0.to_string()
    }

    /// The same as a JSON-RPC request.
    pub(crate) fn rpc(&self, id: impl Into<Value>) -> Value {
        json!({"jsonrpc": "2.0", "id": id.into(), "method": "forrst.call", "params": self.0})
    }
}

pub(crate) fn millis(count: u64) -> Value {
    json!({"value": count, "unit": "millisecond"})
}

pub(crate) fn seconds(count: u64) -> Value {
    json!({"value": count, "unit": "second"})
}

/// Panics unless the answer matches: objects may have additional members, arrays may not have additional elements.
///
/// Some strings are patterns for values that are not known in advance: `<any>`, `<absent>`, `<text>`, `<number>`, `<fence>`,
/// `<uuid>`, `<time>`.
#[track_caller]
pub(crate) fn expect(actual: &Value, expected: &Value) {
    if let Err((at, why)) = matches(actual, expected) {
        let mut mismatch = format!("at `{at}`: {why}\nin {actual:#}\nexpected {expected:#}");
        let readable = mismatch.floor_char_boundary(4000);
        mismatch.truncate(readable);
        panic!("{mismatch}");
    }
}

fn matches(actual: &Value, expected: &Value) -> Result<(), (String, String)> {
    let wrong = |why: String| Err((String::new(), why));
    match (actual, expected) {
        (_, Value::String(pattern)) if pattern.starts_with('<') => {
            if is_like(actual, pattern) {
                Ok(())
            } else {
                wrong(format!("{actual} is not {pattern}"))
            }
        }
        (Value::Object(actual), Value::Object(expected)) => members_match(actual, expected),
        (Value::Array(actual), Value::Array(expected)) if actual.len() == expected.len() => {
            for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                matches(actual, expected).map_err(|(at, why)| (format!("/{index}{at}"), why))?;
            }
            Ok(())
        }
        _ if actual == expected => Ok(()),
        _ => wrong(format!("{actual} is not {expected}")),
    }
}

fn members_match(
    actual: &Map<String, Value>,
    expected: &Map<String, Value>,
) -> Result<(), (String, String)> {
    for (name, expected) in expected {
        let matched = match actual.get(name) {
            None if expected == "<absent>" => Ok(()),
            None => Err((String::new(), "is missing".to_owned())),
            Some(actual) => matches(actual, expected),
        };
        matched.map_err(|(at, why)| (format!("/{name}{at}"), why))?;
    }
    Ok(())
}

fn is_like(actual: &Value, pattern: &str) -> bool {
    let text = actual.as_str();
    let has_form = |form: &str| {
        text.is_some_and(|text| {
            text.len() == form.len()
                && text.chars().zip(form.chars()).all(|(c, form)| match form {
                    '0' => c.is_ascii_digit(),
                    'x' => c.is_ascii_hexdigit(),
                    other => c == other,
                })
        })
    };
    match pattern {
        "<any>" => true,
        "<text>" => text.is_some_and(|text| !text.is_empty()),
        "<number>" => actual.is_number(),
        "<fence>" => has_form("000000000000000"),
        "<uuid>" => has_form("xxxxxxxx-xxxx-4xxx-xxxx-xxxxxxxxxxxx"),
        "<time>" => has_form("0000-00-00T00:00:00.000Z"),
        "<span>" => has_form("xxxxxxxxxxxxxxxx"),
        "<absent>" => false,
        unknown => panic!("{unknown} is no pattern"),
    }
}

/// The data of an extension in an answer.
pub(crate) fn data<'a>(answer: &'a Value, urn: &str) -> &'a Value {
    let extensions = answer["extensions"].as_array();
    let found = extensions.and_then(|all| all.iter().find(|entry| entry["urn"] == urn));
    found.map_or(&Value::Null, |entry| &entry["data"])
}

/// The pointers of all errors, sorted.
pub(crate) fn pointers(answer: &Value) -> Vec<&str> {
    let errors = answer["errors"].as_array().map_or(&[][..], Vec::as_slice);
    let mut pointers: Vec<&str> = errors
        .iter()
        .map(|error| error["source"]["pointer"].as_str().unwrap_or_default())
        .collect();
    pointers.sort_unstable();
    pointers
}
