//! The limit of file descriptors: it is raised as far as possible, and the number of connections is kept below it.

use forrst_server::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The descriptors that the server itself needs: for the store, the logs, the listeners, connections to a full server, and reading
/// the files of keys again.
const RESERVED: u64 = 256;

/// Raises the limit of open files to the maximum, and lowers `max_connections` if it does not fit.
pub(super) fn make_room(limits: &mut Limits) {
    let allowed = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: allowed.maximum,
        maximum: allowed.maximum,
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => allowed.maximum,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files");
            allowed.current
        }
    };
    // `None` means unlimited.
    let Some(current) = current else {
        return;
    };
    let room = usize::try_from(room(current)).unwrap_or(usize::MAX);
    if limits.max_connections > room {
        tracing::warn!(
            open_files = current,
            max_connections = room,
            "max_connections was lowered, so that the server does not run out of file descriptors"
        );
        limits.max_connections = room;
    }
}

/// How many descriptors are left for connections: a quarter at least, even if very few are allowed.
fn room(descriptors: u64) -> u64 {
    let rest = descriptors.saturating_sub(RESERVED);
    rest.max(descriptors / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_server() {
        // Connections to a full server, and the files that an idle server has open.
        const NEEDED: u64 = 128 + 32;
        for descriptors in [256, 300, 350, 512, 1024, 1 << 20] {
            let left = descriptors - room(descriptors);
            assert!(left >= NEEDED, "{left} of {descriptors}");
        }
        assert_eq!(room(1024), 768);
    }
}
