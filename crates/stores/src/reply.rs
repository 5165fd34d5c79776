//! The answer to a command that waits in the queue of a store.
//!
//! A command is claimed once: by the store when it begins, or by its caller when the timeout is first. So the caller knows whether it
//! may have been run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forrst_lock::StoreError;
use tokio::sync::oneshot;

pub(crate) type AnswerReceiver<T> = oneshot::Receiver<Result<T, StoreError>>;

/// The sender of the answer to a command.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    to: oneshot::Sender<Result<T, StoreError>>,
    is_claimed: Arc<AtomicBool>,
}

impl<T> Reply<T> {
    pub(crate) fn new() -> (Self, AnswerReceiver<T>) {
        let (to, answer) = oneshot::channel();
        let is_claimed = Arc::default();
        (Self { to, is_claimed }, answer)
    }

    /// Claims the command for the store; `None` if the caller has given up, and got the error that nothing was done.
    pub(crate) fn begin(self) -> Option<oneshot::Sender<Result<T, StoreError>>> {
        (!self.is_claimed.swap(true, Ordering::AcqRel)).then_some(self.to)
    }

    /// What the caller does when its timeout has passed. Returns whether the command may have been run.
    pub(crate) fn give_up(&self) -> impl FnOnce() -> bool + use<T> {
        let is_claimed = self.is_claimed.clone();
        move || is_claimed.swap(true, Ordering::AcqRel)
    }

    /// Whether the caller has disconnected.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }
}
