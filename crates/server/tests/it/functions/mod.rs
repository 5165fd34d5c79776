//! Test functions that can be observed and blocked: `test.echo`, `test.gate`, `test.sleep`, `test.fail`, `test.panic`,
//! `test.context`, `test.big`.
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_server::{Context, FunctionError, ServerBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

/// A record of what functions did, and the gate at which `test.gate` waits.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    started: Arc<AtomicUsize>,
    returned: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
    gate: Arc<Gate>,
    pub(crate) notes: Arc<Mutex<Vec<String>>>,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Seen {
    /// Counts the start of a function, and its end.
    pub(crate) fn run(&self) -> Running {
        self.started.fetch_add(1, Ordering::SeqCst);
        Running {
            seen: self.clone(),
            has_returned: false,
        }
    }

    pub(crate) fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    /// How many functions ran to completion.
    pub(crate) fn returned(&self) -> usize {
        self.returned.load(Ordering::SeqCst)
    }

    /// How many functions were dropped before their end.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Lets one `test.gate` pass.
    pub(crate) fn open_gate(&self) {
        self.gate.0.add_permits(1);
    }

    pub(crate) async fn pass_gate(&self) {
        self.gate.0.acquire().await.unwrap().forget();
    }

    pub(crate) fn note(&self, what: impl Into<String>) {
        self.notes.lock().unwrap().push(what.into());
    }

    pub(crate) fn has_noted(&self, what: &str) -> bool {
        self.notes.lock().unwrap().iter().any(|note| note == what)
    }
}

/// A function under way.
pub(crate) struct Running {
    seen: Seen,
    has_returned: bool,
}

impl Running {
    pub(crate) fn returns(mut self) {
        self.has_returned = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let counter = if self.has_returned {
            &self.seen.returned
        } else {
            &self.seen.dropped
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

type Any = Map<String, Value>;

#[derive(Deserialize, JsonSchema)]
struct Sleep {
    ms: u64,
}

#[derive(Deserialize, JsonSchema)]
struct Big {
    bytes: usize,
}

#[derive(Deserialize, JsonSchema)]
struct Fail {
    code: Option<String>,
}

/// Registers all of them.
pub(crate) fn register(builder: ServerBuilder, seen: &Seen) -> ServerBuilder {
    let (for_echo, for_gate, for_sleep) = (seen.clone(), seen.clone(), seen.clone());
    builder
        .function("test.echo", "1.0.0", move |_, arguments: Any| {
            let running = for_echo.run();
            async move {
                running.returns();
                Ok(arguments)
            }
        })
        .function("test.gate", "1.0.0", move |context: Context, _: Any| {
            let seen = for_gate.clone();
            async move {
                let running = seen.run();
                seen.pass_gate().await;
                running.returns();
                let fence = context.lease().map(|lease| lease.fence().to_string());
                Ok(json!({"fence": fence}))
            }
        })
        .function("test.sleep", "1.0.0", move |_, Sleep { ms }: Sleep| {
            let seen = for_sleep.clone();
            async move {
                let running = seen.run();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                running.returns();
                Ok(json!({"slept": ms}))
            }
        })
        .function("test.fail", "1.0.0", async |_, Fail { code }: Fail| {
            let code = code.as_deref().unwrap_or("TEST_FAILED");
            Err::<Value, _>(FunctionError::application(code, "as asked for"))
        })
        .function("test.panic", "1.0.0", async |_, _: Any| {
            panics().await.map(|()| Value::Null)
        })
        .function("test.big", "1.0.0", async |_, Big { bytes }: Big| {
            Ok("x".repeat(bytes))
        })
        .function("test.context", "1.0.0", async |context: Context, _: Any| {
            Ok(describe(&context))
        })
}

async fn panics() -> Result<(), FunctionError> {
    tokio::task::yield_now().await;
    panic!("as the test wants it")
}

fn describe(context: &Context) -> Value {
    let remaining = context.remaining();
    let trace = context.trace();
    json!({
        "id": context.request_id().as_str(),
        "function": context.function().as_str(),
        "version": context.version().to_string(),
        "context": context.caller_context().map(|context| context.get().to_owned()),
        "remaining_ms": remaining.map(|remaining| u64::try_from(remaining.as_millis()).unwrap()),
        "trace": trace.map(|trace| json!({
            "trace_id": trace.trace_id,
            "span_id": trace.span_id,
            "parent_span_id": trace.parent_span_id,
            "baggage": trace.baggage,
        })),
        "lease": context.lease().map(|lease| json!({
            "fence": lease.fence().to_string(),
            "owner": lease.owner(),
            "key": lease.key(),
            "keys": lease.keys().collect::<Vec<_>>(),
            "is_lost": lease.is_lost(),
        })),
    })
}
