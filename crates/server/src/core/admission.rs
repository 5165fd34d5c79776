//! Admission: authenticates clients, counts their requests against their rates, and records refusals.

use std::time::Duration;

use forrst_protocol::{ErrorCode, ErrorObject};
use serde_json::json;

use super::Core;
use super::refusals::RefusalKind;
use crate::AuditEntry;
use crate::access::{Caller, Credential, Role};
use crate::extension::millis;
use crate::for_log::for_log;
use crate::limits::{Refusal, network};

/// Whether a request was counted against the rate of its caller. Each is counted once, as soon as its caller is known.
#[derive(Debug, Clone, Default)]
pub(crate) enum Counted {
    #[default]
    NotYet,
    Admitted,
    Refused(ErrorObject),
}

/// Routes and methods without a protocol request. Refusals of all others are one kind.
const KNOWN: [&str; 8] = [
    "GET /",
    "GET /health",
    "GET /metrics",
    "GET /ready",
    "GET /rpc",
    "POST /forrst",
    "POST /rpc",
    "rpc.discover",
];

impl Core {
    /// The caller that a credential belongs to. A failure is counted.
    pub(crate) fn authenticate(&self, credential: &Credential) -> Result<Caller, ErrorObject> {
        self.access.caller(credential).inspect_err(|why| {
            self.metrics.refused(Refusal::Unauthorized);
            tracing::debug!(why = why.message, "a caller was not authenticated");
        })
    }

    /// Authenticates a client without a request of the protocol. A failure is counted and recorded here, because nothing else
    /// records it.
    pub(crate) fn authenticate_or_record(
        &self,
        what: &str,
        credential: &Credential,
        from: Option<&str>,
    ) -> Result<Caller, ErrorObject> {
        self.authenticate(credential).or_else(|why| {
            self.count_unauthenticated(from)?;
            self.denied(what, None, from, &why);
            Err(why)
        })
    }

    /// Counts a request of an unauthenticated client.
    ///
    /// # Errors
    ///
    /// If its address has sent too many requests: then nothing more is done for it, and nothing is logged.
    pub(crate) fn count_unauthenticated(&self, from: Option<&str>) -> Result<(), ErrorObject> {
        let address = from.and_then(|from| from.parse().ok()).map(network);
        let taken = self.unauthenticated.take(address.as_ref());
        taken.map_err(|wait| self.too_many_requests(wait))
    }

    /// `FORBIDDEN` unless the client is a caller that may observe the server; counts against its rate.
    pub(crate) fn authorise_observer(
        &self,
        what: &str,
        credential: &Credential,
        from: Option<&str>,
    ) -> Result<(), ErrorObject> {
        let caller = self.authenticate_or_record(what, credential, from)?;
        let caller = self.admit(caller, Counted::NotYet)?;
        let allowed = caller.check_roles(&[Role::Observe, Role::Admin], what);
        allowed.inspect_err(|why| {
            self.metrics.refused(Refusal::Forbidden);
            self.denied(what, Some(&caller), from, why);
        })
    }

    /// Logs the refusal of a client without a request of the protocol, or counts it: see [`RefusalLog`](super::RefusalLog).
    pub(crate) fn denied(
        &self,
        what: &str,
        caller: Option<&Caller>,
        from: Option<&str>,
        why: &ErrorObject,
    ) {
        let name = caller.and_then(Caller::name);
        let known = KNOWN.iter().copied().find(|known| *known == what);
        if !(self.refusals).is_first(RefusalKind::new(from, name, &why.code, known)) {
            return;
        }
        let (caller, code) = (name.map(forrst_lock::Caller::as_str), why.code.as_str());
        let function = &*for_log(what);
        tracing::warn!(target: "forrst::request", function, code, caller, from, "refused");
        self.audit.record(&AuditEntry {
            who: caller,
            from,
            act: "denied",
            result: code,
            function: Some(function),
            ..AuditEntry::default()
        });
    }

    /// Counts a request against the rate of its caller.
    pub(crate) fn count(&self, caller: &Caller) -> Counted {
        match self.rate.take(caller.name()) {
            Ok(()) => Counted::Admitted,
            Err(wait) => Counted::Refused(self.too_many_requests(wait)),
        }
    }

    /// Admits a request of a caller, unless it has made too many.
    pub(crate) fn admit(&self, caller: Caller, counted: Counted) -> Result<Caller, ErrorObject> {
        let counted = match counted {
            Counted::NotYet => self.count(&caller),
            counted => counted,
        };
        match counted {
            Counted::Refused(why) => Err(why),
            Counted::NotYet | Counted::Admitted => Ok(caller),
        }
    }

    fn too_many_requests(&self, wait: Duration) -> ErrorObject {
        self.metrics.refused(Refusal::Rate);
        let error = ErrorObject::new(ErrorCode::RateLimited, "Too many requests: slow down");
        error.with_detail("retry_after", json!(millis(wait)))
    }
}
