//! `forrst call`: calls a function, with or without a lock, and prints its result.

mod arguments;

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use forrst_client::{Call, CancelHandle, DEFAULT_TTL, Error, Held, Lock};
use forrst_protocol::Response;
use serde_json::value::RawValue;

use crate::connection::ServerAddress;
use crate::error::CommandError;
use crate::exit;
use crate::lock::{refuse_full_key, release_command};
use crate::output::{pretty, print, print_error, print_value, sanitized};
use crate::time;

/// Call a function, with or without a lock, and print its result.
///
/// Arguments are one JSON object, `-` for an object on standard input, or
/// key=value pairs. A value that is valid JSON is sent as JSON, any other as a string:
/// `amount=100` is a number, `user_id=user_123` and `code='"100"'` are strings.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = format!("\
Examples:
  forrst call demo.echo greeting=hello
  forrst call payments.charge '{{\"user_id\": \"user_123\", \"amount\": 100}}'
  forrst call payments.charge user_id=user_123 amount=100 --lock user:123 --block 5s
  forrst call demo.echo --lock deploy --global --hold --ttl 10m --owner me
  forrst call reports.build month=2026-01 --timeout 10m
  forrst call urn:cline:forrst:fn:describe function=payments.charge

^C cancels the call: if it waits for its lock, it leaves the queue; a function that
runs is notified, and its lock is released when it has ended.

The result is printed as JSON. --json prints the server's whole answer instead,
with the data of the lock, also when the call failed.

{}
Exit code 1 also when the time of --timeout is over, 130 after ^C.", crate::exit::HELP_WITH_LOCK)
)]
pub(crate) struct CallArguments {
    /// The function, such as payments.charge
    function: String,

    /// Its arguments
    #[arg(value_name = "JSON|KEY=VALUE")]
    arguments: Vec<String>,

    /// The version of the function [default: the highest stable one]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,

    /// Run the function under the lock of this key
    #[arg(long, value_name = "KEY")]
    lock: Option<String>,

    /// How long the lock is held at most [default: 30s]
    #[arg(long, value_name = "DURATION", requires = "lock", value_parser = time::parse)]
    ttl: Option<Duration>,

    /// How long to wait for the lock when another client holds it [default: not at all]
    #[arg(long, value_name = "DURATION", requires = "lock", value_parser = time::parse)]
    block: Option<Duration>,

    /// Share the lock with callers of all functions
    #[arg(long, requires = "lock")]
    global: bool,

    /// Keep the lock after the function has ended, until it is released or expires
    #[arg(long, requires = "lock")]
    hold: bool,

    /// Let the server extend the lock while the function runs
    #[arg(long, requires = "lock")]
    renew: bool,

    /// The token that releases the lock [default: a random one]
    #[arg(long, value_name = "TOKEN", requires = "lock")]
    owner: Option<String>,

    /// How long the call may take; it is sent to the server, which ends the call then [default: an hour, which is not sent]
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    timeout: Option<Duration>,

    #[command(flatten)]
    server: ServerAddress,

    /// Print the server's whole answer, on one line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How long an answer may take: functions may run for long, but a connection that is dead must not be waited on for ever.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);

pub(crate) async fn run(arguments: CallArguments) -> Result<(), CommandError> {
    if let Some(key) = &arguments.lock {
        refuse_full_key(key, Some(&arguments.function))?;
    }
    let failed = |error| arguments.server.failed(error);
    let client = arguments.server.builder().timeout(MAX_WAIT).build();
    let client = client.map_err(failed)?;
    let sent = arguments::parse(&arguments.arguments, std::io::stdin())?;
    let mut call = client.call_raw(&arguments.function, sent);
    if let Some(version) = &arguments.version {
        call = call.version(version);
    }
    if let Some(lock) = arguments.lock() {
        call = call.lock(lock);
    }
    if let Some(timeout) = arguments.timeout {
        call = call.deadline(timeout);
    }
    let answer = if arguments.is_cancellable() {
        let (call, cancel) = call.cancellable();
        answer_or_interrupt(call, cancel).await
    } else {
        call.response().await
    };
    let answer = answer.map_err(failed)?;
    if arguments.json {
        print_value(&answer)?;
    }
    if arguments.hold {
        print_release_command(&answer);
    }
    match answer.into_result() {
        Ok(_) if arguments.json => Ok(()),
        Ok(result) => print(&format!("{}\n", sanitized(&pretty(result.get())))),
        // With --json, the errors were printed with the whole answer.
        Err(errors) => Err(CommandError::from_server(errors.as_slice()).without_json()),
    }
}

/// Waits for the answer. The first ^C cancels the call, whose answer is awaited all the same: it says how the call has ended. A second
/// one ends the program.
async fn answer_or_interrupt(
    call: Call<Box<RawValue>>,
    cancel: CancelHandle,
) -> Result<Response, Error> {
    let mut answer = pin!(call.response());
    let interrupted = tokio::select! {
        // First, so that the signal is handled before the call is sent.
        biased;
        interrupted = tokio::signal::ctrl_c() => interrupted,
        answer = &mut answer => return answer,
    };
    if interrupted.is_err() {
        // The signal ends the program, as by default.
        return answer.await;
    }
    print_error("Cancelling the call. ^C again ends this program at once.\n");
    let cancelled = async {
        if let Err(error) = cancel.cancel().await {
            let error = sanitized(&error.to_string());
            print_error(&format!("The call could not be cancelled: {error}\n"));
        }
        answer.await
    };
    tokio::select! {
        answer = cancelled => answer,
        _ = tokio::signal::ctrl_c() => std::process::exit(i32::from(exit::INTERRUPTED)),
    }
}

impl CallArguments {
    /// System functions that cannot wait take no cancellation token.
    fn is_cancellable(&self) -> bool {
        !self.function.starts_with("urn:cline:forrst:")
    }

    fn lock(&self) -> Option<Lock> {
        let mut lock = Lock::key(self.lock.as_ref()?).ttl(self.ttl.unwrap_or(DEFAULT_TTL));
        if let Some(block) = self.block {
            lock = lock.wait(block);
        }
        if let Some(owner) = &self.owner {
            lock = lock.owner(owner);
        }
        if self.global {
            lock = lock.global();
        }
        if self.hold {
            lock = lock.keep();
        }
        if self.renew {
            lock = lock.renew();
        }
        Some(lock)
    }
}

/// Prints how to release a lock that is still held.
fn print_release_command(answer: &Response) {
    if let Some(held) = Held::from_response(answer) {
        let command = release_command(held.full_key(), &held.owner, &held.fence.to_string());
        print_error(&format!(
            "The lock is held. To release it: {}\n",
            sanitized(&command)
        ));
    }
}
