//! The log line and the metrics of a request.
//!
//! A [`RequestLog`] collects what is known of the request. It is written once: when the response is ready, or when it is dropped
//! because the client disconnected.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forrst_lock::LockName;
use forrst_protocol::{ErrorCode, Errors, FunctionName, Request, RequestId, Response};
use smallvec::SmallVec;
use tokio::time::Instant;
use tracing::{Level, Span};

use super::refusals::{RefusalKind, is_denial};
use super::{Core, Origin};
use crate::access::Caller;
use crate::audit::AuditEntry;
use crate::for_log::for_log;
use crate::metrics::OK;
use crate::registry::Registered;
use crate::span;

/// The locks that a call is about, once they are known.
pub(crate) type NotedLocks = Arc<OnceLock<SmallVec<[LockName; 1]>>>;

/// The target of the log lines of requests.
const LOG: &str = "forrst::request";

/// The code of a request whose client disconnected before the answer.
const DISCONNECTED: &str = "HUNG_UP";
/// The metric label of error codes that the function does not declare, because their number is unbounded.
const OTHER: &str = "OTHER";

/// The log entry of a request under way. If it is dropped before it is [finished](Self::finish), the client has disconnected.
pub(crate) struct RequestLog<'a> {
    server: &'a Core,
    received: Instant,
    from: Option<Arc<str>>,
    id: Option<RequestId>,
    function: Option<FunctionName>,
    /// Any version of the function, if there is one.
    registered: Option<&'a Registered>,
    caller: Option<forrst_lock::Caller>,
    pub(crate) locks: NotedLocks,
    is_finished: bool,
}

impl<'a> RequestLog<'a> {
    pub(crate) fn new(server: &'a Core, origin: &Origin) -> Self {
        Self {
            server,
            received: origin.received,
            from: origin.from.clone(),
            id: None,
            function: None,
            registered: None,
            caller: None,
            locks: NotedLocks::default(),
            is_finished: false,
        }
    }

    pub(crate) fn set_caller(&mut self, caller: &Caller) {
        self.caller = caller.name().cloned();
    }

    pub(crate) fn set_request(&mut self, request: &Request<'_>) {
        if span::is_traced() {
            Span::current().record("function", request.call.function.as_str());
        }
        self.id = Some(request.id.clone());
        self.function = Some(request.call.function.clone());
        self.registered = self.server.registry.versions(&request.call.function).next();
    }

    pub(crate) fn finish(mut self, response: &Response) {
        self.is_finished = true;
        let errors = response.result().err();
        let errors = errors.map(Errors::as_slice).unwrap_or_default();
        // The code of a denial is the one that is logged, whatever else is wrong.
        let denial = errors.iter().find(|error| is_denial(&error.code));
        match denial.or(errors.first()) {
            None => self.write(OK, None, Some(Level::DEBUG)),
            Some(error) => self.failed(&error.code),
        }
    }

    /// The kind of the refusal; `None` if the request was admitted.
    fn refusal(&self, code: &ErrorCode) -> Option<RefusalKind> {
        // A request that could not be parsed has no function.
        let is_refusal = is_denial(code) || *code == ErrorCode::RateLimited;
        if !is_refusal && self.function.is_some() {
            return None;
        }
        let (from, who) = (self.from.as_deref(), self.caller.as_ref());
        let function = self.function.as_ref().map(FunctionName::as_str);
        let is_known = who.is_some() && self.registered.is_some();
        Some(RefusalKind::new(
            from,
            who,
            code,
            function.filter(|_| is_known),
        ))
    }

    fn failed(&self, code: &ErrorCode) {
        let level = match code {
            ErrorCode::InternalError => Level::ERROR,
            ErrorCode::Unavailable
            | ErrorCode::Unauthorized
            | ErrorCode::Forbidden
            | ErrorCode::RateLimited => Level::WARN,
            // Held locks, timeouts and mistakes of callers are normal.
            _ => Level::INFO,
        };
        let label = match code {
            ErrorCode::Application(_) if !self.declares(code) => OTHER,
            code => code.as_str(),
        };
        let refusal = self.refusal(code);
        let is_written = refusal.is_none_or(|kind| self.server.refusals.is_first(kind));
        if is_written && is_denial(code) {
            self.audit_denial(code);
        }
        self.write(code.as_str(), Some(label), is_written.then_some(level));
    }

    fn locks(&self) -> &[LockName] {
        self.locks.get().map(SmallVec::as_slice).unwrap_or_default()
    }

    fn audit_denial(&self, code: &ErrorCode) {
        self.server.audit.record(&AuditEntry {
            who: self.caller.as_ref().map(forrst_lock::Caller::as_str),
            from: self.from.as_deref(),
            act: "denied",
            result: code.as_str(),
            function: self.function().as_deref(),
            request: self.id().as_deref(),
            ..AuditEntry::about(self.locks())
        });
    }

    fn function(&self) -> Option<Cow<'_, str>> {
        self.function.as_ref().map(|name| for_log(name.as_str()))
    }

    fn id(&self) -> Option<Cow<'_, str>> {
        self.id.as_ref().map(|id| for_log(id.as_str()))
    }

    /// Counts the request, and writes its line, if it has a level. `label` is the code in the metrics, `None` for a success.
    fn write(&self, code: &str, label: Option<&str>, level: Option<Level>) {
        let took = self.received.elapsed();
        if span::is_traced() {
            Span::current().record("code", code);
        }
        let metrics = self.registered.map(|function| &function.metrics);
        self.server.metrics.request(metrics, label, took);
        macro_rules! line {
            ($level:ident) => {
                // The fields of a line cost more than the rest of a request.
                if tracing::enabled!(target: LOG, Level::$level) {
                    self.write_line(code, Level::$level, took);
                }
            };
        }
        match level {
            Some(Level::ERROR) => line!(ERROR),
            Some(Level::WARN) => line!(WARN),
            Some(Level::INFO) => line!(INFO),
            Some(_) => line!(DEBUG),
            None => {}
        }
    }

    fn write_line(&self, code: &str, level: Level, took: Duration) {
        let (id, function) = (self.id(), self.function());
        let (id, function) = (id.as_deref(), function.as_deref());
        let (keys, secret) = (self.server.keys, &self.server.secret);
        let locks: Vec<String> = self
            .locks()
            .iter()
            .map(|name| keys.show(name, secret))
            .collect();
        let lock = (!locks.is_empty()).then(|| locks.join(", "));
        let caller = self.caller.as_ref().map(forrst_lock::Caller::as_str);
        // The address matters only if a request is refused.
        let from = self.from.as_deref().filter(|_| level == Level::WARN);
        // To three decimals.
        let duration_ms = took.as_micros() as f64 / 1000.0;
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(target: LOG, function, code, duration_ms, id, caller, lock, from, "request")
            };
        }
        match level {
            Level::ERROR => line!(error),
            Level::WARN => line!(warn),
            Level::INFO => line!(info),
            _ => line!(debug),
        }
    }

    fn declares(&self, code: &ErrorCode) -> bool {
        let registry = &self.server.registry;
        let versions = self
            .function
            .iter()
            .flat_map(|name| registry.versions(name));
        let mut declared = versions.flat_map(|function| &function.errors);
        declared.any(|(declared, _)| declared == code)
    }
}

impl Drop for RequestLog<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.write(DISCONNECTED, Some(DISCONNECTED), Some(Level::INFO));
        }
    }
}
