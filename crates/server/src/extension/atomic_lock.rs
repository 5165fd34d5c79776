//! `atomicLock`: the function runs while the caller holds a lock, and only then.
//!
//! This is the one place where the wire and the lock domain meet: options become a name, an owner and a ttl, and outcomes
//! become answers.

mod keys;
mod options;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::{AcquireOutcome, AcquireRequest, Lease, LeaseGuard, ReleaseOutcome};
use forrst_protocol::{ErrorObject, Errors, Urn};
use serde_json::{Map, Value};
use tracing::Instrument;

pub(crate) use self::keys::full_keys;
pub(crate) use self::options::{LockOptions, read_ttl};
use self::refusal::{failed, refusal, too_many_locks};
use super::{Around, Extension, ExtensionCall, Next, Outcome, exceeded};
use crate::Context;
use crate::context::HeldLease;
use crate::error::unavailable;
use crate::fields::Fields;
use crate::limits::{Limits, Refusal};
use crate::span;
use crate::time::timestamp;

pub(crate) struct AtomicLock {
    pub(crate) limits: Arc<Limits>,
}

impl AtomicLock {
    pub(crate) const URN: &'static str = "urn:forrst:ext:atomicLock";
}

impl Extension for AtomicLock {
    fn urn(&self) -> &str {
        Self::URN
    }

    fn alias(&self) -> Option<&str> {
        Some("urn:cline:forrst:ext:atomic-lock")
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let at = call.pointer.clone().key("options");
        let fields = Fields::read(call.options, at);
        let options = LockOptions::read(fields, call.function, &self.limits)?;
        let _ = call
            .locks
            .set(options.keys.locks.names().cloned().collect());
        options.keys.check(call.caller, &options.at)?;
        Ok(Box::new(Run {
            urn: call.urn.clone(),
            options,
        }))
    }
}

struct Run {
    urn: Urn,
    options: LockOptions,
}

#[async_trait]
impl Around for Run {
    async fn run(self: Box<Self>, mut context: Context, next: Next) -> Outcome {
        let Self { urn, options } = *self;
        let deadline = context.deadline.clone();
        let acquired = tokio::select! {
            biased;
            // A lock for a function that is not going to run would be held for nothing.
            () = context.server.stop.cancelled() => Err(unavailable("The server is shutting down")),
            acquired = acquire(&context, &options) => acquired,
            error = exceeded(deadline.as_deref()) => Err(error),
        };
        let mut guard = match acquired {
            Ok(guard) => guard,
            Err(error) => {
                let mut data = Map::new();
                options.keys.echo_keys(&mut data);
                data.insert("acquired".to_owned(), false.into());
                return Outcome::failure(error).with_data(urn, &data);
            }
        };
        if options.renew {
            guard.renew(options.ttl);
        }
        context.lease = Some(HeldLease::new(
            guard.lease(),
            options.keys.names().cloned().collect(),
            guard.loss(),
        ));
        // From here on the caller may hang up: the function ends in peace, and then the lock is released.
        let server = context.server.clone();
        let held = server.held.clone();
        let work = |context: Context| async move {
            let caller = context.clone();
            let running = next.run(context);
            tokio::pin!(running);
            let outcome = if options.renew {
                tokio::select! {
                    biased;
                    outcome = running.as_mut() => outcome,
                    _ = caller.revoked() => {
                        // The lease ends by its clock, and the function learns of it by its notice of loss.
                        tracing::warn!(fence = %guard.lease().fence, "the caller was revoked: its lock is not renewed");
                        guard.stop_renewal();
                        running.await
                    }
                }
            } else {
                running.await
            };
            // Whoever set a deadline that has passed may be gone, and never learn the token.
            let is_kept = !options.auto_release && !outcome.is_past_deadline;
            let times = Times::read(&caller, &guard);
            let lease = give_back(guard, is_kept).await;
            if is_kept {
                held.lasts(&lease, times.remaining);
            } else {
                held.ended(&lease);
            }
            outcome.with_data(urn, &acquired_data(&options, &lease, times))
        };
        server.detach(context, work).await
    }
}

