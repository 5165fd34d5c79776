//! The errors of functions: [`FunctionError`] is what a function returns, and becomes an error object of the response. An error
//! that is not meant for callers becomes `INTERNAL_ERROR`, and its cause is logged.

use std::error::Error;

use forrst_protocol::{ErrorCode, ErrorObject, Errors, Pointer};
use serde_json::Value;

/// Why a function has no result.
///
/// Any standard error converts into one with `?`. The caller then gets only `INTERNAL_ERROR`; the cause is logged.
#[derive(Debug)]
pub struct FunctionError(ErrorObject);

impl FunctionError {
    /// An error with one of the protocol's codes.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(ErrorObject::new(code, message))
    }

    /// An error with a code of the application, such as `PAYMENTS_CARD_DECLINED`.
    ///
    /// A code that is not in `SCREAMING_SNAKE_CASE` cannot be sent: the caller gets `INTERNAL_ERROR` with the message.
    pub fn application(code: &str, message: impl Into<String>) -> Self {
        let code = code.parse().unwrap_or_else(|_| {
            tracing::error!(code, "not an error code: it must be SCREAMING_SNAKE_CASE");
            ErrorCode::InternalError
        });
        Self::new(code, message)
    }

    /// Adds a member to the error's `details`, for programs.
    #[must_use]
    pub fn with_detail(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_detail(name, value))
    }

    /// Points at the argument that is invalid, such as `["items", "0", "sku"]`.
    #[must_use]
    pub fn at_argument<'a>(self, path: impl IntoIterator<Item = &'a str>) -> Self {
        let start = arguments_pointer();
        Self(self.0.at(path.into_iter().fold(start, Pointer::key)))
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for FunctionError {
    fn from(error: E) -> Self {
        tracing::error!(
            error = &error as &(dyn Error + 'static),
            "a function failed"
        );
        Self(internal_error())
    }
}

impl From<FunctionError> for Errors {
    fn from(error: FunctionError) -> Self {
        error.0.into()
    }
}

/// What a caller gets for a failure whose cause is only logged.
pub(crate) fn internal_error() -> ErrorObject {
    ErrorObject::new(ErrorCode::InternalError, "The function failed unexpectedly")
}

pub(crate) fn unavailable(message: impl Into<String>) -> ErrorObject {
    ErrorObject::new(ErrorCode::Unavailable, message)
}

/// The position of the arguments in a request.
pub(crate) fn arguments_pointer() -> Pointer {
    Pointer::root().key("call").key("arguments")
}
