//! HTTP/1.1 with one request in flight per connection.

use serde_json::Value;

use super::{Codec, Decoded, Template, excerpt};

pub(crate) struct Http1 {
    request: Template,
}

impl Http1 {
    pub(crate) fn post(path: &str, body: &Value) -> Self {
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        Self {
            request: Template::new(request.into_bytes()),
        }
    }
}

impl Codec for Http1 {
    fn encode(&mut self, slot: usize, serial: u64, out: &mut Vec<u8>) {
        self.request.write(slot, serial, out);
    }

    fn decode(&mut self, input: &[u8], _: &mut Vec<u8>) -> Result<Decoded, String> {
        let Some(head) = memchr::memmem::find(input, b"\r\n\r\n") else {
            return Ok(Decoded::Incomplete);
        };
        let length = content_length(&input[..head]).ok_or_else(|| excerpt(input))?;
        let bytes = head + 4 + length;
        if input.len() < bytes {
            return Ok(Decoded::Incomplete);
        }
        if !input.starts_with(b"HTTP/1.1 200") {
            return Err(excerpt(&input[head + 4..bytes]));
        }
        Ok(Decoded::Answer { bytes, slot: 0 })
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    let name = b"\r\ncontent-length: ";
    let at = memchr::memmem::find(head, name)? + name.len();
    let digits = head[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0')))
}
