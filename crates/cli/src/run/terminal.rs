//! The terminal, which belongs to one process group at a time.
//!
//! A command in a group of its own could not read from it, nor be interrupted from it: so it is handed over while the
//! command runs, and taken back afterwards.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::group::Group;

/// The terminal on standard input, if there is one.
pub(super) struct Terminal {
    is_there: bool,
    is_lent: bool,
}

impl Terminal {
    pub(super) fn find() -> Self {
        Self {
            is_there: io::stdin().is_terminal(),
            is_lent: false,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Hands it to the command, unless this process is in the background and does not have it.
    pub(super) fn lend(&mut self, group: Group) {
        let is_ours = self.is_there && tcgetpgrp(io::stdin()).is_ok_and(|owner| owner == getpgrp());
        if is_ours && tcsetpgrp(io::stdin(), group.pid()).is_ok() {
            self.is_lent = true;
        }
    }

    /// Takes it back.
    pub(super) fn take_back(&mut self) {
        if !self.is_lent {
            return;
        }
        // Whoever does this from the background is stopped by SIGTTOU, unless it is blocked.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        if blocked.thread_block().is_ok() {
            let _ = tcsetpgrp(io::stdin(), getpgrp());
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
