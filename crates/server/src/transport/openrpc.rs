//! The OpenRPC document of `rpc.discover`. Its list of functions is that of `describe`.

use serde_json::{Value, json};

use crate::core::Core;
use crate::registry::Registered;
use crate::system::document as discovery;

pub(super) fn document(core: &Core) -> Value {
    let all: Vec<&Registered> = core.registry.iter().collect();
    let functions = discovery(core, &all, true)["functions"].take();
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
                "x-forrst-functions": functions,
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
