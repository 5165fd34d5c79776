//! The tokens that end functions. The token of a call is created on first use, because all tokens of a server share a lock, and
//! most functions never use theirs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::extension::CancellableCall;

/// Ends all calls of a server after the drain timeout.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_stopped: AtomicBool,
    token: CancellationToken,
}

impl Stop {
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.token.cancel();
    }

    /// Takes no lock, so that it can be called for every request.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    pub(crate) async fn stopped(&self) {
        self.token.cancelled().await;
    }
}

/// The token of one call.
#[derive(Debug)]
pub(crate) struct Cancellation {
    stop: Arc<Stop>,
    token: OnceLock<CancellationToken>,
    has_ended: AtomicBool,
    /// Set if the request names the extension `cancellation`.
    by_caller: OnceLock<CancellableCall>,
}

impl Cancellation {
    pub(crate) fn new(stop: Arc<Stop>) -> Self {
        Self {
            stop,
            token: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            by_caller: OnceLock::new(),
        }
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        let token = self.token.get_or_init(|| self.stop.token.child_token());
        // Either `end` has seen the token, or this sees that the call has ended.
        if self.has_ended.load(Ordering::SeqCst) {
            token.cancel();
        }
        token
    }

    /// The function has ended, or was ended.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(token) = self.token.get() {
            token.cancel();
        }
        // A task that the function has spawned may keep the context for longer.
        if let Some(call) = self.by_caller.get() {
            call.end();
        }
    }

    /// From now on, the caller can cancel the call.
    pub(crate) fn allow(&self, call: CancellableCall) {
        let _ = self.by_caller.set(call);
    }

    /// Whether the caller can cancel the call, or could.
    pub(crate) fn is_allowed(&self) -> bool {
        self.by_caller.get().is_some()
    }

    /// Returns when the caller has cancelled the call.
    pub(crate) async fn cancelled_by_caller(&self) {
        match self.by_caller.get() {
            Some(call) => call.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Whether the caller has cancelled the call, as far as is known here.
    pub(crate) fn is_cancelled_by_caller(&self) -> bool {
        self.by_caller
            .get()
            .is_some_and(CancellableCall::is_cancelled)
    }

    /// From now on, the caller cannot cancel the call any more. Returns whether it has.
    pub(crate) async fn finish(&self) -> bool {
        match self.by_caller.get() {
            Some(call) => call.finish().await,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_cancelled_by_the_end_of_its_call_or_of_the_server() {
        let stop = Arc::new(Stop::default());
        let (early, late, running) = (
            Cancellation::new(stop.clone()),
            Cancellation::new(stop.clone()),
            Cancellation::new(stop.clone()),
        );
        assert!(!early.token().is_cancelled());
        early.end();
        late.end();
        assert!(early.token().is_cancelled());
        // The token is first used after the call has ended.
        assert!(late.token().is_cancelled());
        assert!(!running.token().is_cancelled());
        stop.stop();
        assert!(running.token().is_cancelled());
        assert!(stop.is_stopped());
    }
}
