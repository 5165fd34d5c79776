//! The function library: the source in `lua/` with its constants substituted.
//!
//! Its name contains a hash of the source, so that nodes of different versions can use one server, and a library that is there is
//! always the right one.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use forrst_lock::model::{
    CALL_MEMORY, CONFIRM_WITHIN, MAX_CALLS, MAX_WITHDRAWALS, REMEMBERED_RELEASES, WITHDRAWAL_TTL,
};
use forrst_lock::{Fence, Fences};
use fred::error::Error as FredError;
use fred::types::Value;
use fred::util::sha1_hash;

use super::connection::{Connection, NO_FUNCTION, has_prefix};

const CONSTANTS: &str = include_str!("lua/constants.lua");
/// In this order: a function has to be defined before those that call it.
const PARTS: [&str; 13] = [
    include_str!("lua/call.lua"),
    include_str!("lua/server.lua"),
    include_str!("lua/keys.lua"),
    include_str!("lua/leases.lua"),
    include_str!("lua/claims.lua"),
    include_str!("lua/obstacle.lua"),
    include_str!("lua/step.lua"),
    include_str!("lua/write.lua"),
    include_str!("lua/fast_path.lua"),
    include_str!("lua/acquire.lua"),
    include_str!("lua/commands.lua"),
    include_str!("lua/read.lua"),
    include_str!("lua/main.lua"),
];

/// For how long a node counts as alive after its last heartbeat.
pub(super) const NODE_TTL: Duration = Duration::from_secs(5);
/// If no node at all has sent a heartbeat for this long, it was the server that was unavailable, and not the nodes.
const NODE_SILENCE: Duration = Duration::from_millis(2500);
/// After how long without a heartbeat a node is forgotten.
const NODE_RETENTION: Duration = Duration::from_secs(600);
/// For how long an expired lease is kept that no node sweeps.
const EXPIRED_LEASE_RETENTION: Duration = Duration::from_secs(60);
/// After a longer gap between calls a server may have been replaced meanwhile: nodes call it every second.
const MAX_CALL_GAP: Duration = Duration::from_secs(3);
/// By how much the clock of a new server may be behind that of the server it replaces.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// By how much the stored upper bound of the fences is ahead of the time.
const FENCE_WINDOW: Duration = Duration::from_secs(4);
/// For how long a key remembers its last fence: longer than [`FENCE_WINDOW`].
const FENCE_MEMORY: Duration = Duration::from_secs(10);
/// The hint when to retry if no lease is found that blocks a claim.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);
/// How many claims are followed at most, from the one that reserves a key to the lease that it waits for.
const MAX_FOLLOWED: u64 = 32;
/// How many waiting claims one call grants at most, so that it does not block Redis for long.
const MAX_GRANTS: u64 = 128;
/// How many leases of a key are kept in its state. If there are more, all are kept in its sorted set.
const MAX_INLINE_LEASES: u64 = 32;

/// The source, and the names of its functions.
#[derive(Debug)]
pub(super) struct Library {
    source: String,
    pub(super) run: String,
    /// As `run`, but also runs on a server that is full.
    pub(super) run_full: String,
    pub(super) read: String,
    pub(super) due: String,
    pub(super) counts: String,
    pub(super) touch: String,
}

impl Library {
    pub(super) fn new() -> Self {
        let text = with_constants(&PARTS.concat());
        let name = format!("forrst_{}", &sha1_hash(&text)[..12]);
        let function = |what: &str| format!("{name}_{what}");
        Self {
            run: function("run"),
            run_full: function("run_full"),
            read: function("read"),
            due: function("due"),
            counts: function("counts"),
            touch: function("touch"),
            source: format!("#!lua name={name}\nlocal PREFIX = '{name}'\n{text}"),
        }
    }

    /// Calls a function. Loads the library first if the server does not have it: a new server, a primary that took over, or one
    /// whose functions were flushed.
    pub(super) async fn call(
        &self,
        connection: &Connection,
        function: &str,
        keys: Vec<Value>,
        arguments: Vec<Value>,
    ) -> Result<Value, FredError> {
        let call = call_arguments(function, keys, arguments);
        match connection.command("FCALL", call.clone()).await {
            Err(error) if is_missing(&error) => {
                self.load(connection).await?;
                connection.command("FCALL", call).await
            }
            answer => answer,
        }
    }

    pub(super) async fn load(&self, connection: &Connection) -> Result<(), FredError> {
        let arguments = ["LOAD", &self.source].map(Value::from);
        match connection.command("FUNCTION", arguments.into()).await {
            // Another call or node was faster; the same name means the same source. The error has no code of its own. `REPLACE` would
            // avoid it, but would also reset what the library remembers of earlier calls.
            Err(error) if error.details().contains("already exists") => Ok(()),
            loaded => loaded.map(drop),
        }
    }
}

