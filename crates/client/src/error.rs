//! The errors of calls and lock operations, one variant for each way of handling them.

use forrst_protocol::ErrorCode;

use crate::failure::Failure;
use crate::lease::Loss;

/// The underlying error, from a library.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call or a lock operation has no result.
///
/// Where a server answered, [`Error::failure`] has all errors that it reported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held, and the request did not wait for it (`LOCK_ACQUISITION_FAILED`).
    #[error("the lock is held: {0}")]
    Contended(Failure),
    /// The lock was held for as long as the request waited for it (`LOCK_TIMEOUT`).
    #[error("the lock was not free in time: {0}")]
    TimedOut(Failure),
    /// The lease ended before it was released; another client may hold the lock.
    #[error("the lease is lost: {0}")]
    Lost(Loss),
    /// The lock belongs to another owner, or to a newer lease of the same one (`LOCK_OWNERSHIP_MISMATCH`).
    #[error("the lock is held by another owner or lease: {0}")]
    Mismatch(Failure),
    /// The lock is not held (`LOCK_NOT_FOUND`).
    #[error("the lock is not held: {0}")]
    NotHeld(Failure),
    /// The lease was released before, by its owner or by force (`LOCK_ALREADY_RELEASED`).
    #[error("the lock was already released: {0}")]
    AlreadyReleased(Failure),
    /// The deadline passed, here or on the server (`DEADLINE_EXCEEDED`). The function may have run.
    #[error("the deadline has passed{}", suffix(.0.as_ref()))]
    DeadlineExceeded(Option<Failure>),
    /// The call was cancelled by its [`CancelHandle`](crate::CancelHandle) (`CANCELLED`); without an answer, before it was sent. The
    /// function may have run.
    #[error("the call was cancelled{}", suffix(.0.as_ref()))]
    Cancelled(Option<Failure>),
    /// The server cannot serve now (`UNAVAILABLE`, maintenance).
    #[error("the server is unavailable: {0}")]
    Unavailable(Failure),
    /// No connection to the server could be made. Nothing was sent.
    #[error("the server cannot be reached: {0}")]
    Unreachable(#[source] Cause),
    /// The connection broke, or no answer came in time. What was sent may have been done.
    #[error("no answer came, and the request may have been carried out: {0}")]
    Interrupted(#[source] Cause),
    /// Too many requests (`RATE_LIMITED`).
    #[error("too many requests: {0}")]
    RateLimited(Failure),
    /// The API key is missing or wrong (`UNAUTHORIZED`).
    #[error("the server does not accept the API key{}", suffix(.0.as_ref()))]
    Unauthorized(Option<Failure>),
    /// The caller may not do this (`FORBIDDEN`).
    #[error("not allowed{}", suffix(.0.as_ref()))]
    Forbidden(Option<Failure>),
    /// The request is invalid, and nothing was done: its arguments, function, version or extensions are wrong.
    #[error("the request was rejected: {0}")]
    Rejected(Failure),
    /// The function itself failed: with a code of its own, or unexpectedly (`INTERNAL_ERROR`).
    #[error("the function failed: {0}")]
    Function(Failure),
    /// The answer is not a Forrst answer, or not of the expected type. The request may have been carried out.
    #[error("the answer cannot be understood: {0}")]
    Protocol(#[source] Cause),
    /// The request could not be built, and nothing was sent: a name or a version is invalid, or the arguments are not a JSON object.
    #[error("the request cannot be built: {0}")]
    InvalidRequest(#[source] Cause),
    /// The client cannot be built: its URL, its certificates or its key are invalid.
    #[error("the client cannot be set up: {0}")]
    Configuration(#[source] Cause),
}

fn suffix(failure: Option<&Failure>) -> String {
    failure
        .map(|failure| format!(": {failure}"))
        .unwrap_or_default()
}

impl Error {
    /// The answer of the server, if the error is one that it reported.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Contended(failure)
            | Self::TimedOut(failure)
            | Self::Mismatch(failure)
            | Self::NotHeld(failure)
            | Self::AlreadyReleased(failure)
            | Self::Unavailable(failure)
            | Self::RateLimited(failure)
            | Self::Rejected(failure)
            | Self::Function(failure) => Some(failure),
            Self::DeadlineExceeded(failure)
            | Self::Cancelled(failure)
            | Self::Unauthorized(failure)
            | Self::Forbidden(failure) => failure.as_ref(),
            Self::Lost(_)
            | Self::Unreachable(_)
            | Self::Interrupted(_)
            | Self::Protocol(_)
            | Self::InvalidRequest(_)
            | Self::Configuration(_) => None,
        }
    }

    /// The code of the first error that the server reported.
    pub fn code(&self) -> Option<&ErrorCode> {
        self.failure().map(Failure::code)
    }

    /// Whether the server could not be reached because its certificate is not trusted, or is not for its name.
    pub fn is_certificate_error(&self) -> bool {
        let Self::Unreachable(cause) = self else {
            return false;
        };
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(cause.as_ref());
        while let Some(error) = next {
            if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
                return true;
            }
            // The source of an `io::Error` is not the error that it wraps, but the source of that.
            let wrapped = error.downcast_ref().and_then(std::io::Error::get_ref);
            next = match wrapped {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        false
    }

    /// Whether the function that was called may have begun. If not, any call may safely be repeated.
    pub fn may_have_run(&self) -> bool {
        match (self, self.failure()) {
            (_, Some(failure)) => failure.may_have_run(),
            (
                Self::Unreachable(_)
                | Self::Unauthorized(_)
                | Self::Forbidden(_)
                | Self::InvalidRequest(_)
                | Self::Cancelled(_)
                | Self::Configuration(_),
                None,
            ) => false,
            (_, None) => true,
        }
    }
}

impl From<Failure> for Error {
    /// By the first of its errors: servers report several only when the request itself is invalid.
    fn from(failure: Failure) -> Self {
        match failure.code() {
            ErrorCode::LockAcquisitionFailed => Self::Contended(failure),
            ErrorCode::LockTimeout => Self::TimedOut(failure),
            ErrorCode::LockOwnershipMismatch => Self::Mismatch(failure),
            ErrorCode::LockNotFound => Self::NotHeld(failure),
            ErrorCode::LockAlreadyReleased => Self::AlreadyReleased(failure),
            ErrorCode::DeadlineExceeded => Self::DeadlineExceeded(Some(failure)),
            ErrorCode::Cancelled => Self::Cancelled(Some(failure)),
            ErrorCode::Unavailable
            | ErrorCode::ServerMaintenance
            | ErrorCode::FunctionMaintenance
            | ErrorCode::FunctionDisabled => Self::Unavailable(failure),
            ErrorCode::RateLimited => Self::RateLimited(failure),
            ErrorCode::Unauthorized => Self::Unauthorized(Some(failure)),
            ErrorCode::Forbidden => Self::Forbidden(Some(failure)),
            ErrorCode::ParseError
            | ErrorCode::InvalidRequest
            | ErrorCode::InvalidProtocolVersion
            | ErrorCode::InvalidArguments
            | ErrorCode::ExtensionNotSupported
            | ErrorCode::ExtensionNotApplicable
            | ErrorCode::FunctionNotFound
            | ErrorCode::VersionNotFound
            | ErrorCode::SchemaValidationFailed => Self::Rejected(failure),
            _ => Self::Function(failure),
        }
    }
}