async fn give_back(guard: LeaseGuard, is_kept: bool) -> Lease {
    let lease = guard.lease();
    if is_kept {
        return guard.keep();
    }
    match guard.release().await {
        ReleaseOutcome::Released => {}
        ReleaseOutcome::Lost(why) => {
            tracing::warn!(fence = %lease.fence, ?why, "a lock was lost before its function ended");
        }
        ReleaseOutcome::Pending(error) => {
            tracing::warn!(fence = %lease.fence, %error, "a lock could not be released yet");
        }
    }
    lease
}

/// Takes the lock as the options say. Dropped, it leaves nothing behind.
pub(crate) async fn acquire(
    context: &Context,
    options: &LockOptions,
) -> Result<LeaseGuard, ErrorObject> {
    let server = &context.server;
    let caller = context.call.caller.name();
    let attempt = options.attempt.as_ref();
    let attempt = attempt.map(|attempt| (&options.owner, attempt));
    let asked = server.held.ask(caller, &options.keys.locks, attempt);
    let Some(asked) = asked else {
        server.metrics.refused(Refusal::Locks);
        return Err(too_many_locks(options, server.limits.max_locks_per_caller));
    };
    let request = AcquireRequest {
        locks: options.keys.locks.clone(),
        owner: options.owner.clone(),
        caller: caller.cloned(),
        note: options.note.clone(),
        ttl: options.ttl,
        wait: options.block.map(|(_, wait)| wait),
        attempt: options.attempt.clone(),
    };
    let acquired = server.locks.acquire(request).instrument(span::wait());
    let acquired = match options.block {
        None => acquired.await,
        Some(_) => tokio::select! {
            biased;
            acquired = acquired => acquired,
            // Dropped, the call leaves its queue.
            refusal = context.revoked() => {
                server.metrics.refused(Refusal::Unauthorized);
                return Err(refusal);
            }
        },
    };
    match acquired.map_err(|error| failed(error, options))? {
        AcquireOutcome::Granted(guard) => {
            let time = if options.renew {
                WHILE_IT_RUNS
            } else {
                // Not the ttl: a repeated attempt gets the lease of the first call.
                guard.remaining()
            };
            asked.granted(&guard.lease(), time);
            Ok(guard)
        }
        refused => Err(refusal(refused, context, options)),
    }
}

/// A lock that is renewed counts until its function has ended, however long that takes.
const WHILE_IT_RUNS: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long the server has had the request, and what is left of its lease.
///
/// A client takes both together for the time from its request to the end of the lease. So they may be too little, and never too much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    elapsed: Duration,
    remaining: Duration,
}

impl Times {
    pub(crate) fn read(context: &Context, guard: &LeaseGuard) -> Self {
        // In this order: what passes between the two is in neither of them.
        let elapsed = context.call.received.elapsed();
        let remaining = guard.remaining();
        Self { elapsed, remaining }
    }
}

/// The data of a lock that was taken.
pub(crate) fn acquired_data(options: &LockOptions, lease: &Lease, times: Times) -> Value {
    let mut data = Map::new();
    options.keys.echo_keys(&mut data);
    options.keys.echo_kind(&mut data);
    let mut add = |name: &str, value: Value| data.insert(name.to_owned(), value);
    add("acquired", true.into());
    add("owner", lease.owner.as_str().into());
    add("scope", options.scope.as_str().into());
    add("expires_at", timestamp(lease.expires_at).into());
    add("fence", lease.fence.to_string().into());
    // Both rounded down.
    add("ttl_remaining_ms", whole_millis(times.remaining).into());
    add("elapsed_ms", whole_millis(times.elapsed).into());
    options.keys.echo_names(&mut data);
    data.into()
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
