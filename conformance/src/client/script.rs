//! The script of a vector while it is played: which exchange answers a request, and what was wrong so far.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::reply::Reply;
use super::vector::ClientVector;
use super::view::{function_of, view};
use crate::mismatch::Mismatch;
use crate::template::Variables;

/// What a client may ask by itself, without a vector that says so.
const ALWAYS_ANSWERED: [&str; 3] = ["ping", "health", "capabilities"];

#[derive(Debug)]
pub(super) struct Script {
    vector: ClientVector,
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
        Self {
            vector,
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
        for (pointer, expected) in [
            ("/protocol/name", "\"forrst\""),
            ("/protocol/version", "\"0.1.0\""),
        ] {
            let found = request.pointer(pointer).unwrap_or(&Value::Null).to_string();
            if found != expected {
                progress.note(&format!("{at} {pointer}"), expected, &found);
            }
        }
        let id = request["id"].as_str().unwrap_or_default();
        if id.is_empty() || id.len() > 256 {
            let found = request["id"].to_string();
            progress.note(&format!("{at} /id"), "a string of 1 to 256 bytes", &found);
        }
        let exchanges = &self.vector.exchanges;
        let next = exchanges
            .iter()
            .zip(&progress.answered)
            .position(|(exchange, answered)| {
                exchange.on == function && exchange.at_most.is_none_or(|most| *answered < most)
            });
        let Some(index) = next else {
            let is_scripted = exchanges.iter().any(|exchange| exchange.on == function);
            if !is_scripted && ALWAYS_ANSWERED.contains(&function.as_str()) {
                return Reply::pong();
            }
            if !is_scripted && function == "watch" {
                return Reply::silence();
            }
            progress.note(&at, "no such request", &request["call"].to_string());
            return Reply::error("INVALID_ARGUMENTS");
        };
        let exchange = &exchanges[index];
        let since: BTreeMap<String, Duration> = progress
            .arrived
            .iter()
            .map(|(function, arrived)| (function.clone(), now - *arrived))
            .collect();
        let view = view(request, headers, &since);
        let mismatches = exchange
            .request
            .mismatches(Some(&view), &progress.variables);
        progress
            .mismatches
            .extend(mismatches.into_iter().map(|mismatch| Mismatch {
                at: format!("{at} {}", mismatch.at),
                ..mismatch
            }));
        for (name, pointer) in &exchange.capture {
            match view.pointer(pointer) {
                Some(value) => {
                    progress.variables.insert(name.clone(), value.clone());
                }
                None => progress.note(&format!("{at} {pointer}"), "a value", "nothing"),
            }
        }
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
    fn note(&mut self, at: &str, expected: &str, found: &str) {
        self.mismatches.push(Mismatch::new(at, expected, found));
    }
}
