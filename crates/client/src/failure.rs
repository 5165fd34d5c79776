//! What a server says when a request failed.

use std::fmt;
use std::time::Duration;

use forrst_protocol::{ErrorCode, ErrorObject, Errors, Response, Source};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::lock_options;

/// The answer to a request that failed: one error or more, and what the extensions have to say.
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
    /// The answer, where it is one of success.
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

    /// What in the request is to blame, such as `/call/arguments/amount`.
    pub fn pointer(&self) -> Option<&str> {
        match &self.first().source {
            Some(Source::Pointer(pointer)) => Some(pointer.as_str()),
            _ => None,
        }
    }

    /// What the code alone does not say.
    pub fn details(&self) -> Option<&Map<String, Value>> {
        self.first().details.as_ref()
    }

    /// Everything that went wrong, never nothing.
    pub fn errors(&self) -> &[ErrorObject] {
        self.0.errors.as_slice()
    }

    /// When the server thinks that another try is worth it: the longest time that any of the errors names.
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

    /// Whether the lock that the call asked for was acquired; none when it asked for none.
    pub(crate) fn has_acquired_lock(&self) -> Option<bool> {
        #[derive(Deserialize)]
        struct Data {
            acquired: bool,
        }

        let data = self.response().extension(lock_options::URN)?;
        data.deserialize::<Data>().ok().map(|data| data.acquired)
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
