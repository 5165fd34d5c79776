//! The HTTP status of each error code, and whether a request may be retried after it.

use forrst_protocol::{ErrorCode, ErrorObject, Response};

fn check(codes: &str, status: u16, retryable: bool) {
    for code in codes.split_whitespace() {
        let code: ErrorCode = code.parse().unwrap();
        assert!(
            !matches!(code, ErrorCode::Application(_)),
            "{code} is a standard code"
        );
        assert_eq!(code.http_status(), status, "{code}");
        assert_eq!(code.is_retryable(), retryable, "{code}");
        let response = Response::failure(None, ErrorObject::new(code, ""));
        assert_eq!(response.http_status(), status);
    }
}

#[test]
fn codes_have_the_status_and_retryability_of_the_table() {
    check(
        "PARSE_ERROR INVALID_REQUEST INVALID_PROTOCOL_VERSION INVALID_ARGUMENTS",
        400,
        false,
    );
    check(
        "EXTENSION_NOT_SUPPORTED EXTENSION_NOT_APPLICABLE",
        400,
        false,
    );
    check("UNAUTHORIZED", 401, false);
    check("FORBIDDEN", 403, false);
    check(
        "FUNCTION_NOT_FOUND VERSION_NOT_FOUND LOCK_NOT_FOUND",
        404,
        false,
    );
    check("DEADLINE_EXCEEDED", 408, true);
    check("LOCK_OWNERSHIP_MISMATCH", 403, false);
    check("LOCK_ALREADY_RELEASED", 409, false);
    check("CANCELLED", 499, false);
    check("CANCELLATION_TOKEN_UNKNOWN", 404, false);
    check("CANCELLATION_TOO_LATE", 409, false);
    check("LOCK_ACQUISITION_FAILED LOCK_TIMEOUT", 423, true);
    check("RATE_LIMITED", 429, true);
    check("INTERNAL_ERROR", 500, true);
    check("UNAVAILABLE", 503, true);
}

#[test]
fn codes_of_applications_are_400_and_not_retryable() {
    let code: ErrorCode = "ORDERS_INVENTORY_INSUFFICIENT".parse().unwrap();
    assert_eq!((code.http_status(), code.is_retryable()), (400, false));
}
