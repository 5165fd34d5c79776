//! The command as `forrst run` sees it: through its guard.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::link;
use super::message::{Order, Report, read, written};
use super::plan::Limits;

/// A command behind its guard.
pub(super) struct Guarded {
    guard: Child,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
}

impl Guarded {
    /// Starts the guard, which starts the command.
    pub(super) fn start(
        command: &[OsString],
        variables: &[(&str, String)],
        grace: Duration,
        limits: Limits,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut guard = this_program()?;
        guard
            .args(["guard", "--grace-ms", &grace.as_millis().to_string(), "--"])
            .args(command)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // What stops or interrupts this process from the terminal is not to reach it.
            .process_group(0);
        let guard = guard.spawn()?;
        link::send_first(&ours, limits, io::stdin())?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(ours)?.into_split();
        Ok(Self {
            guard,
            orders,
            reports: BufReader::new(reports).lines(),
        })
    }

    /// Tells the guard. Where it is no more, the next report says so.
    pub(super) async fn order(&mut self, order: Order) {
        let _ = self.orders.write_all(&written(&order)).await;
    }

    /// What the guard has to say next; nothing when it is no more.
    pub(super) async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok()??;
        read(&line).ok()
    }

    /// The process that guards.
    pub(super) fn guard(&self) -> Pid {
        Pid::from_child(&self.guard)
    }

    /// After its last report.
    pub(super) fn bury(mut self) {
        drop(self.orders);
        let _ = self.guard.wait();
    }
}

/// This program once more, also when it was replaced on the disk by a newer one, or removed.
pub(super) fn this_program() -> io::Result<Command> {
    let path = if cfg!(target_os = "linux") {
        PathBuf::from("/proc/self/exe")
    } else {
        std::env::current_exe()?
    };
    let mut program = Command::new(path);
    program.arg0("forrst");
    Ok(program)
}
