//! `forrst run`: runs a command while holding a lock, stops it before the lock can be lost, and ends as it ended.
//!
//! Three processes take part. This one holds the lease, which the client renews. It starts the *guard* ([`guard`]), a second
//! process of this program, which ends the command at its deadline: so nothing runs on without the lock when `forrst run` is
//! killed or stopped. The guard starts the *starter*, which waits for the order to begin and then becomes the command.
//!
//! - [`deadlines`] says when the command gets SIGTERM and SIGKILL: before the lease ends on the server.
//! - [`guard_link`] carries the deadlines and signals to the guard, and what becomes of the command back.
//! - [`supervisor`] connects lease, guard, signals and terminal while the command runs.
//! - [`processes`] reaches what the command has started, in whatever process group or session it is.
//! - [`job_control`] forwards signals, lends the terminal, and ends this process by the signal that ended the command.

mod deadlines;
pub(crate) mod guard;
mod guard_link;
mod job_control;
mod processes;
mod supervisor;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use forrst_client::{Client, Error, Lease};

use crate::connection::{Connection, settle};
use crate::error::CommandError;
use crate::exit;
use crate::lock::AcquireOptions;
use crate::output::{print_error, sanitized};
use crate::time;
use deadlines::{OnLost, Timing};
use guard_link::GuardProcess;
use job_control::IncomingSignals;
use supervisor::{Ending, Outcome, Supervisor};

/// Run a command while holding a lock.
///
/// The lock is renewed while the command runs, and released when it has ended.
/// The command has `FORRST_LOCK_KEY`, `FORRST_LOCK_OWNER` and `FORRST_LOCK_FENCE`
/// in its environment; the fence is for the resource that it writes to.
/// With several keys, `FORRST_LOCK_KEY` is the first, and `FORRST_LOCK_KEYS` has
/// all of them, one a line.
///
/// When the lock is lost, the command and all that it has started get SIGTERM, and
/// SIGKILL before another client can get the lock: also when this process is
/// stopped or killed. (On systems other than Linux, only its process group does.)
///
/// A lock that is taken away, as by `forrst lock force-release`, is lost, too. That
/// is noticed within about a second; another client may have the lock meanwhile.
///
/// When the command has ended, the processes that it leaves behind in its process
/// group have a second to end; then they are killed, and the lock is released. A
/// daemon, which has a session of its own, may run on.
///
/// Signals are forwarded to the command. If it is stopped with ^Z for longer than
/// the ttl, the lock is lost, and the command is killed.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst run --key export:orders -- ./export.sh
  forrst run --key export:orders --ttl 1m --block 5m -- ./export.sh --all
  forrst run --key account:1 --key account:2 -- ./transfer.sh
  forrst run --key licences --limit 3 --block 1h -- ./render.sh
  forrst run --key config --shared -- ./report.sh
  forrst run --key deploy -- sh -c 'echo \"fence $FORRST_LOCK_FENCE\"'

Exit codes: that of the command, 127 when there is no such command, 126 when it
cannot be run; 75 another client holds the lock, 76 the lock was lost, 1 the
server answered with another error, 2 wrong usage, 69 no server can be reached or
it cannot serve now, 77 not allowed. When a signal ended the command, the same
signal ends this process, which a shell shows as 128+n."
)]
pub(crate) struct RunArguments {
    /// The key to lock, such as export:orders; several are locked together, all or none
    #[arg(long = "key", value_name = "KEY", required = true)]
    keys: Vec<String>,

    /// How long the lock is held when it cannot be renewed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time::parse)]
    ttl: Duration,

    #[command(flatten)]
    options: AcquireOptions,

    /// What to do with the command when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "terminate")]
    on_lost: OnLost,

    /// How long the command has between SIGTERM and SIGKILL, half the ttl at most [default: a quarter of the ttl, 10s at most]
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    grace: Option<Duration>,

    #[command(flatten)]
    connection: Connection,

    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        required = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// With a shorter one, a busy machine would lose every lock.
const SHORTEST_TTL: Duration = Duration::from_millis(500);

pub(crate) async fn run(arguments: RunArguments) -> Result<u8, CommandError> {
    arguments.options.check(&arguments.keys)?;
    let timing = arguments.timing()?;
    let client = arguments.connection.client()?;
    let mut signals = IncomingSignals::listen()
        .map_err(|error| CommandError::local(format!("cannot handle signals: {error}")))?;
    let outcome = arguments.run(&client, timing, &mut signals).await;
    if !settle(&client).await {
        let key = sanitized(&arguments.keys.join(", "));
        print_error(&format!(
            "warning: the lock {key} was perhaps not released, and will expire: the server does not answer\n"
        ));
    }
    outcome.map(|end| match end {
        End::Code(code) => code,
        End::Signal(number) => job_control::die_by(number),
    })
}

/// How this process is to end.
enum End {
    Code(u8),
    /// By the signal that ended the command, or that arrived before there was one.
    Signal(i32),
}

impl RunArguments {
    /// Acquires the lock, runs the command, and releases the lock.
    async fn run(
        &self,
        client: &Client,
        timing: Timing,
        signals: &mut IncomingSignals,
    ) -> Result<End, CommandError> {
        let lease = tokio::select! {
            lease = self.acquire(client) => lease?,
            signal = signals.next_termination() => return Ok(End::Signal(signal.as_raw())),
        };
        tokio::select! {
            ready = self.until_ready(&lease, timing) => ready?,
            signal = signals.next_termination() => {
                release(lease, signals).await;
                return Ok(End::Signal(signal.as_raw()));
            }
        }
        let outcome = self.run_command(&lease, timing, signals).await;
        release(lease, signals).await;
        self.conclude(outcome?)
    }

