//! The terminal, which belongs to one process group at a time.
//!
//! A command in a group of its own could not read from it, nor be interrupted from it: so it is handed over while the
//! command runs, and taken back afterwards.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::group::Group;

/// The terminal that this process can be interrupted from, if there is one.
pub(super) struct Terminal {
    device: Option<File>,
    is_lent: bool,
}

impl Terminal {
    /// Whatever standard input is: what reads a password asks the terminal itself.
    pub(super) fn find() -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/tty");
        Self {
            device: device.ok(),
            is_lent: false,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.device.is_some()
    }

    /// Whether the command has it for itself from the beginning. Others of the same pipeline, such as a `gpg -d` before it
    /// or a pager behind it, may want it, too: where input or output is something else, it is lent when it is asked for.
    pub(super) fn is_ours_alone(&self) -> bool {
        self.is_there() && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Hands it to the command, unless this process is in the background and does not have it. Whether that was done.
    pub(super) fn lend(&mut self, group: Group) -> bool {
        let Some(device) = &self.device else {
            return false;
        };
        let is_ours = tcgetpgrp(device).is_ok_and(|owner| owner == getpgrp());
        let is_lent = is_ours && tcsetpgrp(device, group.pid()).is_ok();
        self.is_lent |= is_lent;
        is_lent
    }

    /// Takes it back.
    pub(super) fn take_back(&mut self) {
        let Some(device) = self.device.as_ref().filter(|_| self.is_lent) else {
            return;
        };
        // Whoever does this from the background is stopped by SIGTTOU, unless it is blocked.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
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
