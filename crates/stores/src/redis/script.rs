//! The scripts: each is one step of the model, or reads only.

use std::time::Duration;

use forrst_lock::model::{CONFIRM_WITHIN, REMEMBERED_RELEASES};
use forrst_lock::{Fence, Fences, ReleaseMemory};
use fred::util::sha1_hash;

/// For how long a node counts as alive after it was last heard of.
const NODE_TTL_MILLIS: u64 = 5_000;
/// How late a call may arrive after it was given up.
const UNDONE_TTL_MILLIS: u64 = 120_000;
/// When a lease that ran out and that no node has swept away is forgotten, and a node that is silent.
const FORGOTTEN_AFTER_MILLIS: u64 = 60_000;
/// How many waiters of a full queue are looked at for those that have gone.
const PRUNED_AT_ONCE: u64 = 128;
/// By how much the clock of a server may be behind that of the one before it.
const CLOCK_SKEW_MILLIS: u64 = 60_000;

/// How many calls of one attempt are told apart. A lease that was given to more is never rolled back.
const MAX_CALLS: u64 = 16;

const STEP: &str = include_str!("scripts/lock.lua");

#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: String,
    pub(super) sha: String,
}

impl Script {
    fn new(source: String) -> Self {
        let sha = sha1_hash(&source);
        Self { source, sha }
    }

    fn step(command: &str, memory: ReleaseMemory) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let per_millisecond = Fences::PER_MILLISECOND;
        let constants = [
            ("RELEASE_MEMORY", millis(memory.as_duration())),
            ("REMEMBERED_RELEASES", REMEMBERED_RELEASES as u64),
            ("MAX_CALLS", MAX_CALLS),
            ("NODE_TTL", NODE_TTL_MILLIS),
            ("CONFIRM_WITHIN", millis(CONFIRM_WITHIN)),
            ("UNDONE_TTL", UNDONE_TTL_MILLIS),
            ("FORGOTTEN_AFTER", FORGOTTEN_AFTER_MILLIS),
            ("PRUNED_AT_ONCE", PRUNED_AT_ONCE),
            ("FENCE_EPOCH", Fences::EPOCH_MILLIS),
            ("FENCES_PER_MILLISECOND", per_millisecond),
            ("FENCE_MARGIN", CLOCK_SKEW_MILLIS * per_millisecond),
            ("FENCE_BY_TIME_MAX", Fence::WARN.number()),
            ("FENCE_MAX", Fence::MAX.number()),
        ];
        let constants = constants.map(|(name, value)| format!("local {name} = {value}\n"));
        Self::new(format!("{}\n{STEP}\n{command}", constants.concat()))
    }
}

#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) abandon: Script,
    pub(super) release: Script,
    pub(super) extend: Script,
    pub(super) force_release: Script,
    pub(super) confirm: Script,
    pub(super) settle: Script,
    pub(super) inspect: Script,
    pub(super) queue: Script,
    pub(super) due: Script,
}

impl Scripts {
    pub(super) fn new(memory: ReleaseMemory) -> Self {
        let step = |command| Script::step(command, memory);
        Self {
            acquire: step(include_str!("scripts/acquire.lua")),
            abandon: step(include_str!("scripts/abandon.lua")),
            release: step(include_str!("scripts/release.lua")),
            extend: step(include_str!("scripts/extend.lua")),
            force_release: step(include_str!("scripts/force_release.lua")),
            confirm: step(include_str!("scripts/confirm.lua")),
            settle: step(include_str!("scripts/settle.lua")),
            inspect: step(include_str!("scripts/inspect.lua")),
            queue: step(include_str!("scripts/queue.lua")),
            due: Script::new(include_str!("scripts/due.lua").to_owned()),
        }
    }
}
