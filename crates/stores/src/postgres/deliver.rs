//! After a commit: notifies this node of what has changed, answers callers, and wakes the calls that have their outcome.

use std::time::Duration;

use forrst_lock::model::{Acquired, Command, Obstacle, Outcome, Transition, Wake};
use forrst_lock::{Answer, Reading, Ticket, Timestamp};
use tokio::time::{Instant, sleep};

use super::engine::Engine;
use super::job::{Job, Task};
use super::link::Message;
use super::rows::Step;
use super::waiting::WaitingCall;
use crate::report::notify;

/// How long to wait before a call whose time is not up yet is rechecked.
const RECHECK_PAUSE: Duration = Duration::from_millis(20);

impl Engine {
    pub(super) fn deliver(&mut self, job: Job, steps: Vec<Step>, now: Timestamp, reading: Reading) {
        let mut outcomes = Vec::with_capacity(steps.len());
        for step in steps {
            for transition in &step.transitions {
                self.report(transition, now, reading);
            }
            outcomes.push(step.outcome);
        }
        match job.task {
            Task::Command(command, caller) => {
                let Some(outcome) = outcomes.pop() else {
                    return;
                };
                self.note_waiting(command, &outcome);
                caller.answer(Ok(Answer { outcome, now }));
            }
            Task::Abandon(_, ticket) => {
                self.link.waiting.remove(ticket);
                self.link.rolled_back(ticket);
            }
            Task::Recheck(ticket) => {
                if let Some(Outcome::Acquired(acquired)) = outcomes.pop() {
                    self.rechecked(ticket, acquired, reading);
                }
            }
            Task::Settle(_) => {}
            Task::Sweep(names, caller) => caller.answer(Ok(names.len())),
        }
    }

    fn report(&mut self, transition: &Transition, now: Timestamp, reading: Reading) {
        if let Transition::Woken { call, wake } = transition {
            return self.wake(call.ticket, wake, reading);
        }
        let reading = Reading { now, ..reading };
        notify(&self.link.nodes, transition, reading);
    }

    /// Wakes a call of this process that has left its queue. A grant that no call receives is rolled back.
    fn wake(&mut self, ticket: Ticket, wake: &Wake, reading: Reading) {
        if matches!(wake, Wake::TimedOut(_))
            && let Some(deadline) = self.link.waiting.deadline(ticket)
            && deadline > Instant::now()
        {
            // It timed out by the clock of another server than the one at which it began to wait.
            return self.recheck_later(ticket);
        }
        self.link.waiting.remove(ticket);
        let transition = Transition::Woken {
            call: forrst_lock::model::Call {
                ticket,
                node: None,
                until: reading.now,
            },
            wake: wake.clone(),
        };
        if let Some(Command::Abandon { name, ticket }) =
            notify(&self.link.nodes, &transition, reading)
        {
            self.link.abandon(&name, ticket);
        }
    }

    fn recheck_later(&self, ticket: Ticket) {
        let link = self.link.clone();
        tokio::spawn(async move {
            sleep(RECHECK_PAUSE).await;
            link.send(Message::Recheck(vec![ticket]));
        });
    }

    /// Remembers a call that waits from now on.
    fn note_waiting(&mut self, command: Command, outcome: &Outcome) {
        match (command, outcome) {
            (Command::Acquire(acquire), Outcome::Acquired(Acquired::Queued { position, .. })) => {
                let Some(wait) = &acquire.wait else { return };
                // The service counts from before this, so this is never too early.
                let deadline = Instant::now() + wait.timeout;
                self.link.waiting.add(WaitingCall {
                    deadline,
                    position: *position,
                    acquire,
                });
            }
            (Command::Abandon { ticket, .. }, _) => {
                self.link.waiting.remove(ticket);
            }
            _ => {}
        }
    }

    /// What has become of a call that waits.
    fn rechecked(&mut self, ticket: Ticket, acquired: Acquired, reading: Reading) {
        let Some(call) = self.link.waiting.get(ticket) else {
            // It was abandoned meanwhile, and is rolled back after this.
            return;
        };
        let wake = match acquired {
            Acquired::Queued { position, .. } => {
                return self.link.waiting.set_position(ticket, position);
            }
            Acquired::Granted(lease) => Wake::Granted(lease),
            Acquired::Withdrawn => Wake::Withdrawn,
            Acquired::FencesExhausted => Wake::FencesExhausted,
            // Of the others, only a timeout is given to a call that has a position.
            _ => Wake::TimedOut(Obstacle {
                blocked_by: vec![call.acquire.claim.locks.first().clone()],
                retry_at: reading.now,
            }),
        };
        self.wake(ticket, &wake, reading);
    }
}
