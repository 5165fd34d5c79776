//! The guard: a second process of this program, between `forrst run` and the command.
//!
//! It starts the command, and ends it when the lease does: also when `forrst run` has been killed, or is stopped for longer
//! than the lease lasts. A command never outlives its lease.

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

use super::deadlines::{Deadlines, Moment};
use super::guard_link::{
    GuardReport, Instructions, Order, Orders, encode, guard_socket, receive_instructions,
    this_program,
};
use super::job_control::stop_this_process;
use super::processes::{self, ProcessGroup};
use crate::error::CommandError;
use crate::exit;

/// How often deadlines are checked at least. Timers do not count the time that the machine sleeps.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// How long the processes that the command leaves behind have to end by themselves.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct GuardArguments {
    /// How many milliseconds the command has to end in when `forrst run` has died
    #[arg(long)]
    grace_ms: u64,

    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs one command to its end. Standard input is the socket to `forrst run`.
pub(crate) fn run(arguments: &GuardArguments) -> io::Result<()> {
    // `pkill forrst` is meant for `forrst run`, which forwards the signal.
    let inherited_mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    processes::adopt_orphans();
    let socket = guard_socket()?;
    let Some(instructions) = receive_instructions(&socket)? else {
        return Ok(());
    };
    let Instructions {
        deadlines,
        stdin,
        orders,
    } = instructions;
    let mut starter = this_program()?;
    starter
        .args(["starter", "--"])
        .args(&arguments.command)
        .stdin(stdin)
        .process_group(0);
    let (events, received) = channel();
    let order_events = events.clone();
    thread::spawn(move || forward_orders(orders, &order_events));
    let (spawned, spawn_result) = channel();
    thread::spawn(move || spawn_and_watch(starter, inherited_mask, &spawned, &events));
    let spawn_result = spawn_result.recv().map_err(io::Error::other)?;
    let child = match spawn_result {
        Ok(child) => child,
        Err(error) => {
            let report = GuardReport::NotStarted(error.to_string());
            return (&socket).write_all(&encode(&report));
        }
    };
    let mut guard = Guard {
        socket,
        group: ProcessGroup::led_by(Pid::from_child(&child)),
        deadlines,
        has_begun: false,
        is_ending: false,
        grace: Duration::from_millis(arguments.grace_ms),
    };
    guard.handle_events(&received);
    guard.finish(child)
}

/// Starts the command and watches it to its end, in one thread: on Linux the command dies with the thread that started it (see
/// [`die_with_the_guard`]).
fn spawn_and_watch(
    mut starter: Command,
    inherited_mask: SigSet,
    spawned: &Sender<io::Result<Child>>,
    events: &Sender<Event>,
) {
    // The command must not inherit that signals are blocked here.
    let child = inherited_mask
        .thread_set_mask()
        .map_err(io::Error::from)
        .and_then(|()| starter.spawn());
    let _ = SigSet::all().thread_block();
    let pid = child.as_ref().ok().map(Pid::from_child);
    let _ = spawned.send(child);
    if let Some(pid) = pid {
        watch(pid, events);
    }
}

/// What the guard reacts to.
enum Event {
    Order(Order),
    /// `forrst run` has died.
    Abandoned,
    /// A signal has stopped the command.
    Stopped(i32),
    /// The command has ended.
    Ended,
}

fn forward_orders(orders: Orders, events: &Sender<Event>) {
    for order in orders {
        let _ = events.send(Event::Order(order));
    }
    let _ = events.send(Event::Abandoned);
}