/// The arguments of `FCALL`.
pub(super) fn call_arguments(
    function: &str,
    keys: Vec<Value>,
    arguments: Vec<Value>,
) -> Vec<Value> {
    let mut call = Vec::with_capacity(2 + keys.len() + arguments.len());
    call.push(Value::from(function));
    call.push(Value::from(i64::try_from(keys.len()).unwrap_or_default()));
    call.extend(keys);
    call.extend(arguments);
    call
}

/// Whether a call failed because the server does not have the function.
pub(super) fn is_missing(error: &FredError) -> bool {
    has_prefix(error, NO_FUNCTION)
}

/// Replaces the names of constants by their numbers.
fn with_constants(text: &str) -> String {
    let constants = constants();
    let mut written = String::with_capacity(text.len());
    let mut rest = text;
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    while let Some(start) = rest.find(is_of_word) {
        written.push_str(&rest[..start]);
        rest = &rest[start..];
        let (word, after) = rest.split_at(rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()));
        match constants.get(word) {
            // Writing to a string cannot fail.
            Some(number) => drop(write!(written, "{number}")),
            None => written.push_str(word),
        }
        rest = after;
    }
    written.push_str(rest);
    written
}

fn constants() -> HashMap<&'static str, i64> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let per_millisecond = number(Fences::PER_MILLISECOND);
    let mut constants = HashMap::from([
        ("REMEMBERED_RELEASES", number(REMEMBERED_RELEASES as u64)),
        ("MAX_CALLS", number(MAX_CALLS as u64)),
        ("MAX_WITHDRAWALS", number(MAX_WITHDRAWALS as u64)),
        ("CALL_MEMORY", millis(CALL_MEMORY)),
        ("WITHDRAWAL_TTL", millis(WITHDRAWAL_TTL)),
        ("CONFIRM_WITHIN", millis(CONFIRM_WITHIN)),
        ("NODE_TTL", millis(NODE_TTL)),
        ("NODE_SILENCE", millis(NODE_SILENCE)),
        ("NODE_RETENTION", millis(NODE_RETENTION)),
        ("EXPIRED_LEASE_RETENTION", millis(EXPIRED_LEASE_RETENTION)),
        ("MAX_CALL_GAP", millis(MAX_CALL_GAP)),
        ("DEFAULT_RETRY", millis(DEFAULT_RETRY)),
        ("MAX_FOLLOWED", number(MAX_FOLLOWED)),
        ("MAX_GRANTS", number(MAX_GRANTS)),
        ("MAX_INLINE_LEASES", number(MAX_INLINE_LEASES)),
        (
            "FENCE_EPOCH",
            number(Fences::EPOCH_MILLIS) * per_millisecond,
        ),
        ("FENCE_MICROS", 1000 / per_millisecond),
        ("FENCE_MARGIN", millis(CLOCK_SKEW) * per_millisecond),
        ("FENCE_WINDOW", millis(FENCE_WINDOW) * per_millisecond),
        ("FENCE_MEMORY", millis(FENCE_MEMORY)),
        ("FENCE_BY_TIME_MAX", number(Fence::WARN.number())),
        ("FENCE_MAX", number(Fence::MAX.number())),
    ]);
    let named = CONSTANTS.lines().filter_map(|line| line.split_once(" = "));
    constants.extend(named.filter_map(|(name, value)| Some((name, value.parse().ok()?))));
    constants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_whole_words() {
        let text =
            with_constants("local FENCE_MAX, x = MAX_INLINE_LEASES, { LOCKS, C_LOCKS, BLOCKS }");
        let expected = "local 900000000000000, x = 32, { 11, 6, BLOCKS }";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_name_in_capitals_has_a_number_or_is_a_variable() {
        let library = Library::new();
        let variables = [
            "KEYS",
            "ARGV",
            "META",
            "NODES",
            "TOMBSTONES",
            "COUNTERS",
            "COMMANDS",
            "FAST_PATHS",
            "PREFIX",
            "FCALL",
        ];
        let code = library
            .source
            .lines()
            .map(|line| match line.split_once("--") {
                Some((code, _)) => code,
                None => line,
            });
        // Commands and their options are in quotes.
        let unquoted = code.flat_map(|line| line.split('\'').step_by(2));
        let words = unquoted
            .flat_map(|text| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
        let in_capitals = words.filter(|word| {
            word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        });
        for word in in_capitals {
            assert!(variables.contains(&word), "{word}");
        }
    }
}
