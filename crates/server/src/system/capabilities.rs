//! `capabilities`: the protocol versions, functions, extensions and limits of the server.

use forrst_protocol::{Duration, FunctionName, MAX_NESTING, PROTOCOL_VERSION, RawObject};
use serde_json::json;

use super::{Needs, Prepared, Spec, arguments_of, call};
use crate::limits::Limits;

pub(super) const SPEC: Spec = Spec {
    names: &[
        "urn:cline:forrst:fn:capabilities",
        "urn:cline:forrst:ext:discovery:fn:capabilities",
    ],
    schema: "capabilities",
    needs: Needs::AnyCaller,
    is_cancellable: false,
    errors: &[],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    arguments_of(arguments).finish()?;
    Ok(call(async |context| {
        let server = &context.server;
        let functions: Vec<&str> = server.registry.names().map(FunctionName::as_str).collect();
        let versions = [PROTOCOL_VERSION.to_string()];
        Ok(json!({
            "service": server.service,
            "protocol_versions": versions,
            "protocolVersions": versions,
            "functions": functions,
            "extensions": server.extensions.listed(|_| true),
            "limits": {
                "max_request_bytes": server.limits.max_body,
                "max_body_bytes": server.limits.max_body,
                "max_nesting": MAX_NESTING,
                "max_lock_ttl": Duration::from_std(server.limits.max_ttl),
                "max_lock_block": Duration::from_std(server.limits.max_block),
            },
        }))
    }))
}
