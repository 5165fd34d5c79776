//! Notifies the nodes that use a store of what its steps did, and finds grants that no call received.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forrst_lock::model::{Command, Transition, Wake};
use forrst_lock::{Nodes, Reading};

/// Drains the transitions and notifies the nodes of them. A grant whose call no longer exists is rolled back: `step` runs that
/// command, and appends its transitions.
#[cfg(feature = "memory")]
pub(crate) fn report(
    nodes: &Nodes,
    transitions: &mut Vec<Transition>,
    reading: Reading,
    mut step: impl FnMut(&Command, &mut Vec<Transition>),
) {
    let mut rollbacks = Vec::new();
    loop {
        let reported = transitions.drain(..);
        rollbacks.extend(reported.filter_map(|transition| notify(nodes, &transition, reading)));
        match rollbacks.pop() {
            Some(rollback) => step(&rollback, transitions),
            None => return,
        }
    }
}

/// Notifies the nodes of one transition. For a grant whose call no longer exists, returns the command that rolls it back.
pub(crate) fn notify(nodes: &Nodes, transition: &Transition, reading: Reading) -> Option<Command> {
    // An observer that panics must end neither the store nor the call.
    let notified = catch_unwind(AssertUnwindSafe(|| match transition {
        Transition::Woken { call, wake } => nodes.wake(call.ticket, wake, reading),
        other => {
            nodes.changed(other, reading.now);
            true
        }
    }));
    let is_received = notified.unwrap_or_else(|_| {
        tracing::error!(?transition, "an observer of the locks panicked");
        false
    });
    match transition {
        Transition::Woken {
            call,
            wake: Wake::Granted(lease),
        } if !is_received => Some(Command::Abandon {
            name: lease.name().clone(),
            ticket: call.ticket,
        }),
        _ => None,
    }
}
