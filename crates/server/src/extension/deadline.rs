//! `deadline`: the call ends when its time is up.
//!
//! The wait for a lock and the function stop at the deadline themselves; the extension answers the caller in any case.

use std::sync::Arc;
use std::time::Duration as StdDuration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use forrst_protocol::{Duration, ErrorCode, ErrorObject, Errors, Pointer, Urn};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Around, Extension, ExtensionCall, Next, Outcome};
use crate::Context;
use crate::fields::Fields;

/// How long after its deadline to wait for a call that has not stopped.
const GRACE: StdDuration = StdDuration::from_millis(250);
/// Later deadlines are cut off here, because they would overflow the clock.
const MAX_TIME: StdDuration = StdDuration::from_secs(365 * 24 * 60 * 60);

pub(crate) struct DeadlineExtension;

impl Extension for DeadlineExtension {
    fn urn(&self) -> &'static str {
        "urn:forrst:ext:deadline"
    }

    fn alias(&self) -> Option<&str> {
        Some("urn:cline:forrst:ext:deadline")
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let at = call.pointer().key("options");
        let limit = read(Fields::read(call.options, at.clone()), at)?;
        Ok(Box::new(DeadlineCall {
            urn: call.urn.clone(),
            limit,
        }))
    }
}

/// The deadline as the caller specified it.
enum Limit {
    After(Duration, StdDuration),
    At(String, DateTime<Utc>),
}

/// `{value, unit}`; or `{timeout: {value, unit}}` or `{deadline: timestamp}`, as the PHP library sends them.
fn read(mut fields: Fields, at: Pointer) -> Result<Limit, Errors> {
    let timestamp = |value: &Value| {
        let text = value.as_str();
        let parsed = text.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let expected = "must be a timestamp such as `2026-01-31T12:00:00Z`";
        let parsed = parsed.ok_or(expected)?.with_timezone(&Utc);
        Ok(Limit::At(text.unwrap_or_default().to_owned(), parsed))
    };
    let spellings = ["value", "timeout", "deadline"];
    let mut named = spellings.into_iter().filter(|name| fields.has(name));
    if let (Some(one), Some(other)) = (named.next(), named.next()) {
        let why = format!(
            "cannot be combined with `{one}`: send `value` and `unit`, or `timeout`, or `deadline`"
        );
        let problem = ErrorObject::new(ErrorCode::InvalidArguments, format!("`{other}` {why}"));
        return Err(problem.at(at.key(other)).into());
    }
    let limit = if fields.has("timeout") {
        let timeout = fields.required_duration("timeout");
        timeout.map(|(duration, std)| Limit::After(duration, std))
    } else if fields.has("deadline") {
        fields.required("deadline", timestamp)
    } else if fields.peek("unit").as_deref() == Some("iso8601") {
        fields.optional("unit", |_| Ok(()));
        fields.required("value", timestamp)
    } else {
        let duration = fields.duration();
        duration.map(|(duration, std)| Limit::After(duration, std))
    };
    fields.finish_with(limit)
}

/// When a call has to end.
#[derive(Debug)]
pub struct Deadline {
    specified: Value,
    received: Instant,
    at: Instant,
}

impl Deadline {
    fn new(limit: &Limit, received: Instant) -> Self {
        let (specified, left) = match limit {
            Limit::After(duration, std) => (json!(duration), *std),
            Limit::At(text, at) => {
                let left = (*at - Utc::now()).to_std().unwrap_or_default();
                let left = left + received.elapsed();
                (json!({"value": text, "unit": "iso8601"}), left)
            }
        };
        Self {
            specified,
            received,
            at: received + left.min(MAX_TIME),
        }
    }

    /// A deadline at this time after the request was received.
    pub(crate) fn after(time: StdDuration, received: Instant) -> Self {
        Self::new(&Limit::After(Duration::from_std(time), time), received)
    }

    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Fails with the error of the answer if it has passed.
    pub(crate) fn check(&self) -> Result<(), ErrorObject> {
        match self.at <= Instant::now() {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    /// Whether the caller has got the error by now, even if the call still runs.
    pub(crate) fn has_been_answered(&self) -> bool {
        self.at + GRACE <= Instant::now()
    }

    /// Waits until it has passed, and returns the error.
    pub(crate) async fn passed(&self) -> ErrorObject {
        sleep_until(self.at).await;
        self.error()
    }

    fn error(&self) -> ErrorObject {
        ErrorObject::new(ErrorCode::DeadlineExceeded, "The deadline has passed")
            .with_detail("deadline", self.specified.clone())
            .with_detail("elapsed", json!(millis(self.received.elapsed())))
    }

    fn data(&self) -> Value {
        let elapsed = self.received.elapsed();
        let whole = self.at - self.received;
        let used = if whole.is_zero() {
            1.0
        } else {
            (elapsed.as_secs_f64() / whole.as_secs_f64()).min(1.0)
        };
        json!({
            "specified": self.specified,
            "elapsed": millis(elapsed),
            "remaining": millis(whole.saturating_sub(elapsed)),
            "utilization": (used * 1000.0).round() / 1000.0,
        })
    }
}

pub(crate) fn millis(time: StdDuration) -> Duration {
    Duration::millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

struct DeadlineCall {
    urn: Urn,
    limit: Limit,
}

#[async_trait]
impl Around for DeadlineCall {
    async fn run(self: Box<Self>, mut context: Context, next: Next) -> Outcome {
        let deadline = Arc::new(Deadline::new(&self.limit, context.call.received));
        context.deadline = Some(deadline.clone());
        let outcome = if let Err(error) = deadline.check() {
            next.fail(context, error).await
        } else {
            // The wait and the function stop at the deadline themselves; the timeout is for a function that blocks its thread.
            let outcome = timeout_at(deadline.at + GRACE, next.run(context)).await;
            outcome.unwrap_or_else(|_| Outcome::failure(deadline.error()))
        };
        outcome.with_data(self.urn, &deadline.data())
    }
}
