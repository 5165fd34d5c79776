//! The signals that `forrst run` gets, and passes on.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// All that a command may want to know of, and those of job control.
const PASSED_ON: [Signal; 8] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
];

/// The signals that arrive, in their order as well as it can be known.
pub(super) struct Signals(UnboundedReceiver<Signal>);

impl Signals {
    /// Listens to all but those that were ignored when this process was started: who says `nohup` means the command, too.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let (news, arrived) = unbounded_channel();
        for wanted in PASSED_ON {
            if ignored & bit(wanted) != 0 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(wanted.as_raw()))?;
            let news = news.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && news.send(wanted).is_ok() {}
            });
        }
        Ok(Self(arrived))
    }

    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The first that means an end: while there is no command yet, the others mean nothing.
    pub(super) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if matches!(
                signal,
                Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT
            ) {
                return signal;
            }
            if signal == Signal::TSTP {
                stop_here();
            }
        }
    }
}

/// Stops this process, until somebody continues it.
pub(super) fn stop_here() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// Which signals are ignored, one bit each; none where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default()
}

fn bit(signal: Signal) -> u64 {
    let number = u32::try_from(signal.as_raw()).unwrap_or_default();
    1_u64
        .checked_shl(number.saturating_sub(1))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_program_ignores_broken_pipes_and_nothing_else_that_is_passed_on() {
        assert_ne!(ignored() & bit(Signal::PIPE), 0);
        assert_eq!(ignored() & bit(Signal::TERM), 0);
    }
}
