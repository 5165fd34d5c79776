//! Requests that tell a server what it is to do.

use serde_json::{Value, json};

/// A request with a lock, for which it waits up to a minute.
pub(crate) fn locked(mut request: Value, key: &str) -> Value {
    request["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": {
        "key": key,
        "scope": "global",
        "ttl": {"value": 1, "unit": "hour"},
        "block": {"value": 1, "unit": "minute"},
    }}]);
    request
}
