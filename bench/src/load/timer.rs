//! A timer that is not rounded to milliseconds, as those of tokio are: a rate of 10 000 a second needs better.

use std::io;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe;

/// A timer of the kernel is read like a pipe.
pub(super) struct Timer(pipe::Receiver);

impl Timer {
    /// Ticks first after `first`, and then regularly.
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

    /// Returns when it has ticked since the last time.
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
