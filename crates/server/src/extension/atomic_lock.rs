//! `atomicLock`: the function runs while the caller holds a lock, and only then.
//!
//! Only here do the wire format and the lock domain meet: options become a claim, and outcomes become answers.

mod keys;
mod options;
mod refusal;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::{AcquireOutcome, AcquireRequest, Lease, LeaseGuard, ReleaseOutcome};
use forrst_protocol::{ErrorObject, Errors, ObjectWriter, RawObject, Urn};
use futures_util::future::BoxFuture;
use futures_util::poll;
use tokio::time::Instant;
use tracing::Instrument;

pub(crate) use self::options::{LockOptions, read_ttl, read_wait};
use self::refusal::{failed, refusal, too_many_locks};
use super::{Around, Extension, ExtensionCall, Next, Outcome, cancelled_call, exceeded, stopping};
use crate::Context;
use crate::context::{CallInfo, HeldLease};
use crate::core::Core;
use crate::limits::{Limits, Refusal};
use crate::span;
use crate::time::WireTime;

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
        let index = call.index.unwrap_or_default();
        let options = LockOptions::read(call.options, index, call.function, &self.limits)?;
        let _ = call
            .locks
            .set(options.keys.locks.names().cloned().collect());
        options.keys.check(call.caller, options.at)?;
        Ok(Box::new(LockedCall {
            urn: call.urn.clone(),
            options,
        }))
    }
}

struct LockedCall {
    urn: Urn,
    options: LockOptions,
}

#[async_trait]
impl Around for LockedCall {
    async fn run(self: Box<Self>, mut context: Context, next: Next) -> Outcome {
        let guard = match self.acquire(&context, next.server()).await {
            Ok(guard) => guard,
            Err(error) => {
                let data = refused_data(&self.options);
                return Outcome::failure(error).with_object(self.urn, data);
            }
        };
        context.lease = Some(Arc::new(HeldLease::new(
            guard.lease(),
            self.options.keys.names().cloned().collect(),
            guard.loss(),
        )));
        // From here on the caller may disconnect: the function runs to completion, and then the lock is released.
        next.detach(|next| self.run_locked(guard, context, next))
            .await
    }
}

impl LockedCall {
    async fn acquire(&self, context: &Context, server: &Core) -> Result<LeaseGuard, ErrorObject> {
        // The function would not run, so no lock is taken for it.
        if server.stop.is_stopped() {
            return Err(stopping());
        }
        let mut acquiring = pin!(acquire(server, context, &self.options));
        let acquired = match poll!(acquiring.as_mut()) {
            Poll::Ready(acquired) => acquired,
            Poll::Pending => {
                let deadline = context.deadline.clone();
                let wait = async {
                    tokio::select! {
                        biased;
                        acquired = acquiring => acquired,
                        () = server.stop.stopped() => Err(stopping()),
                        error = exceeded(deadline.as_deref()) => Err(error),
                        () = context.call.cancellation.cancelled_by_caller() => Err(cancelled_call()),
                    }
                };
                // Boxed to keep the future small: most calls need not wait.
                Box::pin(wait).await
            }
        };
        acquired.map(|mut guard| {
            if self.options.renew {
                guard.renew(self.options.ttl);
            }
            guard
        })
    }

    /// Runs the function under the lock, and releases or keeps it.
    async fn run_locked(
        self: Box<Self>,
        mut guard: LeaseGuard,
        context: Context,
        next: Next,
    ) -> Outcome {
        let server = next.server().clone();
        let (call, deadline) = (context.call.clone(), context.deadline.clone());
        let running = next.run(context);
        let outcome = if self.options.renew {
            Box::pin(run_renewed(running, &call, &server, &mut guard)).await
        } else {
            running.await
        };
        // After the deadline, the caller gets an error without the owner token, so it could not release a lock that is kept. And one
        // that has cancelled the call does not expect to hold a lock.
        let is_late = outcome.is_past_deadline || deadline.is_some_and(|d| d.has_been_answered());
        let is_kept = !self.options.auto_release && !is_late && !call.cancellation.finish().await;
        let times = LeaseTimes::read(call.received, &guard);
        let lease = release_or_keep(guard, is_kept).await;
        if is_kept {
            server.held.set_remaining(&lease, times.remaining);
        } else {
            server.held.ended(&lease);
        }
        outcome.with_object(self.urn, acquired_data(&self.options, &lease, times))
    }
}

