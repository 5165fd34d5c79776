//! Compares an answer with what its step expects, and with the rules that hold for every answer.

use std::time::Duration;

use serde_json::Value;

use crate::mismatch::{Mismatch, shortened, shown};
use crate::rules::{self, Id};
use crate::template::Variables;
use crate::transport::{Answer, unframed};
use crate::vector::{Expect, Message, Profile, Transport};

/// The request that an answer belongs to.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) message: &'a Message,
    pub(crate) transport: Transport,
    pub(crate) profile: Profile,
    pub(crate) id: Id,
}

/// An answer, as far as it could be parsed.
#[derive(Debug)]
pub(crate) struct Checked {
    /// The Forrst response, or the JSON-RPC frame where the step sent one.
    pub(crate) body: Option<Value>,
    pub(crate) mismatches: Vec<Mismatch>,
}

pub(crate) fn check(
    sent: &Sent<'_>,
    expect: &Expect,
    answer: &Answer,
    variables: &Variables,
) -> Checked {
    let mut mismatches = Vec::new();
    note_time(expect, answer.elapsed, &mut mismatches);
    if expect.nothing {
        if !answer.body.is_empty() {
            let found = String::from_utf8_lossy(&answer.body);
            mismatches.push(Mismatch::new("", "no answer", shortened(&found)));
        }
        return Checked {
            body: None,
            mismatches,
        };
    }
    let body = match read(sent, &answer.body) {
        Ok(body) => Some(body),
        Err(mismatch) => {
            if expect.body.is_some() || sent.is_envelope() {
                mismatches.push(mismatch);
            }
            None
        }
    };
    if let (Some(pattern), Some(body)) = (&expect.body, &body) {
        mismatches.extend(pattern.mismatches(Some(body), variables));
    }
    if let Some(body) = body.as_ref().filter(|_| sent.is_answered_by_forrst(expect)) {
        mismatches.extend(rules::mismatches(body, &sent.id, sent.profile));
        if sent.transport == Transport::Http && sent.profile == Profile::Extended {
            mismatches.extend(rules::http_mismatches(answer, body, expect.status));
        }
    } else if let Some(expected) = expect.status
        && sent.transport == Transport::Http
        && answer.status != Some(expected)
    {
        let found = format!("{:?}", answer.status);
        mismatches.push(Mismatch::new("status", expected.to_string(), found));
    }
    if sent.transport == Transport::Http {
        note_headers(expect, answer, variables, &mut mismatches);
    }
    Checked { body, mismatches }
}

impl Sent<'_> {
    fn is_envelope(&self) -> bool {
        matches!(
            self.message,
            Message::Envelope(_) | Message::EnvelopeText(_)
        )
    }

    /// The HTTP layer may reject a raw HTTP request before it is read as Forrst; then the vector expects no body.
    fn is_answered_by_forrst(&self, expect: &Expect) -> bool {
        match self.message {
            Message::Envelope(_) | Message::EnvelopeText(_) => true,
            Message::Http(http) => http.path == "/forrst" && expect.body.is_some(),
            Message::Frame(_) | Message::FrameText(_) => false,
        }
    }
}

fn read(sent: &Sent<'_>, bytes: &[u8]) -> Result<Value, Mismatch> {
    let text = || shortened(&String::from_utf8_lossy(bytes));
    let body: Value =
        serde_json::from_slice(bytes).map_err(|_| Mismatch::new("", "JSON", text()))?;
    if sent.transport == Transport::Http || !sent.is_envelope() {
        return Ok(body);
    }
    match unframed(&body) {
        Some(response) => Ok(response.clone()),
        None => Err(Mismatch::new("", "a JSON-RPC result", text())),
    }
}

fn note_time(expect: &Expect, elapsed: Duration, mismatches: &mut Vec<Mismatch>) {
    let found = || format!("after {elapsed:?}");
    if let Some(at_least) = expect.at_least.filter(|at_least| elapsed < *at_least) {
        let expected = format!("an answer not before {at_least:?}");
        mismatches.push(Mismatch::new("time", expected, found()));
    }
    if let Some(at_most) = expect.at_most.filter(|at_most| elapsed > *at_most) {
        let expected = format!("an answer within {at_most:?}");
        mismatches.push(Mismatch::new("time", expected, found()));
    }
}

fn note_headers(
    expect: &Expect,
    answer: &Answer,
    variables: &Variables,
    mismatches: &mut Vec<Mismatch>,
) {
    for (name, pattern) in &expect.headers {
        let found = answer.header(name).map(Value::from);
        for mismatch in pattern.mismatches(found.as_ref(), variables) {
            let at = format!("header {name}");
            mismatches.push(Mismatch::new(at, mismatch.expected, shown(found.as_ref())));
        }
    }
}
