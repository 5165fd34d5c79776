//! The load generator's codecs: prebuilt requests, and just enough of each protocol to recognise an answer.
//!
//! Client and server share the machine, so CPU time that the load generator uses is not available to the server. Requests are therefore
//! templates with a few digits to fill in, and answers are searched rather than parsed.

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

/// What the received bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// No complete message yet.
    Incomplete,
    /// A message of this many bytes that is not an answer.
    Other(usize),
    /// An answer to the request of this slot.
    Answer { bytes: usize, slot: usize },
}

/// The client side of a protocol, with the state of one connection.
pub(crate) trait Codec: Send {
    /// The bytes that a client sends before its first request.
    fn hello(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Whether requests may be sent.
    fn is_ready(&self) -> bool {
        true
    }

    /// Appends the request of this slot. A slot is reused only after its answer has arrived.
    fn encode(&mut self, slot: usize, serial: u64, out: &mut Vec<u8>);

    /// Decodes the first message of the input, and appends a reply if the protocol requires one.
    ///
    /// # Errors
    ///
    /// An answer other than success, or a violation of the protocol.
    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Decoded, String>;
}

/// The slot, from the first `id` of an answer: all ids of a request are the same.
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

/// The beginning of an answer, for error messages.
fn excerpt(answer: &[u8]) -> String {
    let shown = &answer[..answer.len().min(400)];
    format!("the server answered {}", String::from_utf8_lossy(shown))
}
