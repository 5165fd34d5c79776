//! Job control: the command behaves in a shell as if it ran without `forrst run`. Signals are forwarded to it, the terminal is
//! lent to it, and this process ends by the signal that ended it.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::processes::ProcessGroup;
use crate::exit;

/// The signals that a command may handle, and those of job control.
const FORWARDED: [Signal; 8] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
];

/// The signals that arrive at `forrst run`, in their order as far as it can be known.
pub(super) struct IncomingSignals(UnboundedReceiver<Signal>);

impl IncomingSignals {
    /// Handles all of them but those that were ignored when this process was started: `nohup` is meant for the command, too.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let (sender, receiver) = unbounded_channel();
        for forwarded in FORWARDED {
            if ignored & bit(forwarded) != 0 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(forwarded.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(forwarded).is_ok() {}
            });
        }
        Ok(Self(receiver))
    }

    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The next signal that asks a process to end. For use while there is no command to forward the others to.
    pub(super) async fn next_termination(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if matches!(
                signal,
                Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT
            ) {
                return signal;
            }
            if signal == Signal::TSTP {
                stop_this_process();
            }
        }
    }
}

/// Stops this process until it gets SIGCONT.
pub(super) fn stop_this_process() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// Which signals are ignored, one bit each; 0 on systems without `/proc`.
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

/// The terminal that controls this process, if there is one.
///
/// A terminal has one foreground process group. The command has a group of its own, and could neither read from the terminal
/// nor be interrupted from it: so it is made the foreground group while it runs.
pub(super) struct Terminal {
    device: Option<File>,
    is_lent: bool,
}

impl Terminal {
    /// Independent of standard input: a program that asks for a password opens the terminal itself.
    pub(super) fn open() -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/tty");
        Self {
            device: device.ok(),
            is_lent: false,
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.device.is_some()
    }

    /// Whether the command gets it from the beginning. In a pipeline, other programs may want it, too, such as a `gpg -d` before
    /// it or a pager behind it: then it is lent when the command asks for it.
    pub(super) fn is_ours_alone(&self) -> bool {
        self.exists() && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Makes a group the foreground group, unless this process is in the background itself. Returns whether that was done.
    pub(super) fn lend(&mut self, group: ProcessGroup) -> bool {
        let Some(device) = &self.device else {
            return false;
        };
        let is_ours = tcgetpgrp(device).is_ok_and(|owner| owner == getpgrp());
        let is_lent = is_ours && tcsetpgrp(device, group.pid()).is_ok();
        self.is_lent |= is_lent;
        is_lent
    }

    pub(super) fn take_back(&mut self) {
        let Some(device) = self.device.as_ref().filter(|_| self.is_lent) else {
            return;
        };
        // A background process that does this is stopped by SIGTTOU, unless the signal is blocked.
        let mut blocked = SigSet::empty();
        blocked.add(nix::sys::signal::Signal::SIGTTOU);
        if blocked.thread_block().is_ok() {
            let _ = tcsetpgrp(device, getpgrp());
            let _ = blocked.thread_unblock();
        }
        self.is_lent = false;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// A signal handler cannot be removed without `unsafe`, and a new program has none: so a shell replaces this process, and
/// sends itself the signal. The parent sees what it would see of the command itself.
///
/// The shell writes no core file, and exits with the usual code where the signal is ignored.
const DIE_BY_SIGNAL: &str = "ulimit -c 0; kill -\"$0\" $$; exit \"$1\"";

/// Ends this process by a signal. Returns the exit code instead when there is no shell.
pub(super) fn die_by(signal: i32) -> u8 {
    let code = exit::by_signal(signal);
    let _ = Command::new("/bin/sh")
        .args(["-c", DIE_BY_SIGNAL, &signal.to_string(), &code.to_string()])
        .exec();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_program_ignores_sigpipe_and_no_signal_that_is_forwarded() {
        assert_ne!(ignored() & bit(Signal::PIPE), 0);
        assert_eq!(ignored() & bit(Signal::TERM), 0);
    }
}
