//! The arguments of a function, as they are given on the command line.

use std::collections::HashSet;
use std::io::Read;

use forrst_protocol::RawObject;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::CommandError;

/// Reads one JSON object, `-` for one on standard input, or key=value pairs.
///
/// JSON is sent as it was written: parsing it would round numbers, and hide duplicate members, which the server rejects.
pub(super) fn parse(
    words: &[String],
    stdin: impl Read,
) -> Result<RawObject<'static>, CommandError> {
    match words {
        [only] if only == "-" => whole(stdin),
        [only] if only.trim_start().starts_with(['{', '[']) => object(only),
        words => pairs(words),
    }
}

fn whole(mut stdin: impl Read) -> Result<RawObject<'static>, CommandError> {
    let mut text = String::new();
    let read = stdin.read_to_string(&mut text);
    read.map_err(|error| CommandError::local(format!("standard input cannot be read: {error}")))?;
    object(&text)
}

fn object(text: &str) -> Result<RawObject<'static>, CommandError> {
    let raw: Box<RawValue> = serde_json::from_str(text)
        .map_err(|error| CommandError::usage(format!("the arguments are not JSON: {error}")))?;
    RawObject::try_from(raw).map_err(|_| CommandError::usage("the arguments must be a JSON object"))
}

fn pairs(words: &[String]) -> Result<RawObject<'static>, CommandError> {
    let mut names = HashSet::new();
    let mut members = Vec::new();
    for word in words {
        let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            let message = format!("`{word}` is neither key=value nor a JSON object");
            return Err(CommandError::usage(message)
                .hint("a JSON object has to be the only argument, and begins with {"));
        };
        if !names.insert(name) {
            return Err(CommandError::usage(format!("`{name}` is given twice")));
        }
        let value = match serde_json::from_str::<&RawValue>(value) {
            Ok(json) => json.get().to_owned(),
            Err(_) => Value::from(value).to_string(),
        };
        members.push(format!("{}:{value}", Value::from(name)));
    }
    object(&format!("{{{}}}", members.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(words: &[&str]) -> Result<String, CommandError> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let object = parse(&words, r#"{"from": "stdin"}"#.as_bytes())?;
        Ok(object.get().to_owned())
    }

    fn read(words: &[&str]) -> Result<Value, CommandError> {
        text(words).map(|text| serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn json_is_sent_as_it_was_written() {
        for (words, expected) in [
            (
                &["a=12345678901234567890123", "b=1.10", r#"c={"x": 1e400}"#][..],
                r#"{"a":12345678901234567890123,"b":1.10,"c":{"x": 1e400}}"#,
            ),
            (&[r#" {"a": 1.10, "a": 2} "#], r#"{"a": 1.10, "a": 2}"#),
        ] {
            assert_eq!(text(words).unwrap(), expected, "{words:?}");
        }
    }

    #[test]
    fn values_that_are_json_are_json_and_all_others_are_strings() {
        for (words, expected) in [
            (&[][..], json!({})),
            (
                &["amount=100", "user_id=user_123"],
                json!({"amount": 100, "user_id": "user_123"}),
            ),
            (
                &["code=\"100\"", "on=true", "none=null"],
                json!({"code": "100", "on": true, "none": null}),
            ),
            (
                &["zip=007", "empty=", "sum=a=b"],
                json!({"zip": "007", "empty": "", "sum": "a=b"}),
            ),
            (
                &["list=[1, 2]", r#"deep={"a": 1}"#],
                json!({"list": [1, 2], "deep": {"a": 1}}),
            ),
            (&[r#" {"a": 1}"#], json!({"a": 1})),
            (&["-"], json!({"from": "stdin"})),
        ] {
            assert_eq!(read(words).unwrap(), expected, "{words:?}");
        }
    }

    #[test]
    fn arguments_that_are_neither_an_object_nor_pairs_are_refused() {
        for words in [
            &["hello"][..],
            &["=1"],
            &["a=1", "a=2"],
            &["[1]"],
            &["{"],
            &[r#"{"a": 1}"#, "b=1"],
        ] {
            assert_eq!(read(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }
}
