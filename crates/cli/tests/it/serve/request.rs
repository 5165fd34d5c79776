//! Requests with locks.

use serde_json::{Value, json};

/// Adds a lock to a request, which waits for it for a minute at most.
pub(crate) fn locked(mut request: Value, key: &str) -> Value {
    request["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": {
        "key": key,
        "scope": "global",
        "ttl": {"value": 1, "unit": "hour"},
        "block": {"value": 1, "unit": "minute"},
    }}]);
    request
}
