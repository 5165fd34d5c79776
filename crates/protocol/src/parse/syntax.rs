//! The byte at which a text stops being JSON.
//!
//! `serde_json` names a line and a column, which point one past the byte that it read last. That is nearly always the offending
//! byte. The exceptions are corrected here, so that `source.position` is always the length of the longest prefix of the body that
//! could still become JSON. `serde_json` has no codes for its errors, so they are recognised by their messages; the tests compare
//! every position with that of an independent search.

use serde::de::IgnoredAny;
use serde_json::error::Category;

use crate::{ErrorCode, ErrorObject};

pub(super) fn not_utf8(position: usize) -> ErrorObject {
    parse_error(position, "not UTF-8")
}

pub(super) fn not_json(text: &str, error: &serde_json::Error) -> ErrorObject {
    let position = position(text.as_bytes(), error);
    let described = error.to_string();
    let reason = described
        .rsplit_once(" at line ")
        .map_or(described.as_str(), |(reason, _)| reason);
    parse_error(position, reason)
}

fn parse_error(position: usize, reason: &str) -> ErrorObject {
    let message = format!("Invalid JSON at byte {position}: {reason}");
    ErrorObject::new(ErrorCode::ParseError, message).at_position(position)
}

fn position(body: &[u8], error: &serde_json::Error) -> usize {
    let is = |reason: &str| error.to_string().starts_with(reason);
    if error.classify() == Category::Eof {
        return bad_hex_digit_before(body, body.len()).unwrap_or(body.len());
    }
    let read = (start_of_line(body, error.line()) + error.column()).min(body.len());
    if is("control character") {
        return read; // not consumed when the error is made
    }
    if is("invalid number") && read == body.len() && ends_in_half_a_number(body) {
        return read;
    }
    if is("invalid escape") {
        return bad_hex_digit_before(body, read).unwrap_or(read.saturating_sub(1));
    }
    read.saturating_sub(1)
}

fn start_of_line(body: &[u8], line: usize) -> usize {
    let mut newlines = body.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    match line.checked_sub(2) {
        None => 0,
        Some(before) => newlines.nth(before).map_or(0, |(index, _)| index + 1),
    }
}

/// The four digits of `\u` are read as one, so the fault may be with any of the last few bytes before `end`; at the
/// end of the body `serde_json` finds that four bytes are missing before it looks at those that are there.
fn bad_hex_digit_before(body: &[u8], end: usize) -> Option<usize> {
    let digits = (0..=4)
        .rev() // the earliest fault counts
        .filter_map(|count| end.checked_sub(count))
        .find(|start| body[..*start].ends_with(b"\\u") && is_escaping(&body[..*start - 1]))?;
    (digits..end).find(|index| !body[*index].is_ascii_hexdigit())
}

/// Whether the last backslash of a text escapes what follows, and is not itself escaped.
fn is_escaping(text: &[u8]) -> bool {
    let backslashes = text.iter().rev().take_while(|byte| **byte == b'\\').count();
    backslashes % 2 == 1
}

/// Whether the body breaks off within a number, so that one more digit would make it whole.
fn ends_in_half_a_number(body: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let start = body
        .iter()
        .rposition(|byte| !is_part(byte))
        .map_or(0, |last| last + 1);
    let half = &body[start..];
    let whole = [half, b"0"].concat();
    !half.is_empty() && serde_json::from_slice::<IgnoredAny>(&whole).is_ok()
}
