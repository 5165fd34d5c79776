//! The signals that a server minds.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, and SIGHUP where there is something to read again. A server that has nothing ends with its terminal.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    pub(super) fn listen(with_hang_up: bool) -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot mind signals: {error}"));
        let hang_up = with_hang_up.then(|| listen(SignalKind::hangup()));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: hang_up.transpose()?,
        })
    }

    /// Which signal ends the server; every SIGHUP before is a reason to `reload`.
    pub(super) async fn until_end(&mut self, reload: impl Fn()) -> &'static str {
        loop {
            let hang_up = async {
                match &mut self.hang_up {
                    Some(signal) => signal.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = hang_up => reload(),
            }
        }
    }
}
