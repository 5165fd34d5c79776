//! What `forrst run` and its guard tell each other, one JSON document a line.

use std::io;

use serde::{Deserialize, Serialize};

use super::plan::Limits;

/// From `forrst run` to the guard.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// The command may begin.
    Begin,
    /// The lease was renewed: so long the command may go on.
    Lease(Limits),
    /// The lease is gone: end the command now.
    End(Limits),
    /// Pass this signal on.
    Signal(i32),
}

/// From the guard to `forrst run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// The command is ready to begin; its process group has this number.
    Ready(i32),
    /// There can be no process for it.
    NotStarted(String),
    /// A signal has stopped it, not ended it.
    Stopped(i32),
    /// The lease ran out, and so the guard has begun to end it.
    RanOut,
    /// It has ended with this code, and nothing is left of its process group.
    Exited(i32),
    /// The same, by a signal.
    Killed(i32),
}

/// One line for a message.
pub(super) fn written(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The message of a line.
pub(super) fn read<'line, M: Deserialize<'line>>(line: &'line str) -> io::Result<M> {
    serde_json::from_str(line).map_err(io::Error::from)
}
