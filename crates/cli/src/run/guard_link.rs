//! How `forrst run` and its guard talk: a unix socket pair with one JSON document a line, [`Order`]s in one direction and
//! [`GuardReport`]s in the other.
//!
//! The socket is the guard's standard input. The command's own standard input is sent over it with the first order.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::deadlines::Deadlines;

/// From `forrst run` to the guard.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Let the command begin.
    Begin,
    /// The lease was renewed: the command may run until then.
    Renewed(Deadlines),
    /// The lease is lost: end the command now.
    End(Deadlines),
    /// Send this signal to the command.
    Signal(i32),
}

/// From the guard to `forrst run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuardReport {
    /// The command is ready to begin; this is the id of its process group.
    Ready(i32),
    /// No process could be started for it.
    NotStarted(String),
    /// A signal has stopped it (job control), not ended it.
    Stopped(i32),
    /// The lease ran out, and the guard has begun to end the command.
    LeaseExpired,
    /// It has ended with this code, and nothing is left of its process group.
    Exited(i32),
    /// The same, by a signal.
    Killed(i32),
}

pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

fn decode<'line, M: Deserialize<'line>>(line: &'line str) -> io::Result<M> {
    serde_json::from_str(line).map_err(io::Error::from)
}

/// The guard process, as `forrst run` sees it.
pub(super) struct GuardProcess {
    process: Child,
    orders: OwnedWriteHalf,
    reports: tokio::io::Lines<tokio::io::BufReader<OwnedReadHalf>>,
}

impl GuardProcess {
    /// Starts the guard, which starts the command.
    pub(super) fn start(
        command: &[OsString],
        variables: &[(&str, String)],
        grace: Duration,
        deadlines: Deadlines,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut guard = this_program()?;
        guard
            .args(["guard", "--grace-ms", &grace.as_millis().to_string(), "--"])
            .args(command)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // A signal from the terminal, such as ^C, is for this process only.
            .process_group(0);
        let process = guard.spawn()?;
        send_first_order(&ours, deadlines, io::stdin())?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(ours)?.into_split();
        Ok(Self {
            process,
            orders,
            reports: tokio::io::BufReader::new(reports).lines(),
        })
    }

    /// Sends an order. If the guard has died, the next [`report`](Self::report) is `None`.
    pub(super) async fn send(&mut self, order: Order) {
        let _ = self.orders.write_all(&encode(&order)).await;
    }

    /// The next report; `None` when the guard has died.
    pub(super) async fn report(&mut self) -> Option<GuardReport> {
        let line = self.reports.next_line().await.ok()??;
        decode(&line).ok()
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Waits for its end, which its last report announces.
    pub(super) fn reap(mut self) {
        drop(self.orders);
        let _ = self.process.wait();
    }
}

/// A command that runs this very program again, also when its file was replaced or removed meanwhile.
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

/// The guard's end of the socket.
pub(super) fn guard_socket() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(UnixStream::from(socket))
}

/// Sends the deadlines, and with them the command's standard input.
fn send_first_order(socket: &UnixStream, deadlines: Deadlines, stdin: impl AsFd) -> io::Result<()> {
    let line = encode(&Order::Renewed(deadlines));
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    attached.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&line)],
        &mut attached,
        SendFlags::NOSIGNAL,
    )?;
    if sent < line.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero));
    }
    Ok(())
}

/// What the guard begins with: the first order, and a reader for the others.
pub(super) struct Instructions {
    pub(super) deadlines: Deadlines,
    /// The command's standard input.
    pub(super) stdin: OwnedFd,
    pub(super) orders: Orders,
}

/// Receives the first order. `None` when `forrst run` has ended before it sent one.
pub(super) fn receive_instructions(socket: &UnixStream) -> io::Result<Option<Instructions>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(socket, &mut into, &mut attached, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let stdin = attached.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let stdin = stdin.ok_or_else(invalid)?;
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut line = String::from_utf8(byte.to_vec()).map_err(|_| invalid())?;
    reader.read_line(&mut line)?;
    let Order::Renewed(deadlines) = decode(&line)? else {
        return Err(invalid());
    };
    Ok(Some(Instructions {
        deadlines,
        stdin,
        orders: Orders(reader.lines()),
    }))
}

/// The orders that follow the first, until `forrst run` ends.
pub(super) struct Orders(io::Lines<BufReader<UnixStream>>);

impl Iterator for Orders {
    type Item = Order;

    fn next(&mut self) -> Option<Order> {
        let line = self.0.next()?.ok()?;
        decode(&line).ok()
    }
}
