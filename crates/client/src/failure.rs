//! The answer to a request that failed.

use std::fmt;
use std::time::Duration;

use forrst_protocol::{ErrorCode, ErrorObject, Errors, Response, Source};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::lock_options;

/// The answer to a request that failed: one error or more, and the data of the extensions.
///
/// [`code`](Self::code), [`message`](Self::message), [`pointer`](Self::pointer) and [`details`](Self::details) are those of the
/// first error; [`errors`](Self::errors) has them all.
#[derive(Debug, Clone)]
pub struct Failure(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    response: Response,
    errors: Errors,
}

impl Failure {
    /// Returns the answer of a request that succeeded.
    pub(crate) fn check(response: Response) -> Result<Response, Self> {
        match response.result() {
            Ok(_) => Ok(response),
            Err(errors) => {
                let errors = errors.clone();
                Err(Self(Box::new(Parts { response, errors })))
            }
        }
    }

    /// What went wrong, for programs.
    pub fn code(&self) -> &ErrorCode {
        &self.first().code
    }

    /// What went wrong, for people.
    pub fn message(&self) -> &str {
        &self.first().message
    }

    /// Which part of the request is wrong, such as `/call/arguments/amount`.
    pub fn pointer(&self) -> Option<&str> {
        match &self.first().source {
            Some(Source::Pointer(pointer)) => Some(pointer.as_str()),
            _ => None,
        }
    }

    /// Further members of the error, such as the key of a lock.
    pub fn details(&self) -> Option<&Map<String, Value>> {
        self.first().details.as_ref()
    }

    /// All errors; there is at least one.
    pub fn errors(&self) -> &[ErrorObject] {
        self.0.errors.as_slice()
    }

    /// How long to wait before a retry: the longest time that any of the errors names.
    pub fn retry_after(&self) -> Option<Duration> {
        let named = self.errors().iter().filter_map(|error| {
            let named = error.details.as_ref()?.get("retry_after")?;
            let duration = forrst_protocol::Duration::deserialize(named).ok()?;
            duration.to_std().ok()
        });
        named.max()
    }

    /// The whole answer.
    pub fn response(&self) -> &Response {
        &self.0.response
    }

    /// Whether the lock that the call asked for was acquired; `None` for a call without a lock.
    pub(crate) fn has_acquired_lock(&self) -> Option<bool> {
        #[derive(Deserialize)]
        struct LockData {
            acquired: bool,
        }

        let data = self.response().extension(lock_options::URN)?;
        data.deserialize::<LockData>()
            .ok()
            .map(|data| data.acquired)
    }

    /// Whether the function may have begun. Where the code leaves it open, for example because a server that shuts down ends the
    /// function, it did not begin if its lock was not acquired, or if the server did not even read the request.
    pub(crate) fn may_have_run(&self) -> bool {
        self.has_acquired_lock()
            .unwrap_or_else(|| self.code().may_have_run() && self.response().id().is_some())
    }

    fn first(&self) -> &ErrorObject {
        &self.errors()[0]
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors().iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{} ({})", error.message, error.code)?;
            if let Some(Source::Pointer(pointer)) = &error.source {
                write!(f, " at {pointer}")?;
            }
        }
        Ok(())
    }
}
