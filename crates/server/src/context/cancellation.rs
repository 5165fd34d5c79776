//! The tokens that end functions. The token of a call is created on first use, because all tokens of a server share a lock, and
//! most functions never use theirs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

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
}

impl Cancellation {
    pub(crate) fn new(stop: Arc<Stop>) -> Self {
        Self {
            stop,
            token: OnceLock::new(),
            has_ended: AtomicBool::new(false),
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
