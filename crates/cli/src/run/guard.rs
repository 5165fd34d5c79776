//! The guard: a second process of this program, between `forrst run` and the command.
//!
//! It starts the command and is the only one who ends it. It does so without being told when `forrst run` dies, and when
//! `forrst run` is stopped for longer than the lease lasts: a command never outlives the right to run.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use rustix::process::{Pid, Signal, WaitIdOptions};

use super::descendants;
use super::group::Group;
use super::guarded::this_program;
use super::link;
use super::message::{Order, Report, written};
use super::moment::Moment;
use super::plan::Limits;

/// A timer may be late by the time that the machine has slept; so long at most, with this.
const LONGEST_NAP: Duration = Duration::from_millis(200);

/// How long what the command has left behind may take to end by itself.
const LEFTOVERS: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct GuardArguments {
    /// How many milliseconds the command has to end in when `forrst run` is gone
    #[arg(long)]
    grace_ms: u64,

    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Guards one command to its end. Standard input is the socket to `forrst run`.
pub(crate) fn run(arguments: &GuardArguments) -> io::Result<()> {
    // Whoever signals every process called `forrst` means the one that people see, which passes it on.
    let usual = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    descendants::adopt();
    let socket = link::of_the_guard()?;
    let Some((orders, limits, stdin)) = link::first_order(&socket)? else {
        return Ok(());
    };
    let mut starter = this_program()?;
    starter
        .args(["starter", "--"])
        .args(&arguments.command)
        .stdin(stdin)
        .process_group(0);
    let (news, events) = channel();
    let hears = news.clone();
    thread::spawn(move || hear(orders, &hears));
    let (born, birth) = channel();
    thread::spawn(move || raise(starter, usual, &born, &news));
    let birth = birth.recv().map_err(io::Error::other)?;
    let child = match birth {
        Ok(child) => child,
        Err(error) => {
            let report = Report::NotStarted(error.to_string());
            return (&socket).write_all(&written(&report));
        }
    };
    let mut guard = Guard {
        socket,
        group: Group::of(Pid::from_child(&child)),
        limits,
        has_begun: false,
        is_ending: false,
        grace: Duration::from_millis(arguments.grace_ms),
    };
    guard.mind(&events);
    guard.conclude(child)
}

/// Starts the command and watches it to its end. Linux takes the thread that started a process for its parent, and the
/// command dies with its parent: so both are one thread's work.
fn raise(
    mut starter: Command,
    mask: SigSet,
    born: &Sender<io::Result<Child>>,
    news: &Sender<Event>,
) {
    // The command is not to inherit what is blocked here.
    let child = mask
        .thread_set_mask()
        .map_err(io::Error::from)
        .and_then(|()| starter.spawn());
    let _ = SigSet::all().thread_block();
    let pid = child.as_ref().ok().map(Pid::from_child);
    let _ = born.send(child);
    if let Some(pid) = pid {
        watch(pid, news);
    }
}

/// What the guard reacts to.
enum Event {
    Order(Order),
    /// `forrst run` is no more.
    Abandoned,
    Stopped(i32),
    Ended,
}

fn hear(orders: link::Orders, news: &Sender<Event>) {
    for order in orders {
        let _ = news.send(Event::Order(order));
    }
    let _ = news.send(Event::Abandoned);
}

/// Sees the command stop and end, and leaves its body where it is, so that its number stays its own.
fn watch(child: Pid, news: &Sender<Event>) {
    let look = |options| rustix::process::waitid(rustix::process::WaitId::Pid(child), options);
    loop {
        let event =
            match look(WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) if status.stopped() => {
                    let _ = look(WaitIdOptions::STOPPED);
                    Event::Stopped(status.stopping_signal().unwrap_or_default())
                }
                Err(error) if error == rustix::io::Errno::INTR => continue,
                _ => Event::Ended,
            };
        let is_last = matches!(event, Event::Ended);
        if news.send(event).is_err() || is_last {
            return;
        }
    }
}

struct Guard {
    socket: UnixStream,
    group: Group,
    limits: Limits,
    /// Whether the command has taken the place of what was started for it.
    has_begun: bool,
    /// Whether the command was told to end; there is no way back.
    is_ending: bool,
    grace: Duration,
}

