//! JSON prefixed by its length in four bytes, the protocol of the unix socket.

use serde_json::Value;

use super::{Codec, Decoded, Template, slot_of};

pub(crate) struct Frames {
    request: Template,
}

impl Frames {
    pub(crate) fn new(body: &Value) -> Self {
        let body = body.to_string();
        let length = u32::try_from(body.len()).expect("a short request");
        let frame = [&length.to_be_bytes(), body.as_bytes()].concat();
        Self {
            request: Template::new(frame),
        }
    }
}

impl Codec for Frames {
    fn encode(&mut self, slot: usize, serial: u64, out: &mut Vec<u8>) {
        self.request.write(slot, serial, out);
    }

    fn decode(&mut self, input: &[u8], _: &mut Vec<u8>) -> Result<Decoded, String> {
        let Some(length) = input.first_chunk::<4>() else {
            return Ok(Decoded::Incomplete);
        };
        let bytes = 4 + u32::from_be_bytes(*length) as usize;
        let Some(answer) = input.get(4..bytes) else {
            return Ok(Decoded::Incomplete);
        };
        let slot = slot_of(answer)?;
        Ok(Decoded::Answer { bytes, slot })
    }
}
