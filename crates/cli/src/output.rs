//! What commands print: JSON for programs, tables for people, colours on a terminal.

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

/// Prints to standard output; colours are left out where it is no terminal, or `NO_COLOR` is set.
///
/// Whoever reads it may have seen enough and gone, as `head` does: that is no error. Any other failure is one.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    let mut out = anstream::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of writing to standard output.
pub(crate) fn written(written: io::Result<()>) -> Result<(), CommandError> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::local(
            format!("standard output cannot be written to: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Prints to standard error, in the same way. Nobody can be told where that fails.
pub(crate) fn complain(text: &str) {
    let mut out = anstream::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints JSON as it was received, on one line.
pub(crate) fn print_json(json: &RawValue) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    written(writeln!(out, "{}", json.get()).and_then(|()| out.flush()))
}

/// Prints anything as JSON on one line.
pub(crate) fn print_value(value: &impl Serialize) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    let json = serde_json::to_string(value).unwrap_or_default();
    written(writeln!(out, "{json}").and_then(|()| out.flush()))
}

/// The same text without what could steer a terminal: keys, owners and messages are what somebody has sent.
pub(crate) fn plain(text: &str) -> String {
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

/// One word of a shell's command line.
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
    fn what_a_shell_would_read_otherwise_is_quoted() {
        assert_eq!(quoted("lock:export:orders"), "lock:export:orders");
        assert_eq!(quoted("--owner=me"), "--owner=me");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME; rm"), r"'it'\''s $HOME; rm'");
        assert_eq!(quoted("ü"), "'ü'");
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb\nc");
        assert_eq!(plain("schön"), "schön");
    }
}
