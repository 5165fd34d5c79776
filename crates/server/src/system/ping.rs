//! `ping`: the server is there.

use forrst_protocol::RawObject;
use serde_json::json;

use super::{Prepared, arguments_of, call};
use crate::time::now;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    arguments_of(arguments).finish()?;
    Ok(call(async |_| {
        Ok(json!({"status": "healthy", "timestamp": now()}))
    }))
}
