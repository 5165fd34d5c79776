//! The OpenRPC document of `rpc.discover`. Its list of functions is that of `describe`.

use serde_json::{Value, json};

use crate::core::Core;
use crate::registry::Registered;
use crate::system::document as discovery;

pub(super) fn document(core: &Core) -> Value {
    let all: Vec<&Registered> = core.registry.iter().collect();
    let mut discovery = discovery(core, &all, true);
    let member = |name: &str, required: bool, schema: Value| json!({"name": name, "required": required, "schema": schema});
    json!({
        "openrpc": "1.3.2",
        "info": {"title": core.service, "version": env!("CARGO_PKG_VERSION")},
        "methods": [
            {
                "name": "forrst.call",
                "summary": "Calls a Forrst function. The result is the whole Forrst response, also when it has errors.",
                "paramStructure": "either",
                "params": [
                    member("protocol", true, json!({"type": "object", "required": ["name", "version"]})),
                    member("id", true, json!({"type": "string", "minLength": 1})),
                    member("call", true, json!({
                        "type": "object",
                        "required": ["function"],
                        "properties": {
                            "function": {"enum": core.registry.names().collect::<Vec<_>>()},
                            "version": {"type": "string"},
                            "arguments": {"type": "object"},
                        },
                    })),
                    member("context", false, json!({"type": "object"})),
                    member("extensions", false, json!({"type": "array", "items": {"type": "object", "required": ["urn"]}})),
                ],
                "result": {
                    "name": "response",
                    "schema": {"type": "object", "required": ["protocol", "id", "result"]},
                },
                "x-forrst-functions": discovery["functions"].take(),
                "x-forrst-codes": discovery["codes"].take(),
            },
            {
                "name": "forrst.watch",
                "summary": "Subscribes to a lock, over a WebSocket. Each notification has the result of the function `watch`: at first \
                    the state of the lock, unless its revision is `since`, and then its state after each change of its leases.",
                "paramStructure": "by-name",
                "params": [
                    member("key", true, json!({"type": "string", "description": "The full key."})),
                    member("owner", false, json!({
                        "type": "string",
                        "description": "Of one's own lease, for a caller that may not observe others."
                    })),
                    member("since", false, json!({"type": "string", "description": "The `revision` of an earlier result."})),
                ],
                "result": {
                    "name": "subscription",
                    "description": "The id that notifications have, in `params.subscription`, beside `params.result`.",
                    "schema": {"type": ["integer", "string"]},
                },
            },
            {
                "name": "forrst.unwatch",
                "summary": "Ends a subscription of this connection.",
                "paramStructure": "by-position",
                "params": [member("subscription", true, json!({"type": ["integer", "string"]}))],
                "result": {"name": "ended", "description": "Whether there was one.", "schema": {"type": "boolean"}},
            },
            {
                "name": "rpc.discover",
                "summary": "This document.",
                "params": [],
                "result": {"name": "document", "schema": {"type": "object"}},
            },
        ],
    })
}
