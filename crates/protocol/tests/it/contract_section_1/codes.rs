//! The HTTP status of each error code, whether a request may be retried after it, and whether the function may have run.

use std::env;
use std::fs;
use std::path::Path;

use forrst_protocol::{ErrorCode, ErrorObject, Response};
use serde_json::json;

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

#[test]
fn refusals_say_that_the_function_has_not_run() {
    let not_run = |code: &&ErrorCode| !code.may_have_run();
    let codes: Vec<&str> = ErrorCode::STANDARD
        .iter()
        .filter(not_run)
        .map(ErrorCode::as_str)
        .collect();
    assert_eq!(
        codes.join(" "),
        "PARSE_ERROR INVALID_REQUEST INVALID_PROTOCOL_VERSION INVALID_ARGUMENTS EXTENSION_NOT_SUPPORTED \
         EXTENSION_NOT_APPLICABLE UNAUTHORIZED FORBIDDEN FUNCTION_NOT_FOUND VERSION_NOT_FOUND \
         LOCK_ACQUISITION_FAILED LOCK_TIMEOUT RATE_LIMITED FUNCTION_DISABLED SCHEMA_VALIDATION_FAILED \
         IDEMPOTENCY_CONFLICT BATCH_TOO_LARGE SERVER_MAINTENANCE FUNCTION_MAINTENANCE"
    );
}

/// The file is for programs in other languages, and for the conformance runner.
#[test]
fn the_file_of_all_codes_is_that_of_the_table() {
    let rows: Vec<String> = ErrorCode::STANDARD
        .iter()
        .map(|code| {
            format!(
                r#"  {{ "code": {}, "status": {}, "retryable": {}, "may_have_run": {} }}"#,
                json!(code),
                code.http_status(),
                code.is_retryable(),
                code.may_have_run()
            )
        })
        .collect();
    let table = format!("[\n{}\n]\n", rows.join(",\n"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas/codes.json");
    if env::var_os("FORRST_WRITE_CODES").is_some() {
        fs::write(&file, &table).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == table,
        "schemas/codes.json is not what code.rs says. To rewrite it, run\n\
         FORRST_WRITE_CODES=1 cargo test -p forrst-protocol --test it codes::the_file"
    );
}
