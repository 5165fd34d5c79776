//! The signals that the server handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT; and SIGHUP, if there are files to read again. Otherwise SIGHUP ends the server, as by default.
pub(super) struct ServerSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl ServerSignals {
    pub(super) fn listen(with_hang_up: bool) -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot handle signals: {error}"));
        let hang_up = with_hang_up.then(|| listen(SignalKind::hangup()));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: hang_up.transpose()?,
        })
    }

    /// Waits for the signal that ends the server, and returns its name. Every SIGHUP before it calls `reload`.
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
