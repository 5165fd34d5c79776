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
    let room = usize::try_from(room(current)).unwrap_or(usize::MAX);
    if limits.max_connections > room {
        tracing::warn!(
            open_files = current,
            max_connections = room,
            "--max-connections is lowered, so that the server does not run out of file descriptors"
        );
        limits.max_connections = room;
    }
}

/// How many of so many descriptors are for connections. A server that has very few keeps most of them for itself.
fn room(descriptors: u64) -> u64 {
    let rest = descriptors.saturating_sub(OWN);
    rest.max(descriptors / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_server() {
        // Connections to a full server, and what a server has open that does nothing.
        const NEEDED: u64 = 128 + 32;
        for descriptors in [256, 300, 350, 512, 1024, 1 << 20] {
            let left = descriptors - room(descriptors);
            assert!(left >= NEEDED, "{left} of {descriptors}");
        }
        assert_eq!(room(1024), 768);
    }
}
