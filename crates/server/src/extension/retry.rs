//! `retry`: the answer to a failed request says whether and when to retry it.

use std::time::Duration as StdDuration;

use async_trait::async_trait;
use forrst_protocol::{Duration, ErrorCode, ErrorObject, Errors, Unit, Urn};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Around, Extension, ExtensionCall, Next, Outcome};
use crate::Context;
use crate::fields::Fields;

pub(crate) struct Retry;

impl Retry {
    pub(crate) const URN: &'static str = "urn:forrst:ext:retry";
    pub(crate) const ALIAS: &'static str = "urn:cline:forrst:ext:retry";
}

impl Extension for Retry {
    fn urn(&self) -> &'static str {
        Self::URN
    }

    fn alias(&self) -> Option<&str> {
        Some(Self::ALIAS)
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        Fields::read(call.options, call.pointer().key("options")).finish()?;
        Ok(Box::new(RetryCall {
            urn: call.urn.clone(),
        }))
    }
}

struct RetryCall {
    urn: Urn,
}

#[async_trait]
impl Around for RetryCall {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        let outcome = next.run(context).await;
        match &outcome.result {
            Ok(_) => outcome,
            Err(errors) => {
                let data = guidance(errors);
                outcome.with_data(self.urn, &data)
            }
        }
    }
}

/// A request with several errors may be retried if all of them are retryable.
pub(crate) fn guidance(errors: &Errors) -> Value {
    if !errors.iter().all(|error| error.code.is_retryable()) {
        return json!({"allowed": false});
    }
    let first = &errors.as_slice()[0];
    let (strategy, after, max_attempts) = match first.code {
        ErrorCode::RateLimited => ("fixed", StdDuration::from_secs(1), 3),
        ErrorCode::DeadlineExceeded => ("immediate", StdDuration::ZERO, 1),
        ErrorCode::LockAcquisitionFailed | ErrorCode::LockTimeout => {
            ("exponential", StdDuration::from_millis(100), 10)
        }
        ErrorCode::Unavailable => ("exponential", StdDuration::from_secs(1), 5),
        _ => ("exponential", StdDuration::from_secs(1), 3),
    };
    // An error with a `retry_after` of its own is more precise.
    let after = retry_after(first).unwrap_or(after);
    json!({
        "allowed": true,
        "strategy": strategy,
        "after": Duration::new(whole_seconds(after), Unit::Second),
        "max_attempts": max_attempts,
    })
}

/// The `retry_after` of an error.
pub(crate) fn retry_after(error: &ErrorObject) -> Option<StdDuration> {
    let hint = error.details.as_ref()?.get("retry_after")?;
    Duration::deserialize(hint).ok()?.to_std().ok()
}

/// Rounded up, and at least one: the protocol counts pauses in whole seconds.
pub(crate) fn whole_seconds(time: StdDuration) -> u64 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    seconds.max(1)
}
