//! `forrst run`: a command under a lock.

mod descendants;
mod group;
pub(crate) mod guard;
mod guarded;
mod last_signal;
mod link;
mod message;
mod moment;
mod plan;
mod signals;
pub(crate) mod starter;
mod supervision;
mod terminal;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use forrst_client::{Client, Error, Lease};

use crate::connection::{Connection, settle};
use crate::error::CommandError;
use crate::exit;
use crate::lock::Wanted;
use crate::output::{complain, plain};
use crate::time;
use guarded::Guarded;
use plan::{OnLost, Plan};
use signals::Signals;
use supervision::{Ending, Outcome, Supervision};
use terminal::Terminal;

/// Run a command while holding a lock.
///
/// The lock is renewed while the command runs, and released when it has ended.
/// The command finds `FORRST_LOCK_KEY`, `FORRST_LOCK_OWNER` and
/// `FORRST_LOCK_FENCE` in its environment; the fence is for what it writes to.
/// Of several keys, `FORRST_LOCK_KEY` is the first, and `FORRST_LOCK_KEYS` has
/// all of them, one a line.
///
/// When the lock is lost, the command and all that it has started get SIGTERM,
/// and SIGKILL before anybody else can have the lock: also when this process is
/// stopped or killed. (On other systems than Linux, its process group does.)
///
/// When the command has ended, what it leaves behind in its process group has a
/// second to end; then it is killed, and the lock released. A daemon, which has a
/// session of its own, is left alone.
///
/// Signals are passed on to the command. Stopped with ^Z for longer than the
/// ttl, it loses its lock, and its life.
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
    /// What to lock, such as export:orders; given more than once, all of them or none
    #[arg(long = "key", value_name = "KEY", required = true)]
    keys: Vec<String>,

    /// How long the lock lasts when it cannot be renewed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time::parse)]
    ttl: Duration,

    #[command(flatten)]
    wanted: Wanted,

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

/// Below that a busy machine would lose every lock.
const SHORTEST_TTL: Duration = Duration::from_millis(500);

pub(crate) async fn run(arguments: RunArguments) -> Result<u8, CommandError> {
    arguments.wanted.check(&arguments.keys)?;
    let plan = arguments.plan()?;
    let client = arguments.connection.client()?;
    let mut signals = Signals::listen()
        .map_err(|error| CommandError::local(format!("cannot listen to signals: {error}")))?;
    let outcome = arguments.run(&client, plan, &mut signals).await;
    if !settle(&client).await {
        let key = plain(&arguments.keys.join(", "));
        complain(&format!(
            "warning: the lock {key} was perhaps not released, and ends by itself: the server does not answer\n"
        ));
    }
    outcome.map(|end| match end {
        End::Code(code) => code,
        End::Signal(number) => last_signal::die_by(number),
    })
}

/// How this process is to end.
enum End {
    Code(u8),
    /// By the signal that ended the command, or that came before there was one.
    Signal(i32),
}

impl RunArguments {
    /// From asking for the lock to giving it back.
    async fn run(
        &self,
        client: &Client,
        plan: Plan,
        signals: &mut Signals,
    ) -> Result<End, CommandError> {
        let lease = tokio::select! {
            lease = self.acquire(client) => lease?,
            signal = signals.end() => return Ok(End::Signal(signal.as_raw())),
        };
        tokio::select! {
            ready = self.is_ready(&lease, plan) => ready?,
            signal = signals.end() => {
                release(lease, signals).await;
                return Ok(End::Signal(signal.as_raw()));
            }
        }
        let outcome = self.supervise(&lease, plan, signals).await;
        release(lease, signals).await;
        self.conclude(outcome?)
    }

    /// From the start of the command to its end.
    async fn supervise(
        &self,
        lease: &Lease,
        plan: Plan,
        signals: &mut Signals,
    ) -> Result<Outcome, CommandError> {
        let variables = [
            ("FORRST_LOCK_KEY", lease.full_key().to_owned()),
            ("FORRST_LOCK_KEYS", lease.full_keys().join("\n")),
            ("FORRST_LOCK_OWNER", lease.owner().to_owned()),
            ("FORRST_LOCK_FENCE", lease.fence().to_string()),
        ];
        // Where the guard is killed, they come to us.
        descendants::adopt();
        let limits = supervision::limits(&plan, lease);
        let guarded = Guarded::start(&self.command, &variables, plan.grace, limits);
        let mut guarded = guarded.map_err(|error| {
            CommandError::local(format!("the command cannot be guarded: {error}"))
                .exiting(exit::INTERNAL)
        })?;
        let supervision = Supervision {
            plan,
            lease,
            guarded: &mut guarded,
            signals,
            limits,
            terminal: Terminal::find(),
        };
        let outcome = supervision.run().await;
        guarded.bury();
        if outcome.ending == Ending::Unguarded {
            // Now that it is gone, all that was in its care is in ours.
            descendants::kill_all();
        }
        Ok(outcome)
    }

    fn plan(&self) -> Result<Plan, CommandError> {
        if self.ttl < SHORTEST_TTL {
            return Err(CommandError::usage(
                "--ttl must be at least 500ms: a lock has to be renewed in time",
            ));
        }
        let grace = self.grace.unwrap_or_else(|| Plan::usual_grace(self.ttl));
        if grace > Plan::longest_grace(self.ttl) {
            return Err(
                CommandError::usage("--grace must be no more than half of --ttl")
                    .hint("what is left of the ttl is for renewing it"),
            );
        }
        Ok(Plan {
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
        let lock = self.wanted.lock(client, &self.keys, self.ttl);
        let lease = lock.acquire().await;
        lease.map_err(|error| self.connection.failed(error))
    }

    /// Returns when there is enough time on the lease to begin. After a wait for the lock nobody here knows for how long
    /// it has been granted, until it is renewed.
    async fn is_ready(&self, lease: &Lease, plan: Plan) -> Result<(), CommandError> {
        while lease.remaining() < self.ttl / 2 {
            if !lease.is_held() {
                let lost = Error::Lost(lease.lost().await);
                return Err(self.connection.failed(lost));
            }
            tokio::time::sleep(plan.pause()).await;
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
            complain(&format!("warning: {lost}. {program} ran on without it\n"));
        }
        match ending {
            Ending::Exited(code) => Ok(End::Code(u8::try_from(code).unwrap_or(u8::MAX))),
            Ending::Killed(signal) => Ok(End::Signal(signal)),
            Ending::NotStarted(reason) => Err(CommandError::local(format!(
                "{program} cannot be started: {reason}"
            ))
            .exiting(exit::INTERNAL)),
            Ending::Unguarded => {
                let message = format!(
                    "the process that guards {program} was killed, and so {program} was, too"
                );
                Err(CommandError::local(message).exiting(exit::INTERNAL))
            }
        }
    }
}

/// Gives the lock back. The command has ended either way, so what goes wrong here is only told.
///
/// A server that does not answer is not waited for by whoever wants to end: then it goes on in the background for a moment.
async fn release(lease: Lease, signals: &mut Signals) {
    let full_key = plain(lease.full_key());
    let released = tokio::select! {
        released = lease.release() => released,
        _ = signals.end() => return,
    };
    if let Err(error) = released
        && error.failure().is_some()
    {
        complain(&format!(
            "warning: {full_key} was not released, and ends by itself: {error}\n"
        ));
    }
}
