//! How a store reaches the one who waits.

use tokio::sync::oneshot;

use crate::alarm::Alarm;
use crate::state::Wake;

/// The store's end of one waiting call. A store keeps it in the key's queue and wakes it at most once.
#[derive(Debug)]
pub struct Waiter {
    sender: oneshot::Sender<Wake>,
    alarm: Option<Alarm>,
}

impl Waiter {
    /// A waiter, and where it hears.
    pub fn channel() -> (Self, oneshot::Receiver<Wake>) {
        let (sender, receiver) = oneshot::channel();
        let waiter = Self {
            sender,
            alarm: None,
        };
        (waiter, receiver)
    }

    /// A grant sets the alarm for those who wait behind it, also if its own future is never polled again.
    pub(crate) fn with_alarm(mut self, alarm: Alarm) -> Self {
        self.alarm = Some(alarm);
        self
    }

    /// Tells the waiter. When it has gone away meanwhile the answer is `false`, and a lease that was in the
    /// message is nobody's: the store takes it back with [`Abandon`](crate::state::Abandon).
    #[must_use]
    pub fn wake(self, wake: Wake) -> bool {
        if let (Wake::Granted(_), Some(alarm)) = (&wake, &self.alarm) {
            alarm.set();
        }
        self.sender.send(wake).is_ok()
    }
}
