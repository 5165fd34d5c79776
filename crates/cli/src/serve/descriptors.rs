//! File descriptors: every connection needs one, and the server needs some for itself.

use forrst_server::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the store, the logs, the listeners, connections to a server that is full, and reading keys again.
const OWN: u64 = 256;

/// Raises the limit of open files as far as it goes, and keeps the number of connections below it.
pub(super) fn make_room(limits: &mut Limits) {
    let allowed = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: allowed.maximum,
        maximum: allowed.maximum,
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => allowed.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            allowed.current
        }
    };
    // `None` is no limit at all.
    let Some(current) = current else {
        return;
    };
    let room = current.saturating_sub(OWN).max(current / 2).max(1);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if limits.max_connections > room {
        tracing::warn!(
            open_files = current,
            max_connections = room,
            "--max-connections is lowered, so that the server does not run out of file descriptors"
        );
        limits.max_connections = room;
    }
}
