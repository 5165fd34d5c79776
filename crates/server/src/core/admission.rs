//! Who is let in, and who is not.

use forrst_protocol::{ErrorCode, ErrorObject};
use serde_json::json;

use super::Core;
use crate::AuditEntry;
use crate::access::{Caller, Credential, Role};
use crate::extension::millis;
use crate::limits::Refusal;

impl Core {
    /// Who somebody is, by what they show.
    pub(crate) fn recognise(&self, credential: &Credential) -> Result<Caller, ErrorObject> {
        self.access.caller(credential).inspect_err(|why| {
            self.metrics.refused(Refusal::Unauthorized);
            tracing::debug!(why = why.message, "a caller is not known");
        })
    }

    /// Who wants something that is no request of the protocol, and leaves no other record.
    pub(crate) fn let_in(
        &self,
        what: &str,
        credential: &Credential,
        from: Option<&str>,
    ) -> Result<Caller, ErrorObject> {
        let caller = self.recognise(credential);
        caller.inspect_err(|why| self.denied(what, None, from, why))
    }

    /// Whether somebody may look at what the server does, now.
    pub(crate) fn let_look(
        &self,
        what: &str,
        credential: &Credential,
        from: Option<&str>,
    ) -> Result<(), ErrorObject> {
        let caller = self.admit(self.let_in(what, credential, from)?)?;
        let allowed = caller.check_roles(&[Role::Observe, Role::Admin], what);
        allowed.inspect_err(|why| {
            self.metrics.refused(Refusal::Forbidden);
            self.denied(what, Some(&caller), from, why);
        })
    }

    /// Writes down that somebody was refused who has made no request of the protocol.
    pub(crate) fn denied(
        &self,
        what: &str,
        caller: Option<&Caller>,
        from: Option<&str>,
        why: &ErrorObject,
    ) {
        let name = caller.and_then(Caller::name);
        self.audit.record(&AuditEntry {
            who: name.map(forrst_lock::Caller::as_str),
            from,
            act: "denied",
            result: why.code.as_str(),
            function: Some(what),
            ..AuditEntry::default()
        });
    }

    /// Lets a caller make a request, unless they have made too many already.
    pub(crate) fn admit(&self, caller: Caller) -> Result<Caller, ErrorObject> {
        match self.rate.take(caller.name()) {
            Ok(()) => Ok(caller),
            Err(wait) => {
                self.metrics.refused(Refusal::Rate);
                let error =
                    ErrorObject::new(ErrorCode::RateLimited, "Too many requests: slow down");
                Err(error.with_detail("retry_after", json!(millis(wait))))
            }
        }
    }
}
