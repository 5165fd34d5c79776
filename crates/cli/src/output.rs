//! What commands print: JSON for programs, tables for people, colours on a terminal, and no control characters that a client sent.

mod pretty;
mod table;
mod when;

use std::io::{self, Write};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::CommandError;

pub(crate) use pretty::pretty;
pub(crate) use table::Table;
pub(crate) use when::{ServerTime, ago, in_time};

/// Prints to standard output, without colours if that is not a terminal or `NO_COLOR` is set.
///
/// A reader that closes the pipe early, as `head` does, is not an error. Any other failure is.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    let mut out = anstream::stdout().lock();
    check_written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Turns a failure to write to standard output into an error, unless the reader has closed the pipe.
pub(crate) fn check_written(written: io::Result<()>) -> Result<(), CommandError> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::local(
            format!("standard output cannot be written to: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Prints to standard error, in the same way. A failure cannot be reported anywhere.
pub(crate) fn print_error(text: &str) {
    let mut out = anstream::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints JSON as it was received, on one line.
pub(crate) fn print_json(json: &RawValue) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    check_written(writeln!(out, "{}", json.get()).and_then(|()| out.flush()))
}

/// Prints anything as JSON on one line.
pub(crate) fn print_value(value: &impl Serialize) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    let json = serde_json::to_string(value).unwrap_or_default();
    check_written(writeln!(out, "{json}").and_then(|()| out.flush()))
}

/// Escapes control characters, which could control the terminal: keys, owners and messages come from other clients.
pub(crate) fn sanitized(text: &str) -> String {
    let is_harmful = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_harmful) {
        return text.to_owned();
    }
    let shown = text.chars().map(|c| match c {
        c if is_harmful(c) => c.escape_default().to_string(),
        c => c.to_string(),
    });
    shown.collect()
}

/// Quotes a word for a shell, if it needs quotes.
pub(crate) fn quoted(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_-+=:,./@%".contains(c);
    if !text.is_empty() && text.chars().all(is_safe) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_shell_are_quoted() {
        assert_eq!(quoted("lock:export:orders"), "lock:export:orders");
        assert_eq!(quoted("--owner=me"), "--owner=me");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME; rm"), r"'it'\''s $HOME; rm'");
        assert_eq!(quoted("ü"), "'ü'");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(sanitized("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb\nc");
        assert_eq!(sanitized("schön"), "schön");
    }
}
