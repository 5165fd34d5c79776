//! `activity`: what this node did in the last minutes, second by second, and how many free keys are reserved for waiting sets.

use std::time::Duration;

use forrst_protocol::RawObject;
use tokio::time::timeout;

use super::{OBSERVER, Prepared, Spec, arguments_of, call};
use crate::limits::Limits;

/// How long the answer waits for the counts of the store; the dashboard gets the rest without them.
const COUNTS_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:activity"],
    schema: "activity",
    needs: OBSERVER,
    is_cancellable: false,
    errors: &[],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    arguments_of(arguments).finish()?;
    Ok(call(async |context| {
        let mut shown = context.server.activity.show();
        // A failing store shows in `health`.
        let counts = context.server.locks.store().counts();
        if let Ok(Ok(counts)) = timeout(COUNTS_TIMEOUT, counts).await {
            shown["reserved"] = counts.reserved.into();
        }
        Ok(shown)
    }))
}
