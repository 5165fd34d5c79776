//! JSON-RPC over a WebSocket, with one text frame per message.

use serde_json::{Value, json};

use super::template::SLOT;
use super::{Codec, Decoded, Template, excerpt, slot_of};

const FINAL_TEXT: u8 = 0x81;
const OPCODE: u8 = 0x0f;
const TEXT: u8 = 1;
const PING: u8 = 9;
const MASKED: u8 = 0x80;
/// Masking is required by the protocol; with zeros it leaves the payload unchanged.
const MASK: [u8; 4] = [0; 4];

pub(crate) struct WebSocket {
    path: String,
    is_open: bool,
    request: Template,
}

impl WebSocket {
    /// A JSON-RPC call of this method.
    pub(crate) fn call(path: &str, method: &str, params: &Value) -> Self {
        let call = json!({"jsonrpc": "2.0", "id": "ID", "method": method, "params": params});
        let call = call.to_string().replace("\"ID\"", SLOT);
        let length = u16::try_from(call.len()).expect("a short request");
        let mut frame = vec![FINAL_TEXT];
        if length < 126 {
            frame.push(MASKED | length.to_be_bytes()[1]);
        } else {
            frame.push(MASKED | 126);
            frame.extend(length.to_be_bytes());
        }
        frame.extend(MASK);
        frame.extend_from_slice(call.as_bytes());
        Self {
            path: path.to_owned(),
            is_open: false,
            request: Template::new(frame),
        }
    }
}

impl Codec for WebSocket {
    fn hello(&self) -> Vec<u8> {
        let path = &self.path;
        format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        .into_bytes()
    }

    fn is_ready(&self) -> bool {
        self.is_open
    }

    fn encode(&mut self, slot: usize, serial: u64, out: &mut Vec<u8>) {
        self.request.write(slot, serial, out);
    }

    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Decoded, String> {
        if !self.is_open {
            let Some(head) = memchr::memmem::find(input, b"\r\n\r\n") else {
                return Ok(Decoded::Incomplete);
            };
            if !input.starts_with(b"HTTP/1.1 101") {
                return Err(excerpt(input));
            }
            self.is_open = true;
            return Ok(Decoded::Other(head + 4));
        }
        let Some((start, length)) = payload(input) else {
            return Ok(Decoded::Incomplete);
        };
        let bytes = start + length;
        let Some(answer) = input.get(start..bytes) else {
            return Ok(Decoded::Incomplete);
        };
        match input[0] & OPCODE {
            TEXT => Ok(Decoded::Answer {
                bytes,
                slot: slot_of(answer)?,
            }),
            PING => {
                out.extend([0x8a, MASKED | input[1]]);
                out.extend(MASK);
                out.extend_from_slice(answer);
                Ok(Decoded::Other(bytes))
            }
            other => Err(format!(
                "the server sent a frame of type {other}: {}",
                excerpt(answer)
            )),
        }
    }
}

/// The start and the length of a frame's payload.
fn payload(input: &[u8]) -> Option<(usize, usize)> {
    match *input.get(1)? {
        126 => {
            let length = input.get(2..4)?.try_into().ok()?;
            Some((4, usize::from(u16::from_be_bytes(length))))
        }
        127 => {
            let length = input.get(2..10)?.try_into().ok()?;
            Some((10, usize::try_from(u64::from_be_bytes(length)).ok()?))
        }
        length => Some((2, usize::from(length))),
    }
}
