//! The script of a vector while it is played: which exchange answers a request, and what was wrong so far.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::reply::Reply;
use super::vector::{ClientVector, Exchange};
use super::view::{function_of, view};
use crate::mismatch::Mismatch;
use crate::pattern::Pattern;
use crate::template::Variables;

#[derive(Debug)]
pub(super) struct Script {
    vector: ClientVector,
    /// What every request has to be.
    envelope: Pattern,
    progress: Mutex<Progress>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Progress {
    /// How many requests each exchange has answered.
    answered: Vec<u32>,
    arrived: BTreeMap<String, Instant>,
    variables: Variables,
    mismatches: Vec<Mismatch>,
    requests: u32,
}

impl Script {
    pub(super) fn new(vector: ClientVector) -> Self {
        let progress = Progress {
            answered: vec![0; vector.exchanges.len()],
            ..Progress::default()
        };
        let envelope =
            json!({"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "$regex:."});
        Self {
            vector,
            envelope: Pattern::parse(&envelope).expect("it is a pattern"),
            progress: Mutex::new(progress),
            changed: Notify::new(),
        }
    }

    pub(super) fn vector(&self) -> &ClientVector {
        &self.vector
    }

    /// The reply to a request, which is compared with what the vector expects.
    pub(super) fn reply_to(&self, headers: &HeaderMap, request: &Value) -> Reply {
        let now = Instant::now();
        let mut progress = self.progress();
        progress.requests += 1;
        let at = format!("request {}", progress.requests);
        let Some(function) = function_of(request) else {
            progress.note(&at, "a Forrst request", &request.to_string());
            return Reply::error("INVALID_REQUEST");
        };
        let at = format!("{at} ({function})");
        progress.compare(&at, &self.envelope, request);
        let exchanges = &self.vector.exchanges;
        let next = exchanges
            .iter()
            .zip(&progress.answered)
            .position(|(exchange, answered)| {
                exchange.on == function && exchange.at_most.is_none_or(|most| *answered < most)
            });
        let Some(index) = next else {
            return self.unscripted(&function).unwrap_or_else(|| {
                progress.note(&at, "no such request", &request["call"].to_string());
                Reply::error("INVALID_ARGUMENTS")
            });
        };
        let exchange = &exchanges[index];
        let since: BTreeMap<String, Duration> = progress
            .arrived
            .iter()
            .map(|(function, arrived)| (function.clone(), now - *arrived))
            .collect();
        let view = view(request, headers, &since);
        progress.compare(&at, &exchange.request, &view);
        progress.capture(&at, exchange, &view);
        let mut reply = exchange.reply.clone();
        for (function, ms) in &reply.not_before {
            let passed = since.get(function).copied().unwrap_or_default();
            let left = Duration::from_millis(*ms).saturating_sub(passed);
            reply.delay = reply.delay.max(left);
        }
        progress.answered[index] += 1;
        progress.arrived.insert(function, now);
        drop(progress);
        self.changed.notify_waiters();
        reply
    }

    /// The reply to what a client may send by itself, unless the vector has it.
    fn unscripted(&self, function: &str) -> Option<Reply> {
        let mut exchanges = self.vector.exchanges.iter();
        if exchanges.any(|exchange| exchange.on == function) {
            return None;
        }
        match function {
            "ping" | "health" | "capabilities" => Some(Reply::pong()),
            "watch" => Some(Reply::silence()),
            _ => None,
        }
    }

    /// Notes a request that is not HTTP as the protocol has it.
    pub(super) fn note(&self, at: &str, expected: &str, found: &str) {
        self.progress().note(at, expected, found);
    }

    /// Waits until every required request has arrived.
    pub(super) async fn complete(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.missing(&self.progress()).is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Everything that is wrong, also with this outcome.
    pub(super) fn judge(&self, outcome: &Value) -> Vec<Mismatch> {
        let progress = self.progress();
        let mut mismatches = progress.mismatches.clone();
        mismatches.extend(self.missing(&progress));
        let outcomes = self
            .vector
            .outcome
            .mismatches(Some(outcome), &progress.variables);
        mismatches.extend(outcomes.into_iter().map(|mismatch| Mismatch {
            at: format!("outcome {}", mismatch.at),
            ..mismatch
        }));
        mismatches
    }

    fn missing(&self, progress: &Progress) -> Vec<Mismatch> {
        let exchanges = self.vector.exchanges.iter().zip(&progress.answered);
        exchanges
            .filter(|(exchange, answered)| **answered < exchange.at_least)
            .map(|(exchange, answered)| {
                let expected = format!("{} or more", exchange.at_least);
                Mismatch::new(
                    format!("requests to {}", exchange.on),
                    expected,
                    json!(answered).to_string(),
                )
            })
            .collect()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Notes where the request differs from the pattern.
    fn compare(&mut self, at: &str, pattern: &Pattern, found: &Value) {
        let mismatches = pattern.mismatches(Some(found), &self.variables);
        let placed = mismatches.into_iter().map(|mismatch| Mismatch {
            at: format!("{at} {}", mismatch.at),
            ..mismatch
        });
        self.mismatches.extend(placed);
    }

    fn capture(&mut self, at: &str, exchange: &Exchange, view: &Value) {
        for (name, pointer) in &exchange.capture {
            match view.pointer(pointer) {
                Some(value) => {
                    self.variables.insert(name.clone(), value.clone());
                }
                None => self.note(&format!("{at} {pointer}"), "a value", "nothing"),
            }
        }
    }

    fn note(&mut self, at: &str, expected: &str, found: &str) {
        self.mismatches.push(Mismatch::new(at, expected, found));
    }
}