/// Runs a function whose lock is renewed until its caller is revoked.
async fn run_renewed(
    mut running: BoxFuture<'static, Outcome>,
    call: &CallInfo,
    server: &Core,
    guard: &mut LeaseGuard,
) -> Outcome {
    tokio::select! {
        biased;
        outcome = running.as_mut() => outcome,
        _ = server.access.revoked(&call.credential) => {
            // The lease expires, and the function gets its loss notice.
            tracing::warn!(fence = %guard.lease().fence, "the caller was revoked: its lock is not renewed");
            guard.stop_renewal();
            running.await
        }
    }
}

async fn release_or_keep(guard: LeaseGuard, is_kept: bool) -> Lease {
    if is_kept {
        return guard.keep();
    }
    let lease = guard.lease();
    match guard.release().await {
        ReleaseOutcome::Released => {}
        ReleaseOutcome::Lost(why) => {
            tracing::warn!(fence = %lease.fence, ?why, "a lock was lost before its function ended");
        }
        ReleaseOutcome::Pending(error) => {
            tracing::warn!(fence = %lease.fence, %error, "a lock could not be released yet: the release is retried");
        }
    }
    lease
}

/// Acquires the lock. If it is dropped, the call is rolled back.
pub(crate) async fn acquire(
    server: &Core,
    context: &Context,
    options: &LockOptions,
) -> Result<LeaseGuard, ErrorObject> {
    let caller = context.call.caller.name();
    let attempt = options.attempt.as_ref();
    let attempt = attempt.map(|attempt| (&options.owner, attempt));
    let permits = server.held.reserve(caller, &options.keys.locks, attempt);
    let Some(permits) = permits else {
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
    let acquired = async {
        let acquired = server.locks.acquire(request);
        match span::is_traced() {
            true => Box::pin(acquired.instrument(span::wait())).await,
            false => acquired.await,
        }
    };
    let acquired = match options.block {
        None => acquired.await,
        Some(_) => tokio::select! {
            biased;
            acquired = acquired => acquired,
            // Dropped, the call leaves its queue.
            refusal = Box::pin(server.access.revoked(&context.call.credential)) => {
                server.metrics.refused(Refusal::Unauthorized);
                return Err(refusal);
            }
        },
    };
    match acquired.map_err(|error| failed(error, options))? {
        AcquireOutcome::Granted(guard) => {
            permits.granted(|| {
                let time = if options.renew {
                    UNTIL_RELEASED
                } else {
                    // Not the ttl: a repeated attempt gets the lease of the first call.
                    guard.remaining()
                };
                (guard.lease(), time)
            });
            Ok(guard)
        }
        refused => Err(refusal(refused, server, options)),
    }
}

/// A renewed lock counts until its function has ended, however long that takes.
const UNTIL_RELEASED: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time since the request was received, and the remaining time of its lease.
///
/// A client adds both to the time of its request to get the end of the lease. So they may be too small, but never too large.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTimes {
    elapsed: Duration,
    remaining: Duration,
}

impl LeaseTimes {
    pub(crate) fn read(received: Instant, guard: &LeaseGuard) -> Self {
        let now = Instant::now();
        Self {
            elapsed: now.saturating_duration_since(received),
            remaining: guard.remaining_at(now),
        }
    }
}

/// The data of a lock that was not granted.
fn refused_data(options: &LockOptions) -> RawObject<'static> {
    let mut data = ObjectWriter::with_capacity(USUAL_DATA);
    options.keys.write_as_sent(&mut data);
    data.bool("acquired", false);
    data.finish()
}

/// The data of a lock that was granted.
pub(crate) fn acquired_data(
    options: &LockOptions,
    lease: &Lease,
    times: LeaseTimes,
) -> RawObject<'static> {
    let mut data = ObjectWriter::with_capacity(USUAL_DATA);
    options.keys.write_as_sent(&mut data);
    options.keys.write_kind(&mut data);
    data.bool("acquired", true);
    data.string("owner", lease.owner.as_str());
    data.string("scope", options.scope.as_str());
    data.plain("expires_at", WireTime(lease.expires_at));
    data.plain("fence", lease.fence);
    // Both are rounded down.
    data.number("ttl_remaining_ms", whole_millis(times.remaining));
    data.number("elapsed_ms", whole_millis(times.elapsed));
    options.keys.write_full_keys(&mut data);
    data.finish()
}

/// Enough bytes for the data of nearly every lock.
const USUAL_DATA: usize = 384;

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
