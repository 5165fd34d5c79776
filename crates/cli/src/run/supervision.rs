//! From the start of a command to its end, under a lease.

use forrst_client::{Lease, Loss};
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::descendants;
use super::group::Group;
use super::guarded::Guarded;
use super::message::{Order, Report};
use super::moment::Moment;
use super::plan::{Limits, OnLost, Plan};
use super::signals::{Signals, stop_here};
use super::terminal::Terminal;

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(i32),
    Killed(i32),
    NotStarted(String),
    /// Somebody killed the guard, and so the command was killed, too.
    Unguarded,
}

/// What is to be known about a run that is over.
pub(super) struct Outcome {
    pub(super) ending: Ending,
    /// Whether the lease was lost, or was about to be, and why.
    pub(super) loss: Option<String>,
}

pub(super) struct Supervision<'run> {
    pub(super) plan: Plan,
    pub(super) lease: &'run Lease,
    pub(super) guarded: &'run mut Guarded,
    pub(super) signals: &'run mut Signals,
    pub(super) limits: Limits,
    pub(super) terminal: Terminal,
}

/// What has come up inside.
struct State {
    group: Option<Group>,
    held_until: Instant,
    loss: Option<String>,
    /// Somebody asked this process to stop, which it does when the command has.
    is_asked_to_stop: bool,
}

impl Supervision<'_> {
    /// Passes on what comes from either side until the command has ended.
    pub(super) async fn run(mut self) -> Outcome {
        let mut state = State {
            group: None,
            held_until: self.lease.held_until(),
            loss: None,
            is_asked_to_stop: false,
        };
        let notice = self.lease.notice();
        // Its ticks come due whatever else arrives: a flood of signals must not keep a renewal from the guard.
        let mut looks = interval(self.plan.pause());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ending = loop {
            let is_held = state.loss.is_none();
            tokio::select! {
                report = self.guarded.report() => {
                    if let Some(ending) = self.heard(report, &mut state).await {
                        break ending;
                    }
                }
                signal = self.signals.next() => self.pass_on(signal, &mut state).await,
                loss = notice.lost(), if is_held => self.lose(loss, &mut state).await,
                _ = looks.tick(), if is_held => self.look_at_lease(&mut state).await,
                () = sleep_until(self.limits.kill_at) => self.insist(state.group),
            }
        };
        self.terminal.take_back();
        Outcome {
            ending,
            loss: state.loss,
        }
    }

    /// An ending, if that is what it was.
    async fn heard(&mut self, report: Option<Report>, state: &mut State) -> Option<Ending> {
        match report {
            Some(Report::Ready(number)) => {
                state.group = Group::numbered(number);
                if let Some(group) = state.group.filter(|_| self.terminal.is_ours_alone()) {
                    self.terminal.lend(group);
                }
                self.guarded.order(Order::Begin).await;
            }
            Some(Report::Stopped(signal)) => self.stop_too(signal, state),
            Some(Report::RanOut) => {
                let reason = "it could not be renewed in time";
                state.loss.get_or_insert_with(|| reason.to_owned());
            }
            Some(Report::NotStarted(reason)) => return Some(Ending::NotStarted(reason)),
            Some(Report::Exited(code)) => return Some(Ending::Exited(code)),
            Some(Report::Killed(signal)) => return Some(Ending::Killed(signal)),
            None => {
                self.insist(state.group);
                return Some(Ending::Unguarded);
            }
        }
        None
    }

    /// Lets a stopped command go on, with the terminal where it is the one that reads from it.
    fn resume(&mut self, group: Option<Group>) {
        if let Some(group) = group {
            if self.terminal.is_ours_alone() {
                self.terminal.lend(group);
            }
            group.signal(Signal::CONT.as_raw());
        }
    }

    /// Lends the terminal to a command that was stopped because it wanted it. Whether there was one to be lent.
    fn lend_to(&mut self, group: Option<Group>) -> bool {
        let is_lent = group.is_some_and(|group| self.terminal.lend(group));
        if is_lent && let Some(group) = group {
            group.signal(Signal::CONT.as_raw());
        }
        is_lent
    }

    /// What stops a command from the terminal is meant for the job as the shell sees it, which is this process.
    fn stop_too(&mut self, signal: i32, state: &mut State) {
        if signal != Signal::TSTP.as_raw() && self.lend_to(state.group) {
            return;
        }
        let from_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
        let is_from_terminal = from_terminal.iter().any(|one| one.as_raw() == signal);
        if is_from_terminal && (self.terminal.is_there() || state.is_asked_to_stop) {
            self.terminal.take_back();
            state.is_asked_to_stop = false;
            stop_here();
        }
    }

    async fn pass_on(&mut self, signal: Signal, state: &mut State) {
        match signal {
            Signal::CONT => self.resume(state.group),
            signal => {
                state.is_asked_to_stop |= signal == Signal::TSTP;
                self.guarded.order(Order::Signal(signal.as_raw())).await;
            }
        }
    }

    /// Tells the guard how long the command may go on, when that has changed.
    async fn look_at_lease(&mut self, state: &mut State) {
        let held_until = self.lease.held_until();
        if held_until != state.held_until {
            state.held_until = held_until;
            self.limits = limits(&self.plan, self.lease);
            self.guarded.order(Order::Lease(self.limits)).await;
        }
    }

    async fn lose(&mut self, loss: Loss, state: &mut State) {
        state.loss = Some(loss.to_string());
        if self.plan.on_lost != OnLost::Ignore {
            self.limits = self.plan.last_limits(self.limits);
            self.guarded.order(Order::End(self.limits)).await;
        }
    }

    /// The guard does this, too, unless somebody has stopped it.
    fn insist(&mut self, group: Option<Group>) {
        self.limits.kill_at = None;
        if let Some(group) = group {
            group.kill();
            let outside = descendants::outside(Some(group), Some(self.guarded.guard()));
            descendants::send(&outside, Signal::KILL);
        }
    }
}

/// Until when a command may run on a lease as it stands.
pub(super) fn limits(plan: &Plan, lease: &Lease) -> Limits {
    let ends_at = Moment::now().after(lease.remaining());
    plan.limits(ends_at.before(plan.ttl))
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep(moment.remaining()).await,
        None => std::future::pending().await,
    }
}