    /// Starts the command, and returns when it has ended.
    async fn run_command(
        &self,
        lease: &Lease,
        timing: Timing,
        signals: &mut IncomingSignals,
    ) -> Result<Outcome, CommandError> {
        let variables = [
            ("FORRST_LOCK_KEY", lease.full_key().to_owned()),
            ("FORRST_LOCK_KEYS", lease.full_keys().join("\n")),
            ("FORRST_LOCK_OWNER", lease.owner().to_owned()),
            ("FORRST_LOCK_FENCE", lease.fence().to_string()),
        ];
        // If the guard is killed, its descendants become ours.
        processes::adopt_orphans();
        let deadlines = supervisor::deadlines(&timing, lease);
        let guard = GuardProcess::start(&self.command, &variables, timing.grace, deadlines);
        let mut guard = guard.map_err(|error| {
            CommandError::local(format!("cannot start the guard of the command: {error}"))
                .exiting(exit::INTERNAL)
        })?;
        let supervisor = Supervisor::new(timing, lease, deadlines, &mut guard, signals);
        let outcome = supervisor.run().await;
        guard.reap();
        if outcome.ending == Ending::GuardKilled {
            // It was their parent, so only now they are our descendants.
            processes::kill_descendants();
        }
        Ok(outcome)
    }

    fn timing(&self) -> Result<Timing, CommandError> {
        if self.ttl < SHORTEST_TTL {
            return Err(CommandError::usage(
                "--ttl must be at least 500ms: a lock has to be renewed in time",
            ));
        }
        let grace = self
            .grace
            .unwrap_or_else(|| Timing::default_grace(self.ttl));
        if grace > Timing::max_grace(self.ttl) {
            return Err(
                CommandError::usage("--grace must be no more than half of --ttl")
                    .hint("what is left of the ttl is for renewing it"),
            );
        }
        Ok(Timing {
            ttl: self.ttl,
            grace: if self.on_lost == OnLost::Kill {
                Duration::ZERO
            } else {
                grace
            },
            on_lost: self.on_lost,
        })
    }

    async fn acquire(&self, client: &Client) -> Result<Lease, CommandError> {
        let lock = self.options.acquire(client, &self.keys, self.ttl);
        let lease = lock.acquire().await;
        lease.map_err(|error| self.connection.failed(error))
    }

    /// Returns when there is enough time left on the lease to begin. After a wait it is not known when the lock was granted, until
    /// it is renewed.
    async fn until_ready(&self, lease: &Lease, timing: Timing) -> Result<(), CommandError> {
        while lease.remaining() < self.ttl / 2 {
            if !lease.is_held() {
                let lost = Error::Lost(lease.lost().await);
                return Err(self.connection.failed(lost));
            }
            tokio::time::sleep(timing.poll_interval()).await;
        }
        Ok(())
    }

    fn conclude(&self, outcome: Outcome) -> Result<End, CommandError> {
        let Outcome { ending, loss } = outcome;
        let program = self
            .command
            .first()
            .map(|program| program.display().to_string());
        let program = program.unwrap_or_default();
        if let Some(reason) = loss {
            let lost = format!("the lock {} was lost: {reason}", self.keys.join(", "));
            if self.on_lost != OnLost::Ignore {
                return Err(
                    CommandError::local(format!("{lost}. {program} was ended")).exiting(exit::LOST)
                );
            }
            print_error(&format!("warning: {lost}. {program} ran on without it\n"));
        }
        match ending {
            Ending::Exited(code) => Ok(End::Code(u8::try_from(code).unwrap_or(u8::MAX))),
            Ending::Killed(signal) => Ok(End::Signal(signal)),
            Ending::NotStarted(reason) => Err(CommandError::local(format!(
                "{program} cannot be started: {reason}"
            ))
            .exiting(exit::INTERNAL)),
            Ending::GuardKilled => {
                let message =
                    format!("the guard process of {program} was killed, and {program} with it");
                Err(CommandError::local(message).exiting(exit::INTERNAL))
            }
        }
    }
}

/// Releases the lock. The command has ended either way, so a failure is only a warning.
///
/// A signal ends the wait for a server that does not answer; the release goes on in the background for a moment.
async fn release(lease: Lease, signals: &mut IncomingSignals) {
    let full_key = sanitized(lease.full_key());
    let released = tokio::select! {
        released = lease.release() => released,
        _ = signals.next_termination() => return,
    };
    if let Err(error) = released
        && error.failure().is_some()
    {
        print_error(&format!(
            "warning: {full_key} was not released, and will expire: {error}\n"
        ));
    }
}