impl Guard {
    /// Until the command has ended.
    fn mind(&mut self, events: &Receiver<Event>) {
        loop {
            self.keep_limits();
            self.bury_adopted();
            let nap = self.limits.next().map_or(LONGEST_NAP, Moment::remaining);
            match events.recv_timeout(nap.min(LONGEST_NAP)) {
                Ok(Event::Order(Order::Lease(limits))) if !self.is_ending => self.limits = limits,
                Ok(Event::Order(Order::Lease(_))) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Order(Order::Begin)) => self.begin(),
                Ok(Event::Order(Order::End(limits))) => self.end(limits),
                Ok(Event::Order(Order::Signal(number))) => self.pass_on(number),
                Ok(Event::Abandoned) => self.end(Limits {
                    terminate_at: None,
                    kill_at: Some(Moment::now().after(self.grace)),
                }),
                Ok(Event::Stopped(_)) if !self.has_begun => {
                    self.tell(&Report::Ready(self.group.number()));
                }
                Ok(Event::Stopped(signal)) => self.tell(&Report::Stopped(signal)),
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn begin(&mut self) {
        self.has_begun = true;
        self.group.signal(Signal::CONT.as_raw());
    }

    /// What asks the command to end is heard by it only when it runs.
    fn pass_on(&self, number: i32) {
        self.group.signal(number);
        let asks_to_end = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];
        let is_asked = asks_to_end.iter().any(|signal| signal.as_raw() == number);
        // Before it has begun, it is stopped for a reason of ours.
        if is_asked && self.has_begun {
            self.group.signal(Signal::CONT.as_raw());
        }
    }

    fn keep_limits(&mut self) {
        let has_come = |moment: Option<Moment>| moment.is_some_and(Moment::has_come);
        if !self.is_ending && has_come(self.limits.next()) {
            self.tell(&Report::RanOut);
            self.end(self.limits);
        }
        if has_come(self.limits.kill_at) {
            self.kill();
            // Once is enough unless a process was just being born: then in a moment again.
            self.limits.kill_at = Some(Moment::now().after(LONGEST_NAP));
        }
    }

    /// Ends the command, within what is left of its time already.
    fn end(&mut self, limits: Limits) {
        let is_new = !self.is_ending;
        self.is_ending = true;
        let earliest = [self.limits.kill_at, limits.kill_at];
        self.limits = Limits {
            terminate_at: None,
            kill_at: earliest.into_iter().flatten().min(),
        };
        if is_new && !self.limits.kill_at.is_some_and(Moment::has_come) {
            let outside = descendants::outside(Some(self.group), None);
            self.group.terminate();
            for signal in [Signal::TERM, Signal::CONT] {
                descendants::send(&outside, signal);
            }
        }
    }

    /// Kills the command and all that it has started.
    fn kill(&self) {
        self.group.kill();
        descendants::send(&descendants::outside(Some(self.group), None), Signal::KILL);
    }

    /// Whether something is left that has to end: of a command that was ended, all that it has started.
    fn is_left(&self) -> bool {
        let is_outside = || !descendants::outside(Some(self.group), None).is_empty();
        self.group.exists() || self.is_ending && is_outside()
    }

    /// Buries what was left to this process by parents that have ended, but not the command: its body keeps its number.
    fn bury_adopted(&self) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let command = self.group.number();
        while let Ok(status) = waitid(Id::All, flags)
            && let Some(pid) = status.pid().filter(|pid| pid.as_raw() != command)
            && waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_ok()
        {}
    }

    /// Buries the command, and waits for what it has left behind: nothing of it works on without the lock.
    fn conclude(mut self, mut child: Child) -> io::Result<()> {
        let status = child.wait()?;
        let patience = Moment::now().after(LEFTOVERS);
        let kill_at = self
            .limits
            .kill_at
            .map_or(patience, |limit| limit.min(patience));
        let give_up = kill_at.after(LEFTOVERS);
        while self.is_left() && !give_up.has_come() {
            if kill_at.has_come() {
                self.kill_leftovers();
            }
            thread::sleep(Duration::from_millis(10));
            self.bury_adopted();
        }
        self.tell(&ending(status));
        Ok(())
    }

    fn kill_leftovers(&self) {
        if self.is_ending {
            self.kill();
        } else {
            self.group.kill();
        }
    }

    fn tell(&mut self, report: &Report) {
        // Nobody may be there to hear it, and then there is nothing to be done about it.
        let _ = (&self.socket).write_all(&written(report));
    }
}

fn ending(status: ExitStatus) -> Report {
    match (status.code(), status.signal()) {
        (Some(code), _) => Report::Exited(code),
        (None, signal) => Report::Killed(signal.unwrap_or(Signal::KILL.as_raw())),
    }
}
