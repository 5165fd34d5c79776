//! Fuzzes the request parser with arbitrary bytes: nothing of an accepted request may be lost, and every rejection has to be a
//! valid response with a correct position.
//!
//!     mkdir -p fuzz/corpus/parse_request
//!     cargo +nightly fuzz run parse_request fuzz/corpus/parse_request fuzz/seeds -- -max_total_time=660 -max_len=4096

#![no_main]

use forrst_protocol::{ErrorCode, ErrorObject, RawObject, Rejection, Request, Response, Source};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

fuzz_target!(|body: &[u8]| {
    match Request::parse(body) {
        Ok(request) => check_request(body, &request),
        Err(rejection) => check_rejection(body, rejection),
    }
});

fn is_json(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn check_request(body: &[u8], request: &Request<'_>) {
    assert!(is_json(body));
    let written = serde_json::to_vec(request).expect("a request can be written");
    let again = Request::parse(&written).expect("what is written is a request");
    assert_eq!(text_of(&again), text_of(request));
    // An accepted request may contain numbers and escapes out of range, which `Value` cannot represent.
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        check_nothing_is_lost(&value, request);
    }
}

/// The parsed request contains everything in the body. Dropping a lock would be the worst possible bug.
fn check_nothing_is_lost(value: &Value, request: &Request<'_>) {
    let call = &value["call"];
    assert_eq!(value["id"], request.id.as_str());
    assert_eq!(value["protocol"]["name"], "forrst");
    assert_eq!(
        value["protocol"]["version"],
        request.protocol_version().to_string()
    );
    assert_eq!(call["function"], request.call.function.as_str());
    let version = request.call.version.as_ref().map(ToString::to_string);
    assert_eq!(
        call.get("version").and_then(Value::as_str),
        version.as_deref()
    );
    let arguments = call.get("arguments").cloned().unwrap_or_else(|| json!({}));
    assert_eq!(arguments, read(&request.call.arguments));
    assert_eq!(
        value.get("context").cloned(),
        request.context.as_ref().map(read)
    );

    let sent = value
        .get("extensions")
        .map_or(&[][..], |sent| sent.as_array().expect("an array"));
    assert_eq!(sent.len(), request.extensions.len());
    for (sent, extension) in sent.iter().zip(&request.extensions) {
        assert_eq!(sent["urn"], extension.urn.as_str());
        assert_eq!(
            sent.get("options").cloned(),
            extension.options.as_ref().map(read)
        );
        assert_eq!(
            sent.get("required").unwrap_or(&json!(true)),
            &json!(extension.required)
        );
    }
}

fn read(object: &RawObject<'_>) -> Value {
    object.deserialize().expect("a part of a valid body")
}

/// The text of a request, with its raw parts as they were sent.
fn text_of(request: &Request<'_>) -> String {
    serde_json::to_string(request).expect("a request can be written")
}

fn check_rejection(body: &[u8], rejection: Rejection) {
    let errors = rejection.errors().as_slice();
    assert!((1..=64).contains(&errors.len()));
    let is_parse_error = errors
        .iter()
        .any(|error| error.code == ErrorCode::ParseError);
    assert_eq!(is_parse_error, !is_json(body));
    if is_parse_error {
        assert_eq!(errors.len(), 1);
        assert_eq!(rejection.id(), None);
    }
    for error in errors {
        match &error.source {
            Some(Source::Position(position)) => assert!(*position <= body.len()),
            Some(Source::Pointer(_)) => assert!(!is_parse_error),
            // Only the error that counts the unlisted problems has no source. It has no code of its own, either.
            None => assert!(error.message.contains("not listed")),
        }
    }
    check_position(body, errors);

    let response = Response::from(rejection);
    let written = serde_json::to_vec(&response).expect("a response can be written");
    let again = Response::parse(&written).expect("what is written is a response");
    assert_eq!(
        serde_json::to_vec(&again).expect("a response can be written"),
        written
    );
}

/// A parse error is at the first byte that makes the body invalid: the bytes before it are a prefix of valid JSON, and with
/// the byte at the position they are not.
fn check_position(body: &[u8], errors: &[ErrorObject]) {
    let [error] = errors else { return };
    let (ErrorCode::ParseError, Some(Source::Position(position))) = (&error.code, &error.source)
    else {
        return;
    };
    let position_in = |prefix: &[u8]| match Request::parse(prefix) {
        Err(rejection) => match rejection.errors().as_slice() {
            [error] if error.code == ErrorCode::ParseError => error.source.clone(),
            _ => None,
        },
        Ok(_) => None,
    };
    // Invalid UTF-8 is reported at its own position, even if there is another error before it.
    if std::str::from_utf8(body).is_err() {
        return;
    }
    if let Some(source) = position_in(&body[..*position]) {
        assert_eq!(source, Source::Position(*position));
    }
    // If this splits a multi-byte character, the error is invalid UTF-8 at the same position.
    if let Some(up_to) = body.get(..=*position) {
        assert_eq!(position_in(up_to), Some(Source::Position(*position)));
    }
}
