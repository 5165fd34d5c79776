//! A process group, and signals to all of it.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::output::complain;

/// The process group of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group(Pid);

impl Group {
    /// The group that this process leads.
    pub(super) fn of(leader: Pid) -> Self {
        Self(leader)
    }

    /// The group with this number; 0 and 1 would be ourselves and everybody.
    pub(super) fn numbered(number: i32) -> Option<Self> {
        let number = Some(number).filter(|number| *number > 1);
        number.and_then(Pid::from_raw).map(Self)
    }

    pub(super) fn pid(self) -> Pid {
        self.0
    }

    pub(super) fn number(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Passes a signal on. One that does not exist is nobody's loss.
    pub(super) fn signal(self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.send(signal);
        }
    }

    /// Asks it to end, also where it is stopped.
    pub(super) fn terminate(self) {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    pub(super) fn kill(self) {
        self.send(Signal::KILL);
    }

    /// Whether any process is left in it, also one that may not be signalled.
    pub(super) fn exists(self) -> bool {
        matches!(test_kill_process_group(self.0), Ok(()) | Err(Errno::PERM))
    }

    fn send(self, signal: Signal) {
        // It fails where the group has ended, which is what most signals want anyway.
        if kill_process_group(self.0, signal) == Err(Errno::PERM) {
            report_denied(self.0, signal);
        }
    }
}

/// Says once that a process cannot be signalled: it may run on without the lock.
pub(super) fn report_denied(process: Pid, signal: Signal) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if IS_REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    complain(&format!(
        "warning: forrst may not signal the command: process {process} runs as another user, as by sudo, and did not get \
         signal {number} (Operation not permitted). It is not ended when the lock is lost: run forrst as that user\n",
        process = process.as_raw_nonzero(),
        number = signal.as_raw(),
    ));
}
