//! The socket between `forrst run` and its guard.
//!
//! The guard's standard input is this socket, so what the command is to have as its own is sent over it first.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Lines};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::message::{Order, read, written};
use super::plan::Limits;

/// The end that the guard has.
pub(super) fn of_the_guard() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(UnixStream::from(socket))
}

/// Sends the first order, and with it the command's standard input.
pub(super) fn send_first(socket: &UnixStream, limits: Limits, stdin: impl AsFd) -> io::Result<()> {
    let line = written(&Order::Lease(limits));
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

/// Receives it. There is none when `forrst run` has ended before it sent one.
pub(super) fn first_order(socket: &UnixStream) -> io::Result<Option<(Orders, Limits, OwnedFd)>> {
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
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let stdin = stdin.ok_or_else(broken)?;
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut line = String::from_utf8(byte.to_vec()).map_err(|_| broken())?;
    reader.read_line(&mut line)?;
    let Order::Lease(limits) = read(&line)? else {
        return Err(broken());
    };
    Ok(Some((Orders(reader.lines()), limits, stdin)))
}

/// The orders that follow, until `forrst run` ends.
pub(super) struct Orders(Lines<BufReader<UnixStream>>);

impl Iterator for Orders {
    type Item = Order;

    fn next(&mut self) -> Option<Order> {
        let line = self.0.next()?.ok()?;
        read(&line).ok()
    }
}
