//! Who is let in, and who is not.

use forrst_protocol::{ErrorCode, ErrorObject};
use serde_json::json;

use super::{Server, Shared};
use crate::access::{Caller, Credential, Role};
use crate::extension::millis;
use crate::limits::Refusal;

impl Server {
    /// Who somebody is, by what they show.
    pub(crate) fn recognise(&self, credential: &Credential) -> Result<Caller, ErrorObject> {
        self.shared.access.caller(credential).inspect_err(|why| {
            self.shared.metrics.refused(Refusal::Unauthorized);
            tracing::debug!(why = why.message, "a caller is not known");
        })
    }

    /// Whether somebody may look at what the server does.
    pub(crate) fn may_observe(&self, what: &str, shown: &Credential) -> Result<(), ErrorObject> {
        let caller = self.recognise(shown)?;
        let allowed = caller.check_roles(&[Role::Observe, Role::Admin], what);
        allowed.inspect_err(|why| self.shared.refused(&caller, why))
    }

    /// Who makes a request, unless they have made too many already.
    pub(super) fn admit(&self, credential: &Credential) -> Result<Caller, ErrorObject> {
        let caller = self.recognise(credential)?;
        self.shared.rate.take(caller.name()).map_err(|wait| {
            self.shared.metrics.refused(Refusal::Rate);
            ErrorObject::new(ErrorCode::RateLimited, "Too many requests: slow down")
                .with_detail("retry_after", json!(millis(wait)))
        })?;
        Ok(caller)
    }
}

impl Shared {
    /// Notes that somebody wanted what they may not have.
    pub(crate) fn refused(&self, caller: &Caller, why: &ErrorObject) {
        self.metrics.refused(Refusal::Forbidden);
        let caller = caller.name().map(forrst_lock::Caller::as_str);
        tracing::info!(caller, why = why.message, "a caller was refused");
    }
}
