//! Requests that differ only in a few digits, so that sending one is a copy.

use serde_json::{Value, json};

/// The placeholder of the slot, in ids.
pub(crate) const SLOT: &str = "1%slot%%";
/// The placeholder of the serial number, in keys; it is different for each request of a run.
pub(crate) const SERIAL: &str = "%%%%serial%%%%%%";

/// A request with placeholders for digits.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    slots: Vec<usize>,
    serials: Vec<usize>,
}

impl Template {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let all = |what: &str| memchr::memmem::find_iter(&bytes, what.as_bytes()).collect();
        Self {
            slots: all(SLOT),
            serials: all(SERIAL),
            bytes,
        }
    }

    pub(crate) fn write(&self, slot: usize, serial: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let mut fill = |positions: &[usize], width: usize, number: u64| {
            for position in positions {
                let position = start + position;
                write_digits(&mut out[position..position + width], number);
            }
        };
        // An id begins with a 1, because as a number in JSON-RPC it cannot begin with a 0.
        let first_id = 10_u64.pow(SLOT.len() as u32 - 1);
        fill(&self.slots, SLOT.len(), first_id + slot as u64);
        fill(&self.serials, SERIAL.len(), serial);
    }
}

fn write_digits(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}

pub(super) fn read_slot(digits: &[u8]) -> Option<usize> {
    let digits = digits.get(1..SLOT.len())?;
    digits.iter().try_fold(0, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        Some(number * 10 + usize::from(digit))
    })
}

/// A call of `demo.echo` without a lock.
pub(crate) fn echo() -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": SLOT,
        "call": {"function": "demo.echo", "arguments": {"said": "hello"}},
    })
}

/// A call of `demo.echo` under a lock, waiting for it if `wait_seconds` is given.
pub(crate) fn locked_echo(key: &str, wait_seconds: Option<u64>) -> Value {
    let mut options = json!({"key": key, "ttl": {"value": 30, "unit": "second"}});
    if let Some(seconds) = wait_seconds {
        options["block"] = json!({"value": seconds, "unit": "second"});
    }
    let mut request = echo();
    request["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": options}]);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_fills_in_every_placeholder() {
        let text = format!("{{\"id\":{SLOT},\"x\":\"{SLOT}\",\"key\":\"{SERIAL}\"}}");
        let mut out = b"before".to_vec();
        Template::new(text.into_bytes()).write(42, 7_000_000_001, &mut out);
        let filled = String::from_utf8(out).unwrap();
        let expected = "before{\"id\":10000042,\"x\":\"10000042\",\"key\":\"0000007000000001\"}";
        assert_eq!(filled, expected);
        assert_eq!(super::super::slot_of(filled.as_bytes()), Ok(42));
    }
}
