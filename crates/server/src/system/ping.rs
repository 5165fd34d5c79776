//! `ping`: answers, to show that the server is reachable.

use forrst_protocol::RawObject;
use serde_json::json;

use super::{Needs, Prepared, Spec, arguments_of, call};
use crate::limits::Limits;
use crate::time::now;

pub(super) const SPEC: Spec = Spec {
    names: &[
        "urn:cline:forrst:fn:ping",
        "urn:cline:forrst:ext:diagnostics:fn:ping",
    ],
    schema: "ping",
    needs: Needs::AnyCaller,
    is_cancellable: false,
    errors: &[],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    arguments_of(arguments).finish()?;
    Ok(call(async |_| {
        Ok(json!({"status": "healthy", "timestamp": now()}))
    }))
}
