//! Connects the lease, the guard, the signals and the terminal while the command runs.

use forrst_client::{Lease, Loss};
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::deadlines::{Deadlines, Moment, OnLost, Timing};
use super::guard_link::{GuardProcess, GuardReport, Order};
use super::job_control::{IncomingSignals, Terminal, stop_this_process};
use super::processes::{self, ProcessGroup};

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(i32),
    Killed(i32),
    NotStarted(String),
    /// The guard was killed from outside, and the command with it.
    GuardKilled,
}

pub(super) struct Outcome {
    pub(super) ending: Ending,
    /// Why the lease was lost, or was about to be.
    pub(super) loss: Option<String>,
}

pub(super) struct Supervisor<'run> {
    timing: Timing,
    lease: &'run Lease,
    guard: &'run mut GuardProcess,
    signals: &'run mut IncomingSignals,
    terminal: Terminal,
    deadlines: Deadlines,
    /// The lease's end that `deadlines` were computed from.
    held_until: Instant,
    /// Known once the command is ready to begin.
    group: Option<ProcessGroup>,
    loss: Option<String>,
    /// Whether this process got SIGTSTP. It stops after the command has.
    is_stop_requested: bool,
}

impl<'run> Supervisor<'run> {
    /// `deadlines` are those that the guard was started with.
    pub(super) fn new(
        timing: Timing,
        lease: &'run Lease,
        deadlines: Deadlines,
        guard: &'run mut GuardProcess,
        signals: &'run mut IncomingSignals,
    ) -> Self {
        Self {
            timing,
            lease,
            guard,
            signals,
            terminal: Terminal::open(),
            deadlines,
            held_until: lease.held_until(),
            group: None,
            loss: None,
            is_stop_requested: false,
        }
    }

    /// Handles what comes from each side until the command has ended.
    pub(super) async fn run(mut self) -> Outcome {
        let notice = self.lease.notice();
        // An interval, because a flood of signals would postpone a sleep for ever, and with it the renewals for the guard.
        let mut polls = interval(self.timing.poll_interval());
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ending = loop {
            let is_held = self.loss.is_none();
            tokio::select! {
                report = self.guard.report() => {
                    if let Some(ending) = self.handle_report(report).await {
                        break ending;
                    }
                }
                signal = self.signals.next() => self.forward(signal).await,
                loss = notice.lost(), if is_held => self.handle_loss(loss).await,
                _ = polls.tick(), if is_held => self.extend_deadlines().await,
                () = sleep_until(self.deadlines.kill_at) => self.kill(),
            }
        };
        self.terminal.take_back();
        Outcome {
            ending,
            loss: self.loss,
        }
    }

    /// An ending, if the report is about one.
    async fn handle_report(&mut self, report: Option<GuardReport>) -> Option<Ending> {
        match report {
            Some(GuardReport::Ready(id)) => {
                self.group = ProcessGroup::from_id(id);
                if let Some(group) = self.group.filter(|_| self.terminal.is_ours_alone()) {
                    self.terminal.lend(group);
                }
                self.guard.send(Order::Begin).await;
            }
            Some(GuardReport::Stopped(signal)) => self.stop_with_command(signal),
            Some(GuardReport::LeaseExpired) => {
                let reason = "it could not be renewed in time";
                self.loss.get_or_insert_with(|| reason.to_owned());
            }
            Some(GuardReport::NotStarted(reason)) => return Some(Ending::NotStarted(reason)),
            Some(GuardReport::Exited(code)) => return Some(Ending::Exited(code)),
            Some(GuardReport::Killed(signal)) => return Some(Ending::Killed(signal)),
            None => {
                self.kill();
                return Some(Ending::GuardKilled);
            }
        }
        None
    }

    /// Continues a stopped command, with the terminal if it has it for itself.
    fn resume(&mut self) {
        if let Some(group) = self.group {
            if self.terminal.is_ours_alone() {
                self.terminal.lend(group);
            }
            group.signal(Signal::CONT.as_raw());
        }
    }

    /// Lends the terminal to a command that was stopped because it asked for it. Whether it could be lent.
    fn lend_terminal(&mut self) -> bool {
        let is_lent = self.group.is_some_and(|group| self.terminal.lend(group));
        if is_lent && let Some(group) = self.group {
            group.signal(Signal::CONT.as_raw());
        }
        is_lent
    }

    /// A command that was stopped from the terminal stops this process, too, which is the job that the shell knows.
    fn stop_with_command(&mut self, signal: i32) {
        if signal != Signal::TSTP.as_raw() && self.lend_terminal() {
            return;
        }
        let from_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
        let is_from_terminal = from_terminal.iter().any(|one| one.as_raw() == signal);
        if is_from_terminal && (self.terminal.exists() || self.is_stop_requested) {
            self.terminal.take_back();
            self.is_stop_requested = false;
            stop_this_process();
        }
    }

    async fn forward(&mut self, signal: Signal) {
        match signal {
            Signal::CONT => self.resume(),
            signal => {
                self.is_stop_requested |= signal == Signal::TSTP;
                self.guard.send(Order::Signal(signal.as_raw())).await;
            }
        }
    }

    /// Sends the guard new deadlines, if the lease was renewed.
    async fn extend_deadlines(&mut self) {
        let held_until = self.lease.held_until();
        if held_until != self.held_until {
            self.held_until = held_until;
            self.deadlines = deadlines(&self.timing, self.lease);
            self.guard.send(Order::Renewed(self.deadlines)).await;
        }
    }

    async fn handle_loss(&mut self, loss: Loss) {
        self.loss = Some(loss.to_string());
        if self.timing.on_lost != OnLost::Ignore {
            self.deadlines = self.timing.deadlines_after_loss(self.deadlines);
            self.guard.send(Order::End(self.deadlines)).await;
        }
    }

    /// The guard does this, too, unless it is stopped or dead.
    fn kill(&mut self) {
        self.deadlines.kill_at = None;
        if let Some(group) = self.group {
            group.kill();
            let outside = processes::descendants_outside(Some(group), Some(self.guard.pid()));
            processes::signal_each(&outside, Signal::KILL);
        }
    }
}

/// Until when a command may run on the lease as it is now.
pub(super) fn deadlines(timing: &Timing, lease: &Lease) -> Deadlines {
    let ends_at = Moment::now().after(lease.remaining());
    timing.deadlines(ends_at.before(timing.ttl))
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep(moment.remaining()).await,
        None => std::future::pending().await,
    }
}