/// Waits for the command to stop and to end, without reaping it: as long as it is a zombie, its pid is not used again.
fn watch(child: Pid, events: &Sender<Event>) {
    let wait = |options| rustix::process::waitid(rustix::process::WaitId::Pid(child), options);
    loop {
        let event =
            match wait(WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) if status.stopped() => {
                    let _ = wait(WaitIdOptions::STOPPED);
                    Event::Stopped(status.stopping_signal().unwrap_or_default())
                }
                Err(error) if error == rustix::io::Errno::INTR => continue,
                _ => Event::Ended,
            };
        let is_last = matches!(event, Event::Ended);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

struct Guard {
    socket: UnixStream,
    group: ProcessGroup,
    deadlines: Deadlines,
    /// Whether the starter was allowed to become the command.
    has_begun: bool,
    /// Whether the command was asked to end, which is never taken back.
    is_ending: bool,
    grace: Duration,
}

impl Guard {
    /// Returns when the command has ended.
    fn handle_events(&mut self, events: &Receiver<Event>) {
        loop {
            self.enforce_deadlines();
            self.reap_orphans();
            let wait = self
                .deadlines
                .next()
                .map_or(LONGEST_WAIT, Moment::remaining);
            match events.recv_timeout(wait.min(LONGEST_WAIT)) {
                Ok(Event::Order(Order::Renewed(deadlines))) if !self.is_ending => {
                    self.deadlines = deadlines;
                }
                Ok(Event::Order(Order::Renewed(_))) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Order(Order::Begin)) => self.begin(),
                Ok(Event::Order(Order::End(deadlines))) => self.end(deadlines),
                Ok(Event::Order(Order::Signal(number))) => self.forward(number),
                Ok(Event::Abandoned) => self.end(Deadlines {
                    terminate_at: None,
                    kill_at: Some(Moment::now().after(self.grace)),
                }),
                Ok(Event::Stopped(_)) if !self.has_begun => {
                    self.report(&GuardReport::Ready(self.group.id()));
                }
                Ok(Event::Stopped(signal)) => self.report(&GuardReport::Stopped(signal)),
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn begin(&mut self) {
        self.has_begun = true;
        self.group.signal(Signal::CONT.as_raw());
    }

    /// A command that is stopped is continued when it is asked to end: before that it could not handle the signal.
    fn forward(&self, number: i32) {
        self.group.signal(number);
        let to_end = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];
        let asks_to_end = to_end.iter().any(|signal| signal.as_raw() == number);
        // The starter is stopped until the order to begin.
        if asks_to_end && self.has_begun {
            self.group.signal(Signal::CONT.as_raw());
        }
    }

    fn enforce_deadlines(&mut self) {
        let has_passed = |moment: Option<Moment>| moment.is_some_and(Moment::has_passed);
        if !self.is_ending && has_passed(self.deadlines.next()) {
            self.report(&GuardReport::LeaseExpired);
            self.end(self.deadlines);
        }
        if has_passed(self.deadlines.kill_at) {
            self.kill();
            // Again in a moment, for a process that was being forked.
            self.deadlines.kill_at = Some(Moment::now().after(LONGEST_WAIT));
        }
    }

    /// Asks the command to end. Its time to do so is never extended.
    fn end(&mut self, deadlines: Deadlines) {
        let is_new = !self.is_ending;
        self.is_ending = true;
        let earliest = [self.deadlines.kill_at, deadlines.kill_at];
        self.deadlines = Deadlines {
            terminate_at: None,
            kill_at: earliest.into_iter().flatten().min(),
        };
        if is_new && !self.deadlines.kill_at.is_some_and(Moment::has_passed) {
            let outside = processes::descendants_outside(Some(self.group), None);
            self.group.terminate();
            for signal in [Signal::TERM, Signal::CONT] {
                processes::signal_each(&outside, signal);
            }
        }
    }

    /// Kills the command and all that it has started.
    fn kill(&self) {
        self.group.kill();
        let outside = processes::descendants_outside(Some(self.group), None);
        processes::signal_each(&outside, Signal::KILL);
    }

    /// Whether something is left that has to end: of a command that was ended, everything that it has started.
    fn has_leftovers(&self) -> bool {
        let is_outside = || !processes::descendants_outside(Some(self.group), None).is_empty();
        self.group.exists() || self.is_ending && is_outside()
    }

    /// Reaps the orphans that this process has adopted, but not the command, so that its pid is not used again.
    fn reap_orphans(&self) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let command = self.group.id();
        while let Ok(status) = waitid(Id::All, flags)
            && let Some(pid) = status.pid().filter(|pid| pid.as_raw() != command)
            && waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_ok()
        {}
    }

    /// Reaps the command, ends what it has left behind, and only then reports its end: nothing of it runs on without the lock.
    fn finish(mut self, mut child: Child) -> io::Result<()> {
        let status = child.wait()?;
        let until = Moment::now().after(LEFTOVER_GRACE);
        let kill_at = self
            .deadlines
            .kill_at
            .map_or(until, |kill_at| kill_at.min(until));
        let give_up_at = kill_at.after(LEFTOVER_GRACE);
        while self.has_leftovers() && !give_up_at.has_passed() {
            if kill_at.has_passed() {
                self.kill_leftovers();
            }
            thread::sleep(Duration::from_millis(10));
            self.reap_orphans();
        }
        self.report(&report_of(status));
        Ok(())
    }

    /// A command that has ended by itself may leave a daemon, which is outside of its process group.
    fn kill_leftovers(&self) {
        if self.is_ending {
            self.kill();
        } else {
            self.group.kill();
        }
    }

    fn report(&mut self, report: &GuardReport) {
        // It fails when `forrst run` has died, which the guard handles as an event.
        let _ = (&self.socket).write_all(&encode(report));
    }
}

fn report_of(status: ExitStatus) -> GuardReport {
    match (status.code(), status.signal()) {
        (Some(code), _) => GuardReport::Exited(code),
        (None, signal) => GuardReport::Killed(signal.unwrap_or(Signal::KILL.as_raw())),
    }
}

#[derive(Args)]
pub(crate) struct StarterArguments {
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The process that becomes the command. It stops itself until the guard continues it: by then the command has the terminal,
/// and its deadlines are enforced. Returns only when the command cannot be run.
pub(crate) fn run_starter(arguments: &StarterArguments) -> CommandError {
    die_with_the_guard();
    stop_this_process();
    let [program, words @ ..] = arguments.command.as_slice() else {
        return CommandError::usage("there is no command");
    };
    let error = Command::new(program).args(words).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NO_SUCH_COMMAND,
        _ => exit::CANNOT_EXECUTE,
    };
    let message = format!("{} cannot be run: {error}", program.display());
    CommandError::local(message).exiting(code)
}

/// After a `killall -KILL forrst` no process is left that could end the command.
fn die_with_the_guard() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::set_parent_process_death_signal;
        // If this fails, the guard and `forrst run` still watch each other.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}
