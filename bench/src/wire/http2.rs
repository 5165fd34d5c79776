//! HTTP/2 with prior knowledge: many streams of one connection, each with the same headers.
//!
//! The header block is encoded once, without the dynamic table, so that no HPACK encoder is needed. Of an answer only the
//! status and the end of the stream are read.

use serde_json::Value;

use super::{Codec, Decoded, Template};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;
/// The flow-control window, which is extended when half of it is used.
const WINDOW: u32 = 1 << 30;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` of the static table.
const STATUS_200: u8 = 0x88;

pub(crate) struct Http2 {
    headers: Vec<u8>,
    body: Template,
    body_length: usize,
    next_stream: u32,
    /// The stream of each slot.
    streams: Vec<u32>,
    unacknowledged: u32,
}

impl Http2 {
    pub(crate) fn post(path: &str, body: &Value) -> Self {
        let body = body.to_string().into_bytes();
        // Indexed `:method: POST` and `:scheme: http`; the others by the index of their name.
        let mut headers = vec![0x83, 0x86];
        literal(&mut headers, 1, "localhost");
        literal(&mut headers, 4, path);
        literal(&mut headers, 31, "application/json");
        literal(&mut headers, 28, &body.len().to_string());
        Self {
            headers,
            body_length: body.len(),
            body: Template::new(body),
            next_stream: 1,
            streams: Vec::new(),
            unacknowledged: 0,
        }
    }
}

/// A header without indexing, whose name is in the static table.
fn literal(block: &mut Vec<u8>, name: u8, value: &str) {
    match name.checked_sub(15) {
        None => block.push(name),
        Some(rest) => block.extend([15, rest]),
    }
    block.push(u8::try_from(value.len()).expect("a short header"));
    block.extend_from_slice(value.as_bytes());
}

fn frame_header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = u32::try_from(length).expect("a short frame").to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
}

impl Codec for Http2 {
    fn hello(&self) -> Vec<u8> {
        let mut hello = PREFACE.to_vec();
        frame_header(&mut hello, 0, SETTINGS, 0, 0);
        frame_header(&mut hello, 4, WINDOW_UPDATE, 0, 0);
        hello.extend(WINDOW.to_be_bytes());
        hello
    }

    fn encode(&mut self, slot: usize, serial: u64, out: &mut Vec<u8>) {
        let stream = self.next_stream;
        self.next_stream += 2;
        if self.streams.len() <= slot {
            self.streams.resize(slot + 1, 0);
        }
        self.streams[slot] = stream;
        frame_header(out, self.headers.len(), HEADERS, END_HEADERS, stream);
        out.extend_from_slice(&self.headers);
        frame_header(out, self.body_length, DATA, END_STREAM, stream);
        self.body.write(slot, serial, out);
    }

    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Decoded, String> {
        let Some(&[l0, l1, l2, kind, flags, s0, s1, s2, s3]) = input.first_chunk::<HEADER>() else {
            return Ok(Decoded::Incomplete);
        };
        let bytes = HEADER + u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        let Some(payload) = input.get(HEADER..bytes) else {
            return Ok(Decoded::Incomplete);
        };
        match kind {
            HEADERS if payload.first() != Some(&STATUS_200) => {
                return Err("the server answered with a status other than 200".to_owned());
            }
            DATA => {
                self.unacknowledged += u32::from_be_bytes([0, l0, l1, l2]);
                if self.unacknowledged > WINDOW / 2 {
                    frame_header(out, 4, WINDOW_UPDATE, 0, 0);
                    out.extend(self.unacknowledged.to_be_bytes());
                    self.unacknowledged = 0;
                }
            }
            SETTINGS if flags & ACK == 0 => frame_header(out, 0, SETTINGS, ACK, 0),
            PING if flags & ACK == 0 => {
                frame_header(out, payload.len(), PING, ACK, 0);
                out.extend_from_slice(payload);
            }
            RST_STREAM | GOAWAY => {
                let what = if kind == GOAWAY {
                    "connection"
                } else {
                    "stream"
                };
                return Err(format!("the server closed the {what}: {payload:?}"));
            }
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            let slot = self.streams.iter().position(|open| *open == stream);
            let slot = slot.ok_or_else(|| format!("an answer on the unknown stream {stream}"))?;
            return Ok(Decoded::Answer { bytes, slot });
        }
        Ok(Decoded::Other(bytes))
    }
}
