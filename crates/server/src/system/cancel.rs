//! `cancel`: ends a call of the same caller that has a cancellation token.

use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::json;

use super::{Needs, Prepared, STORE_UNAVAILABLE, Spec, arguments_of, mutating_call, store_failed};
use crate::access::Role;
use crate::extension::{CancelError, cancel, read_token};
use crate::limits::Limits;

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:cancellation:fn:cancel"],
    schema: "cancel",
    needs: Needs::OneOf(&[Role::Call, Role::Observe, Role::Admin]),
    is_cancellable: false,
    errors: &[
        (
            ErrorCode::CancellationTokenUnknown,
            "No call of this caller with this token is known",
        ),
        (
            ErrorCode::CancellationTooLate,
            "The call has ended, or was cancelled before",
        ),
        STORE_UNAVAILABLE,
    ],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let token = read_token(&mut fields);
    let token = fields.finish_with(token)?;
    Ok(mutating_call(async move |context| {
        let cancelled = cancel(&context.server, context.call.caller.name(), &token).await;
        let Err(error) = cancelled else {
            return Ok(json!({"cancelled": true}));
        };
        let code = match &error {
            CancelError::Unknown => ErrorCode::CancellationTokenUnknown,
            CancelError::TooLate => ErrorCode::CancellationTooLate,
            CancelError::Store(error) => return Err(store_failed(error)),
        };
        Err(ErrorObject::new(code, error.to_string()).with_detail("token", token.as_str()))
    }))
}
