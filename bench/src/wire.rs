//! The load generator's side of the wire: prebuilt requests, and just enough of each protocol to recognise an answer.
//!
//! Client and server share the machine, so every microsecond the generator takes is one that the server does not get. It
//! therefore parses nothing that it can compare, and builds nothing twice.

mod frames;
mod http1;
mod http2;
mod template;
mod websocket;

pub(crate) use frames::Frames;
pub(crate) use http1::Http1;
pub(crate) use http2::Http2;
pub(crate) use template::{SERIAL, SLOT, Template, echo, locked_echo};
pub(crate) use websocket::WebSocket;

/// What the bytes that have arrived begin with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// Nothing whole yet.
    Incomplete,
    /// This many bytes that are not an answer.
    Other(usize),
    /// An answer to the request of this slot.
    Answer { bytes: usize, slot: usize },
}

/// A protocol, as one connection speaks it.
pub(crate) trait Codec: Send {
    /// What a client sends before its first request.
    fn hello(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Whether requests may be sent.
    fn is_ready(&self) -> bool {
        true
    }

    /// Appends the request of this slot. A slot is used again only when its answer has come.
    fn encode(&mut self, slot: usize, serial: u64, out: &mut Vec<u8>);

    /// Reads the beginning of what has arrived, and appends what the protocol wants to be sent in return.
    ///
    /// # Errors
    ///
    /// An answer other than success, and whatever breaks the protocol.
    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Decoded, String>;
}

/// The slot is the number in the first `id` of an answer: all ids of a request are the same.
fn slot_of(answer: &[u8]) -> Result<usize, String> {
    if memchr::memmem::find(answer, b"\"errors\":[").is_some()
        || memchr::memmem::find(answer, b"\"error\":{").is_some()
    {
        return Err(excerpt(answer));
    }
    let digits = memchr::memmem::find(answer, b"\"id\":").map(|at| &answer[at + 5..]);
    let digits = digits.map(|text| text.strip_prefix(b"\"").unwrap_or(text));
    let slot = digits.and_then(template::read_slot);
    slot.ok_or_else(|| excerpt(answer))
}

/// What an error shows of an answer.
fn excerpt(answer: &[u8]) -> String {
    let shown = &answer[..answer.len().min(400)];
    format!("the server answered {}", String::from_utf8_lossy(shown))
}
