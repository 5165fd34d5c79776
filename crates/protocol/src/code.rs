//! Error codes: what went wrong, in a form that programs can compare. One table has each code with its HTTP status, whether a
//! retry may help, and whether the function may have run. `schemas/codes.json` is made from it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One row a code: its variant, its text, its HTTP status, whether a retry may succeed, and whether the function may have run.
macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $retry:ident, $run:ident;)*) => {
        /// The code of an [`ErrorObject`](crate::ErrorObject): one of the protocol's own, or an application's.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
            /// A code that an application defines, such as `ORDERS_INVENTORY_INSUFFICIENT`.
            Application(ApplicationCode),
        }

        impl ErrorCode {
            /// Every code that the protocol defines, in the order of the contract.
            pub const STANDARD: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The code as it is on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Application(code) => code.as_str(),
                }
            }

            /// The HTTP status of an answer with this error alone.
            pub fn http_status(&self) -> u16 {
                match self {
                    $(Self::$variant => $status,)*
                    Self::Application(_) => 400,
                }
            }

            /// Whether the same request, sent again later, may succeed.
            pub fn is_retryable(&self) -> bool {
                match self {
                    $(Self::$variant => error_codes!(@retryable $retry),)*
                    Self::Application(_) => false,
                }
            }

            /// Whether the function that was called may have run. If not, any call may safely be repeated.
            ///
            /// A function may also fail with a code that the server otherwise uses before it runs one, such as `RATE_LIMITED`.
            pub fn may_have_run(&self) -> bool {
                match self {
                    $(Self::$variant => error_codes!(@may_have_run $run),)*
                    Self::Application(_) => true,
                }
            }

            fn standard(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
    (@retryable retry) => { true };
    (@retryable final) => { false };
    (@may_have_run may_have_run) => { true };
    (@may_have_run not_run) => { false };
}

error_codes! {
    /// The body is not JSON.
    ParseError = "PARSE_ERROR", 400, final, not_run;
    /// The envelope is not that of a Forrst request.
    InvalidRequest = "INVALID_REQUEST", 400, final, not_run;
    /// The server does not support this version of the protocol.
    InvalidProtocolVersion = "INVALID_PROTOCOL_VERSION", 400, final, not_run;
    /// The arguments of the function, or the options of an extension, are wrong.
    InvalidArguments = "INVALID_ARGUMENTS", 400, final, not_run;
    /// The server does not know an extension that the request needs.
    ExtensionNotSupported = "EXTENSION_NOT_SUPPORTED", 400, final, not_run;
    /// The extension cannot be used with this function.
    ExtensionNotApplicable = "EXTENSION_NOT_APPLICABLE", 400, final, not_run;
    /// The caller did not authenticate, or with credentials that are not valid.
    Unauthorized = "UNAUTHORIZED", 401, final, not_run;
    /// The caller is authenticated, and is not allowed to do this.
    Forbidden = "FORBIDDEN", 403, final, not_run;
    /// No function has this name.
    FunctionNotFound = "FUNCTION_NOT_FOUND", 404, final, not_run;
    /// The function has no such version.
    VersionNotFound = "VERSION_NOT_FOUND", 404, final, not_run;
    /// The lock is not held.
    LockNotFound = "LOCK_NOT_FOUND", 404, final, may_have_run;
    /// The deadline passed before the function had ended.
    DeadlineExceeded = "DEADLINE_EXCEEDED", 408, retry, may_have_run;
    /// Another owner holds the lock.
    LockOwnershipMismatch = "LOCK_OWNERSHIP_MISMATCH", 403, final, may_have_run;
    /// This owner has released the lock before.
    LockAlreadyReleased = "LOCK_ALREADY_RELEASED", 409, final, may_have_run;
    /// The caller cancelled the call.
    Cancelled = "CANCELLED", 499, final, may_have_run;
    /// No call that this caller may cancel has this cancellation token.
    CancellationTokenUnknown = "CANCELLATION_TOKEN_UNKNOWN", 404, final, may_have_run;
    /// The call with this cancellation token has ended.
    CancellationTooLate = "CANCELLATION_TOO_LATE", 409, final, may_have_run;
    /// The lock is held, and the request does not wait.
    LockAcquisitionFailed = "LOCK_ACQUISITION_FAILED", 423, retry, not_run;
    /// The lock was not granted within the time that the request waits at most.
    LockTimeout = "LOCK_TIMEOUT", 423, retry, not_run;
    /// The caller sends too many requests.
    RateLimited = "RATE_LIMITED", 429, retry, not_run;
    /// The server or the function failed unexpectedly.
    InternalError = "INTERNAL_ERROR", 500, retry, may_have_run;
    /// The server cannot serve now: its store is down, or it is shutting down.
    Unavailable = "UNAVAILABLE", 503, retry, may_have_run;

    /// The function is temporarily disabled.
    FunctionDisabled = "FUNCTION_DISABLED", 503, retry, not_run;
    /// The arguments do not match the schema of the function.
    SchemaValidationFailed = "SCHEMA_VALIDATION_FAILED", 422, final, not_run;
    /// The resource that the function was asked about does not exist.
    NotFound = "NOT_FOUND", 404, final, may_have_run;
    /// The resource is in a state that does not allow this.
    Conflict = "CONFLICT", 409, final, may_have_run;
    /// The resource does not exist any more.
    Gone = "GONE", 410, final, may_have_run;
    /// A service that this one depends on has failed.
    DependencyError = "DEPENDENCY_ERROR", 502, retry, may_have_run;
    /// The idempotency key was used before, with other arguments.
    IdempotencyConflict = "IDEMPOTENCY_CONFLICT", 409, final, not_run;
    /// The first request with this idempotency key is still running.
    IdempotencyProcessing = "IDEMPOTENCY_PROCESSING", 409, retry, may_have_run;
    /// No asynchronous operation has this id.
    AsyncOperationNotFound = "ASYNC_OPERATION_NOT_FOUND", 404, final, may_have_run;
    /// The asynchronous operation failed for good.
    AsyncOperationFailed = "ASYNC_OPERATION_FAILED", 500, final, may_have_run;
    /// The asynchronous operation has ended, or cannot be cancelled.
    AsyncCannotCancel = "ASYNC_CANNOT_CANCEL", 400, final, may_have_run;
    /// An operation of an atomic batch failed.
    BatchFailed = "BATCH_FAILED", 400, final, may_have_run;
    /// The batch has too many operations.
    BatchTooLarge = "BATCH_TOO_LARGE", 400, final, not_run;
    /// The batch did not end in time.
    BatchTimeout = "BATCH_TIMEOUT", 504, retry, may_have_run;
    /// The whole server is under maintenance.
    ServerMaintenance = "SERVER_MAINTENANCE", 503, retry, not_run;
    /// The function is under maintenance.
    FunctionMaintenance = "FUNCTION_MAINTENANCE", 503, retry, not_run;
    /// No replay has this id.
    ReplayNotFound = "REPLAY_NOT_FOUND", 404, final, may_have_run;
    /// The request was kept for replay, and has expired.
    ReplayExpired = "REPLAY_EXPIRED", 410, final, may_have_run;
    /// The request was replayed before.
    ReplayAlreadyComplete = "REPLAY_ALREADY_COMPLETE", 409, final, may_have_run;
    /// The replay was cancelled.
    ReplayCancelled = "REPLAY_CANCELLED", 410, final, may_have_run;
}

