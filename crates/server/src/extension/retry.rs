//! `retry`: a caller whose request failed learns whether and when to try again.

use async_trait::async_trait;
use forrst_protocol::{Duration, ErrorCode, Errors, Unit, Urn};
use serde_json::{Value, json};

use super::{Around, Extension, ExtensionCall, Next, Outcome};
use crate::Context;
use crate::fields::Fields;

pub(crate) struct Retry;

impl Extension for Retry {
    fn urn(&self) -> &'static str {
        "urn:forrst:ext:retry"
    }

    fn alias(&self) -> Option<&str> {
        Some("urn:cline:forrst:ext:retry")
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        Fields::read(call.options, call.pointer().key("options")).finish()?;
        Ok(Box::new(Run {
            urn: call.urn.clone(),
        }))
    }
}

struct Run {
    urn: Urn,
}

#[async_trait]
impl Around for Run {
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

/// A request with several errors may be repeated if each of them may pass.
fn guidance(errors: &Errors) -> Value {
    if !errors.iter().all(|error| error.code.is_retryable()) {
        return json!({"allowed": false});
    }
    let first = &errors.as_slice()[0];
    let (strategy, after, max_attempts) = match first.code {
        ErrorCode::RateLimited => ("fixed", Duration::new(1, Unit::Second), 3),
        ErrorCode::DeadlineExceeded => ("immediate", Duration::millis(0), 1),
        ErrorCode::LockAcquisitionFailed | ErrorCode::LockTimeout => {
            ("exponential", Duration::millis(100), 10)
        }
        ErrorCode::Unavailable => ("exponential", Duration::new(1, Unit::Second), 5),
        _ => ("exponential", Duration::new(1, Unit::Second), 3),
    };
    // Where the error itself knows better, it says so.
    let hint = first
        .details
        .as_ref()
        .and_then(|details| details.get("retry_after"));
    json!({
        "allowed": true,
        "strategy": strategy,
        "after": hint.cloned().unwrap_or_else(|| json!(after)),
        "max_attempts": max_attempts,
    })
}
