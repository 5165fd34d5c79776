//! Reading a request, with everything that is wrong with it found together.
//!
//! `serde_json` alone decides what is JSON. A good request is read in one pass; one in which anything is unusual is read
//! again with every member raw, so that a member of the wrong kind is a problem to note and not the end of reading
//! ([`outline`]). What each member must be stands in [`envelope`]. Nothing recurses.

mod envelope;
mod members;
mod outline;
mod path;
mod repeated_keys;
mod structure;
mod syntax;

use serde_json::value::RawValue;

use crate::raw::Kind;
use crate::{ErrorCode, ErrorObject, MAX_NESTING, Pointer, Rejection, Request};
use envelope::Reader;
use outline::Outline;

pub(crate) fn request(body: &[u8]) -> Result<Request<'_>, Rejection> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Rejection::new(None, syntax::not_utf8(error.valid_up_to())))?;
    read(text).map_err(|error| Rejection::new(None, syntax::not_json(text, &error)))?
}

/// The outer result says whether the text is JSON, the inner one whether that JSON is a request.
fn read(text: &str) -> Result<Result<Request<'_>, Rejection>, serde_json::Error> {
    if !trim_start(text).starts_with('{') {
        let other: &RawValue = serde_json::from_str(text)?;
        return Ok(Err(Rejection::new(None, not_an_object(Kind::of(other)))));
    }
    let too_deep = structure::first_bracket_deeper_than(MAX_NESTING, text);
    match read_by(Outline::read_straight, text, too_deep) {
        Ok(Ok(request)) => Ok(Ok(request)),
        _ => read_by(Outline::read_carefully, text, too_deep),
    }
}

type Outlining<'a> = fn(&'a str, &mut Reader<'a>) -> Result<Outline<'a>, serde_json::Error>;

fn read_by<'a>(
    outlining: Outlining<'a>,
    text: &'a str,
    too_deep: Option<usize>,
) -> Result<Result<Request<'a>, Rejection>, serde_json::Error> {
    let mut reader = Reader::new(too_deep.is_none());
    if let Some(position) = too_deep {
        reader.problems.note(|| nested_too_deep(position));
    }
    let outline = outlining(text, &mut reader)?;
    Ok(reader.request(outline))
}

/// Without leading space, as JSON understands it.
fn trim_start(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\r'])
}

fn not_an_object(found: Kind) -> ErrorObject {
    let message = format!("The request must be an object, found {found}");
    ErrorObject::new(ErrorCode::InvalidRequest, message).at(Pointer::root())
}

fn nested_too_deep(position: usize) -> ErrorObject {
    let message = format!(
        "Objects and arrays may stand inside each other {MAX_NESTING} deep, \
         and the bracket at byte {position} is deeper"
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

    /// Mostly what belongs there, so that most of the whole requests are accepted.
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
        fn what_is_accepted_straight_is_accepted_with_care_and_means_the_same(text in text()) {
            let carefully = read_by(Outline::read_carefully, &text, None).unwrap();
            if let Ok(Ok(straight)) = read_by(Outline::read_straight, &text, None) {
                prop_assert_eq!(written(&straight), written(&carefully.unwrap()));
            }
        }

        #[test]
        fn a_key_that_can_only_be_read_with_care_changes_nothing(text in text()) {
            let with_care = text.replacen('{', r#"{"\ud800": 0, "#, 1);
            prop_assert!(read_by(Outline::read_straight, &with_care, None).is_err());
            match (read(&text).unwrap(), read(&with_care).unwrap()) {
                (Ok(plain), Ok(careful)) => prop_assert_eq!(written(&plain), written(&careful)),
                (plain, careful) => prop_assert_eq!(plain.unwrap_err(), careful.unwrap_err()),
            }
        }
    }
}
