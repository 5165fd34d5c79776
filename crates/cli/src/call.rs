//! `forrst call`.

mod arguments;

use std::time::Duration;

use clap::Args;
use forrst_client::{DEFAULT_TTL, Held, Lock};
use forrst_protocol::Response;

use crate::connection::ServerAddress;
use crate::error::CommandError;
use crate::lock::{check_own_key, release_command};
use crate::output::{complain, plain, pretty, print, print_value};
use crate::time;

/// Call a function, with or without a lock, and print its result.
///
/// Arguments are one JSON object, `-` for an object on standard input, or
/// key=value pairs. A value that is JSON is taken as such, all else as text:
/// `amount=100` is a number, `user_id=user_123` a text, `code='"100"'` a text.
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

The result is printed as JSON. --json prints the server's whole answer instead,
with the data of the lock, also when the call failed.

{}
Exit code 1 also when the time of --timeout is over.", crate::exit::HELP_WITH_LOCK)
)]
pub(crate) struct CallArguments {
    /// The function, such as payments.charge
    function: String,

    /// Its arguments
    #[arg(value_name = "JSON|KEY=VALUE")]
    arguments: Vec<String>,

    /// Which version of the function; without it, the highest stable one
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,

    /// Run it under the lock of this key
    #[arg(long, value_name = "KEY")]
    lock: Option<String>,

    /// How long the lock is held at most [default: 30s]
    #[arg(long, value_name = "DURATION", requires = "lock", value_parser = time::parse)]
    ttl: Option<Duration>,

    /// How long to wait for the lock when somebody else holds it [default: not at all]
    #[arg(long, value_name = "DURATION", requires = "lock", value_parser = time::parse)]
    block: Option<Duration>,

    /// Share the lock with callers of all functions
    #[arg(long, requires = "lock")]
    global: bool,

    /// Hold the lock after the function has ended, until it is released or expires
    #[arg(long, requires = "lock")]
    hold: bool,

    /// Let the server extend the lock while the function runs
    #[arg(long, requires = "lock")]
    renew: bool,

    /// The token that the lock is released by [default: a random one]
    #[arg(long, value_name = "TOKEN", requires = "lock")]
    owner: Option<String>,

    /// How long the call may take: the server is told, and ends it then [default: an hour, of which it is not told]
    #[arg(long, value_name = "DURATION", value_parser = time::parse)]
    timeout: Option<Duration>,

    #[command(flatten)]
    server: ServerAddress,

    /// Print the server's whole answer, on one line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How long an answer may take. Functions may work for long, and a connection that is dead without a sign should not be
/// waited on for ever.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

pub(crate) async fn run(arguments: CallArguments) -> Result<(), CommandError> {
    if let Some(key) = &arguments.lock {
        check_own_key(key, Some(&arguments.function))?;
    }
    let failed = |error| arguments.server.failed(error);
    let client = arguments.server.builder().timeout(PATIENCE).build();
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
    let answer = call.response().await.map_err(failed)?;
    if arguments.json {
        print_value(&answer)?;
    }
    if arguments.hold {
        tell_how_to_release(&answer);
    }
    match answer.into_result() {
        Ok(_) if arguments.json => Ok(()),
        Ok(result) => print(&format!("{}\n", plain(&pretty(result.get())))),
        // The whole answer was printed, so the errors are not to be printed as JSON again.
        Err(errors) => Err(CommandError::of_server(errors.as_slice()).in_words_only()),
    }
}

impl CallArguments {
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

/// What is held has to be released, and the caller needs to know how.
fn tell_how_to_release(answer: &Response) {
    if let Some(held) = Held::from_response(answer) {
        let command = release_command(held.full_key(), &held.owner, &held.fence.to_string());
        complain(&format!(
            "The lock is held. To release it: {}\n",
            plain(&command)
        ));
    }
}
