//! `activity`: what this node did in the last minutes, second by second.

use forrst_protocol::RawObject;

use super::{Prepared, arguments_of, call};

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    arguments_of(arguments).finish()?;
    Ok(call(async |context| Ok(context.server.activity.show())))
}
