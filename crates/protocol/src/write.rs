//! Writes JSON straight into the text that is sent.
//!
//! Most of an answer is member names that are known at compile time. They are written verbatim, without the search for characters to
//! escape on which `serde_json` spends most of its time.

use std::fmt::{Display, Write};

use serde::Serialize;

use crate::RawObject;

/// Writes a JSON object member by member. Names are written verbatim, so they must need no escaping, and no two may be equal.
///
/// ```
/// use forrst_protocol::ObjectWriter;
///
/// let mut object = ObjectWriter::with_capacity(64);
/// object.string("key", "user:\"1\"");
/// object.bool("acquired", true);
/// assert_eq!(object.finish().get(), r#"{"key":"user:\"1\"","acquired":true}"#);
/// ```
#[derive(Debug)]
pub struct ObjectWriter {
    /// With a comma behind each member.
    text: String,
}

impl ObjectWriter {
    /// An empty object, with room for about this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut text = String::with_capacity(bytes);
        text.push('{');
        Self { text }
    }

    /// Adds a string.
    pub fn string(&mut self, name: &'static str, value: &str) {
        self.name(name);
        push_string(&mut self.text, value);
        self.text.push(',');
    }

    /// Adds a string that needs no escaping, such as digits.
    pub fn plain(&mut self, name: &'static str, value: impl Display) {
        self.name(name);
        let start = self.text.len();
        // Writing to a `String` does not fail.
        let _ = write!(self.text, "\"{value}\",");
        debug_assert!(
            !self.text[start + 1..self.text.len() - 2]
                .bytes()
                .any(is_special)
        );
    }

    /// Adds a number.
    pub fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        self.text.push_str(itoa::Buffer::new().format(value));
        self.text.push(',');
    }

    /// Adds `true` or `false`.
    pub fn bool(&mut self, name: &'static str, value: bool) {
        self.name(name);
        self.text.push_str(if value { "true," } else { "false," });
    }

    /// Adds a list of strings.
    pub fn strings<'a>(&mut self, name: &'static str, values: impl IntoIterator<Item = &'a str>) {
        self.name(name);
        let start = self.text.len();
        for value in values {
            self.text.push(',');
            push_string(&mut self.text, value);
        }
        if self.text.len() == start {
            self.text.push('[');
        } else {
            self.text.replace_range(start..=start, "[");
        }
        self.text.push_str("],");
    }

    /// The object.
    pub fn finish(mut self) -> RawObject<'static> {
        if self.text.ends_with(',') {
            self.text.pop();
        }
        self.text.push('}');
        RawObject::written(self.text)
    }

    fn name(&mut self, name: &'static str) {
        debug_assert!(!name.bytes().any(is_special), "{name}");
        self.text.push('"');
        self.text.push_str(name);
        self.text.push_str("\":");
    }
}

fn is_special(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

/// Appends a value of a type that always serialises to JSON.
pub(crate) fn push_json(text: &mut String, value: &impl Serialize) {
    text.push_str(&serde_json::to_string(value).expect("its type can always be written as JSON"));
}

/// Appends a JSON string.
pub(crate) fn push_string(text: &mut String, value: &str) {
    // The loop has no early exit, so that the compiler vectorises it.
    if value
        .bytes()
        .fold(false, |any, byte| any | is_special(byte))
    {
        push_json(text, &value);
    } else {
        text.push('"');
        text.push_str(value);
        text.push('"');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn members_of_all_kinds_are_written() {
        let mut object = ObjectWriter::with_capacity(0);
        object.string("a", "x");
        object.plain("b", 7);
        object.number("c", u64::MAX);
        object.bool("d", false);
        object.strings("e", []);
        object.strings("f", ["1", "\n"]);
        let expected =
            json!({"a": "x", "b": "7", "c": u64::MAX, "d": false, "e": [], "f": ["1", "\n"]});
        assert_eq!(object.finish().get(), expected.to_string());
        assert_eq!(ObjectWriter::with_capacity(0).finish().get(), "{}");
    }

    proptest! {
        #[test]
        fn strings_are_written_as_serde_json_writes_them(value in any::<String>(), plain in "[ -~]{0,40}") {
            for value in [value, plain] {
                let mut text = String::new();
                push_string(&mut text, &value);
                prop_assert_eq!(text, serde_json::to_string(&value).unwrap());
            }
        }
    }
}
