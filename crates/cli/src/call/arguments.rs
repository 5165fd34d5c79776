//! What a function is called with, as people type it.

use std::io::Read;

use serde_json::{Map, Value};

use crate::error::CommandError;

/// One JSON object, `-` for one on standard input, or pairs.
pub(super) fn parse(words: &[String], stdin: impl Read) -> Result<Value, CommandError> {
    match words {
        [only] if only == "-" => whole(stdin),
        [only] if only.trim_start().starts_with(['{', '[']) => object(only),
        words => pairs(words),
    }
}

fn whole(mut stdin: impl Read) -> Result<Value, CommandError> {
    let mut text = String::new();
    let read = stdin.read_to_string(&mut text);
    read.map_err(|error| CommandError::local(format!("standard input cannot be read: {error}")))?;
    object(&text)
}

fn object(text: &str) -> Result<Value, CommandError> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(CommandError::usage("the arguments must be a JSON object")),
        Err(error) => Err(CommandError::usage(format!(
            "the arguments are not JSON: {error}"
        ))),
    }
}

fn pairs(words: &[String]) -> Result<Value, CommandError> {
    let mut arguments = Map::new();
    for word in words {
        let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            let message = format!("`{word}` is neither key=value nor a JSON object");
            return Err(
                CommandError::usage(message).hint("a JSON object stands alone, and begins with {")
            );
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        if arguments.insert(name.to_owned(), value).is_some() {
            return Err(CommandError::usage(format!("`{name}` is given twice")));
        }
    }
    Ok(Value::Object(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(words: &[&str]) -> Result<Value, CommandError> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        parse(&words, r#"{"from": "stdin"}"#.as_bytes())
    }

    #[test]
    fn json_is_json_and_all_else_is_text() {
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
    fn what_is_neither_is_refused() {
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
