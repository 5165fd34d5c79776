//! Reading a request, with everything that is wrong with it found together.
//!
//! One [scan](crate::scan) finds the members of a request, raw ([`outline`]); [`envelope`] checks what each must be. If the
//! text is not JSON, `serde_json` says why. Nothing recurses.

mod envelope;
mod members;
mod outline;
mod path;
mod repeated_keys;
mod structure;
mod syntax;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::raw::Kind;
use crate::scan::NotJson;
use crate::{ErrorCode, ErrorObject, MAX_NESTING, Pointer, Rejection, Request};
use envelope::Reader;
use outline::Outline;

pub(crate) fn request(body: &[u8]) -> Result<Request<'_>, Rejection> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Rejection::new(None, syntax::not_utf8(error.valid_up_to())))?;
    if !trim_start(text).starts_with('{') {
        return Err(not_an_object(text));
    }
    let too_deep = structure::first_bracket_deeper_than(MAX_NESTING, text);
    let mut reader = Reader::new(too_deep.is_none());
    if let Some(position) = too_deep {
        reader.problems.note(|| nested_too_deep(position));
    }
    match Outline::read(text, &mut reader) {
        Ok(outline) => reader.request(outline),
        Err(NotJson) => Err(not_json(text)),
    }
}

/// Whether a body looks like a request of this protocol, and not like a frame of JSON-RPC: an object with `protocol` or `call`, and
/// without `jsonrpc`.
///
/// It says nothing about whether the request is valid: [`Request::parse`] does.
pub fn is_envelope(body: &[u8]) -> bool {
    let names = ["protocol", "call", "jsonrpc"];
    let members = std::str::from_utf8(body).map(|text| outline::has_members(text, names));
    matches!(members, Ok(Ok([protocol, call, false])) if protocol || call)
}

/// Why a text is not JSON.
fn not_json(text: &str) -> Rejection {
    let error = match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => syntax::not_json(text, &error),
        // Never reached, because the two agree on what is JSON; to refuse the request is the safe default.
        Ok(_) => ErrorObject::new(ErrorCode::ParseError, "Invalid JSON"),
    };
    Rejection::new(None, error)
}

/// Without leading space, as JSON understands it.
fn trim_start(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\r'])
}

/// A text that is another value, or not JSON.
fn not_an_object(text: &str) -> Rejection {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(other) => {
            let found = Kind::of(other.get());
            let message = format!("The request must be an object, found {found}");
            let error = ErrorObject::new(ErrorCode::InvalidRequest, message);
            Rejection::new(None, error.at(Pointer::root()))
        }
        Err(error) => Rejection::new(None, syntax::not_json(text, &error)),
    }
}

fn nested_too_deep(position: usize) -> ErrorObject {
    let message = format!(
        "Objects and arrays may be nested {MAX_NESTING} deep, and the bracket at byte {position} is deeper"
    );
    ErrorObject::new(ErrorCode::InvalidRequest, message)
        .at_position(position)
        .with_detail(Rejection::NESTING, MAX_NESTING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(request: &Request<'_>) -> String {
        serde_json::to_string(request).unwrap()
    }

    /// Mostly valid values, so that most of the requests are accepted.
    fn value_of(key: &'static str) -> impl Strategy<Value = String> {
        let right = match key {
            "protocol" => r#"{"version": "0.1.7", "name": "forrst", "x": []}"#,
            "id" => r#""r\u00e9""#,
            "call" => r#"{"arguments": {"x": [1e999, "\ud800"]}, "function": "a.b"}"#,
            "context" => r#"{"a": {"b": 1}, "b": "\\\""}"#,
            "extensions" => {
                r#"[{"urn": "urn:ab:c", "required": false}, {"options": {}, "urn": "urn:ab:d"}]"#
            }
            _ => "[{}, null]",
        };
        let any = prop::sample::select(vec![
            "null",
            "1e999",
            r#""\ud800""#,
            r#"["forrst", "0.1.0"]"#,
            r#"{"function": "a.b", "arguments": {"x": 1, "x": 2}}"#,
            r#"{"function": "a.b", "function": "a.c"}"#,
            r#"[{"urn": "urn:ab:c"}, {"urn": 1, "options": []}, 1]"#,
        ]);
        let member = prop_oneof![9 => Just(right), 1 => any];
        member.prop_map(move |value| format!("\"{key}\": {value}"))
    }

    fn text() -> impl Strategy<Value = String> {
        let names = ["protocol", "id", "call", "context", "extensions", "other"];
        let repeated = prop::option::weighted(0.1, value_of("c\\u0061ll"));
        let members = (names.map(value_of), repeated)
            .prop_map(|(members, repeated)| members.into_iter().chain(repeated).collect());
        members
            .prop_flat_map(|members: Vec<String>| Just(members).prop_shuffle())
            .prop_map(|members| format!("{{{}}}", members.join(", ")))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        #[test]
        fn a_key_that_is_not_unicode_changes_nothing_in_the_envelope(text in text()) {
            let with_key = text.replacen('{', r#"{"\ud800": 0, "#, 1);
            match (request(text.as_bytes()), request(with_key.as_bytes())) {
                (Ok(one), Ok(other)) => prop_assert_eq!(written(&one), written(&other)),
                (one, other) => prop_assert_eq!(one.unwrap_err(), other.unwrap_err()),
            }
        }

        #[test]
        fn a_request_that_was_read_and_written_is_the_same(text in text()) {
            if let Ok(read) = request(text.as_bytes()) {
                let once = written(&read);
                prop_assert_eq!(&written(&request(once.as_bytes()).unwrap()), &once);
            }
        }
    }
}