/// A well-formed code that the protocol does not define. It is only created by parsing an [`ErrorCode`], so it is never a
/// standard code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ApplicationCode(Box<str>);

impl ApplicationCode {
    /// The code as it is on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is not an error code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an error code must be SCREAMING_SNAKE_CASE of at most 128 bytes")]
pub struct InvalidErrorCode;

const MAX_CODE_BYTES: usize = 128;

impl FromStr for ErrorCode {
    type Err = InvalidErrorCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(standard) = Self::standard(text) {
            Ok(standard)
        } else if text.len() <= MAX_CODE_BYTES && is_screaming_snake_case(text) {
            Ok(Self::Application(ApplicationCode(text.into())))
        } else {
            Err(InvalidErrorCode)
        }
    }
}

fn is_screaming_snake_case(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    };
    text.starts_with(|first: char| first.is_ascii_uppercase()) && text.split('_').all(is_word)
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_standard_code_is_read_back_as_itself() {
        for code in ErrorCode::STANDARD {
            assert_eq!(&code.as_str().parse::<ErrorCode>().unwrap(), code);
            assert!(is_screaming_snake_case(code.as_str()), "{code}");
        }
    }

    #[test]
    fn only_what_may_pass_by_itself_is_retryable() {
        for code in ErrorCode::STANDARD
            .iter()
            .filter(|code| code.is_retryable())
        {
            let status = code.http_status();
            assert!(
                matches!(status, 408 | 409 | 423 | 429) || status >= 500,
                "{code}"
            );
        }
    }

    #[test]
    fn application_codes_are_400_and_come_from_a_function_that_ran() {
        let code: ErrorCode = "ORDERS_INVENTORY_INSUFFICIENT".parse().unwrap();
        assert!(matches!(code, ErrorCode::Application(_)));
        assert_eq!(code.http_status(), 400);
        assert!(!code.is_retryable());
        assert!(code.may_have_run());
    }

    #[test]
    fn codes_are_screaming_snake_case_of_at_most_128_bytes() {
        for good in ["A", "A1", "HTTP_404", "A_B_C", &"A".repeat(128)] {
            assert!(good.parse::<ErrorCode>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "_A",
            "A_",
            "A__B",
            "1A",
            "a",
            "Not_Found",
            "A-B",
            "É",
            &"A".repeat(129),
        ] {
            assert!(bad.parse::<ErrorCode>().is_err(), "{bad}");
        }
    }
}
