//! The Forrst wire protocol in types: the envelope, its errors, names, versions and durations.
//!
//! Nothing here does I/O. A server hands the body of a request to [`Request::parse`], which finds
//! everything that is wrong with the envelope at once, and writes a [`Response`]; a client does the reverse.
//! What exists as a value of these types is valid: a [`FunctionName`] is well formed, a [`Response`]
//! has a result or errors, never both.
//!
//! ```
//! use forrst_protocol::{ErrorCode, ErrorObject, Request, Response};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize)]
//! struct Charge<'a> {
//!     user_id: &'a str,
//!     amount: u64,
//! }
//!
//! #[derive(Serialize)]
//! struct Receipt {
//!     charged: u64,
//! }
//!
//! fn answer(body: &[u8]) -> Response {
//!     let request = match Request::parse(body) {
//!         Ok(request) => request,
//!         Err(rejection) => return rejection.into(),
//!     };
//!     let answered = match request.call.arguments.deserialize::<Charge<'_>>() {
//!         Ok(charge) if charge.user_id == "user_123" => {
//!             Response::success(request.id, &Receipt { charged: charge.amount })
//!         }
//!         Ok(_) => Ok(Response::failure(
//!             Some(request.id),
//!             ErrorObject::new(ErrorCode::NotFound, "No such user"),
//!         )),
//!         Err(error) => Ok(Response::failure(
//!             Some(request.id),
//!             ErrorObject::new(ErrorCode::InvalidArguments, error.to_string()),
//!         )),
//!     };
//!     answered.expect("a receipt is plain JSON")
//! }
//!
//! let response = answer(
//!     br#"{"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "req_001",
//!          "call": {"function": "payments.charge", "arguments": {"user_id": "user_123", "amount": 100}}}"#,
//! );
//! assert_eq!(response.http_status(), 200);
//! assert_eq!(
//!     serde_json::to_string(&response)?,
//!     r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_001","result":{"charged":100}}"#,
//! );
//!
//! let refused = answer(br#"{"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "req_002", "call": {}}"#);
//! assert_eq!(refused.http_status(), 400);
//! assert_eq!(refused.id().unwrap().as_str(), "req_002");
//! # Ok::<(), serde_json::Error>(())
//! ```

mod code;
mod duration;
mod error;
mod function_name;
mod names;
mod parse;
mod pointer;
mod problems;
mod raw;
mod rejection;
mod request;
mod response;
mod scan;
mod urn;
mod version;
mod write;

pub use code::{ApplicationCode, ErrorCode, InvalidErrorCode};
pub use duration::{Duration, DurationOverflow, Unit};
pub use error::{ErrorObject, Errors, NoErrors, Source};
pub use function_name::FunctionName;
pub use names::{InvalidName, RequestId};
pub use parse::is_envelope;
pub use pointer::{InvalidPointer, Pointer};
pub use problems::{MAX_PROBLEMS, Problems, excerpt, short_message};
pub use raw::{Members, NotAnObject, RawJson, RawObject};
pub use rejection::Rejection;
pub use request::{Call, ExtensionRequest, Request};
pub use response::{ExtensionData, InvalidResponse, Response};
pub use urn::Urn;
pub use version::{
    InvalidVersion, PROTOCOL_NAME, PROTOCOL_VERSION, UnsupportedVersion, Version, negotiate,
};
pub use write::ObjectWriter;

/// How deep objects and arrays may be nested in a request, the request itself included.
pub const MAX_NESTING: usize = 64;

/// The largest request body that a server accepts unless told otherwise, in bytes (1 MiB).
///
/// [`Request::parse`] does not enforce it: the transport has to stop reading before there is anything to parse.
pub const DEFAULT_MAX_BODY_BYTES: usize = 1024 * 1024;
