//! A timer with a finer resolution than tokio's, which rounds to milliseconds: too coarse for 10 000 requests a second.

use std::io;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe;

/// A timerfd, which is read like a pipe.
pub(super) struct Timer(pipe::Receiver);

impl Timer {
    /// Ticks after `first`, and then at each interval.
    pub(super) fn start(first: Duration, interval: Duration) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let setting = Itimerspec {
            it_interval: timespec(interval),
            it_value: timespec(first.max(Duration::from_nanos(1))),
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting)?;
        pipe::Receiver::from_owned_fd_unchecked(timer).map(Self)
    }

    /// Waits for the next tick.
    pub(super) async fn tick(&self) -> io::Result<()> {
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
