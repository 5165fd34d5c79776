//! The reply of the library to one command: the result for its caller, the transitions of the model, and the calls of this node that
//! it woke.

use std::collections::HashMap;

use forrst_lock::model::{
    Abandoned, Acquire, Acquired, Command, End, Outcome, Position, Settled, Transition, Wake,
    Withdrawn,
};
use forrst_lock::{Lease, LockName, NotHeld, Ticket, Timestamp};

use super::command::LibraryCommand;
use super::unpack::{BadReply, Unpacker};

#[derive(Debug)]
pub(super) struct CommandReply {
    pub(super) result: CommandResult,
    pub(super) transitions: Vec<Transition>,
    /// Calls of this node that have left a queue.
    pub(super) woken: Vec<(LockName, Ticket, Wake)>,
}

/// The result of a command.
#[derive(Debug)]
pub(super) enum CommandResult {
    /// Of a step.
    Outcome(Outcome),
    /// Nothing was done: the call was abandoned before it arrived.
    Abandoned,
    /// Of [`LibraryCommand::CheckWaiters`]: which calls have a lease by now, and which are not in the queue.
    Checked {
        granted: Vec<(Ticket, Lease)>,
        missing: Vec<Ticket>,
    },
    /// Of a heartbeat.
    Heartbeat {
        /// How many messages this node was sent.
        messages: u64,
        was_alive: bool,
        /// The nodes that are considered dead.
        dead: Vec<String>,
    },
    /// Nothing was done: the keys of these locks have to be declared as well.
    NeedsKeys(Vec<LockName>),
    /// Nothing was done: an earlier command on its keys has to be sent again.
    Behind,
    /// Nothing was done: it had timed out when it arrived.
    Late,
    /// The command failed, with this error of Redis or Lua.
    Failed(String),
}

impl Unpacker<'_> {
    pub(super) fn reply(
        &mut self,
        command: &LibraryCommand,
        now: Timestamp,
    ) -> Result<CommandReply, BadReply> {
        self.list("answer")?;
        let code = self.text("code")?;
        let reported = self.reported()?;
        let woken = self.woken()?;
        let name = match command {
            LibraryCommand::Step(command) => command.names().next().cloned(),
            LibraryCommand::CheckWaiters { name, .. } => Some(name.clone()),
            LibraryCommand::Heartbeat => None,
        };
        let (result, own) = match (command, name) {
            _ if code == "behind" => (CommandResult::Behind, None),
            _ if code == "late" => (CommandResult::Late, None),
            _ if code == "need" => (CommandResult::NeedsKeys(self.names()?), None),
            _ if code == "failed" => (CommandResult::Failed(self.text("error")?.to_owned()), None),
            (LibraryCommand::Heartbeat, _) => (self.heartbeat()?, None),
            (LibraryCommand::CheckWaiters { .. }, Some(name)) => (self.checked(&name)?.1, None),
            (LibraryCommand::Step(command), Some(name)) => {
                self.stepped(code, command, &name, now)?
            }
            _ => return Err(BadReply("code")),
        };
        let (transitions, granted) = reported.with_outcome(own);
        let woken = woken.into_iter().map(|(ticket, wake)| match wake {
            PackedWake::Granted(number) => {
                let lease = granted.get(&number).ok_or(BadReply("grant"))?;
                Ok((lease.name().clone(), ticket, Wake::Granted(lease.clone())))
            }
            PackedWake::Wake(wake) => {
                let name = command.names().into_iter().next().ok_or(BadReply("key"))?;
                Ok((name, ticket, wake))
            }
        });
        Ok(CommandReply {
            result,
            woken: woken.collect::<Result<_, BadReply>>()?,
            transitions,
        })
    }

    /// A list of transitions, in which 0 stands for that of the outcome; or only whether the outcome has one.
    fn reported(&mut self) -> Result<ReportedTransitions, BadReply> {
        if self.is_at_flag() {
            let has_own = self.flag()?;
            return Ok(ReportedTransitions(Vec::from_iter(has_own.then_some(None))));
        }
        let count = self.list("transitions")?;
        let transitions = (0..count).map(|_| self.transition());
        Ok(ReportedTransitions(transitions.collect::<Result<_, _>>()?))
    }

    fn transition(&mut self) -> Result<Option<Transition>, BadReply> {
        if self.skip_zero() {
            return Ok(None);
        }
        self.list("transition")?;
        let kind = self.text("kind")?;
        let name = self.name()?;
        let lease = self.lease(&name)?;
        let (time, since) = (self.time()?, self.time()?);
        let optional = |time: Timestamp| (time.as_millis() > 0).then_some(time);
        let cause = match kind {
            "granted" => {
                return Ok(Some(Transition::Granted {
                    lease,
                    waited_since: optional(since),
                    confirm_by: optional(time),
                }));
            }
            "confirmed" => {
                let confirm_by = time;
                return Ok(Some(Transition::Confirmed { lease, confirm_by }));
            }
            "forced" => End::Forced,
            "expired" => End::Expired,
            "unconfirmed" => End::Unconfirmed,
            _ => return Err(BadReply("kind")),
        };
        let due = time;
        Ok(Some(Transition::Ended { lease, cause, due }))
    }

    fn woken(&mut self) -> Result<Vec<(Ticket, PackedWake)>, BadReply> {
        if self.skip_false() {
            return Ok(Vec::new());
        }
        let count = self.list("woken")?;
        let woken = (0..count).map(|_| {
            self.list("woken")?;
            let ticket = self.ticket()?;
            let how = match self.number("kind")? {
                1 => PackedWake::Granted(self.size()?),
                kind => PackedWake::Wake(self.wake(kind)?),
            };
            Ok((ticket, how))
        });
        woken.collect()
    }

    fn heartbeat(&mut self) -> Result<CommandResult, BadReply> {
        let messages = self.number("messages")?;
        let was_alive = self.flag()?;
        let count = self.list("nodes")?;
        let dead = (0..count).map(|_| Ok(self.text("node")?.to_owned()));
        Ok(CommandResult::Heartbeat {
            messages,
            was_alive,
            dead: dead.collect::<Result<_, BadReply>>()?,
        })
    }

    fn checked(&mut self, name: &LockName) -> Result<(Settled, CommandResult), BadReply> {
        let settled = self.settled()?;
        let count = self.list("granted")?;
        let granted = (0..count / 2).map(|_| Ok((self.ticket()?, self.lease(name)?)));
        let granted = granted.collect::<Result<_, BadReply>>()?;
        let count = self.list("missing")?;
        let missing = (0..count).map(|_| self.ticket());
        let missing = missing.collect::<Result<_, BadReply>>()?;
        Ok((settled, CommandResult::Checked { granted, missing }))
    }

    fn settled(&mut self) -> Result<Settled, BadReply> {
        Ok(Settled {
            waiters: self.size()?,
            retry_at: self.time()?,
        })
    }

    /// The result of a step, and the transition that follows from its outcome.
    fn stepped(
        &mut self,
        code: &str,
        command: &Command,
        name: &LockName,
        now: Timestamp,
    ) -> Result<(CommandResult, Option<Transition>), BadReply> {
        let mut own = None;
        let mut ended = |lease: &Lease, cause, due| {
            let lease = lease.clone();
            own = Some(Transition::Ended { lease, cause, due });
        };
        let outcome = match command {
            Command::Acquire(acquire) => match self.acquired(code, acquire, name, now)? {
                Some((acquired, granted)) => {
                    own = granted;
                    Outcome::Acquired(acquired)
                }
                None => return Ok((CommandResult::Abandoned, None)),
            },
            Command::Abandon { .. } => Outcome::Abandoned(match code {
                "returned" => {
                    let lease = self.lease(name)?;
                    ended(&lease, End::Abandoned, self.time()?);
                    Abandoned::Returned(lease)
                }
                "left_queue" => Abandoned::LeftQueue(self.obstacle()?),
                "nothing" => Abandoned::Nothing,
                _ => return Err(BadReply("code")),
            }),
            Command::Release(_) => Outcome::Lease(match not_held(code)? {
                Some(why) => Err(why),
                None => {
                    let lease = self.lease(name)?;
                    ended(&lease, End::Released, self.time()?);
                    Ok(lease)
                }
            }),
            Command::Extend(..) => Outcome::Lease(match not_held(code)? {
                Some(why) => Err(why),
                None => {
                    let lease = self.lease(name)?;
                    own = Some(Transition::Extended {
                        lease: lease.clone(),
                        before: self.time()?,
                    });
                    Ok(lease)
                }
            }),
            Command::Confirm { .. } => Outcome::Lease(match not_held(code)? {
                Some(why) => Err(why),
                None => Ok(self.lease(name)?),
            }),
            Command::ForceRelease { .. } => Outcome::Forced(match not_held(code)? {
                Some(why) => Err(why),
                None => {
                    let count = self.list("leases")?;
                    let leases = (0..count).map(|_| self.lease(name));
                    Ok(leases.collect::<Result<_, _>>()?)
                }
            }),
            Command::Withdraw { .. } => Outcome::Withdrawn(match code {
                "held" => {
                    let lease = self.lease(name)?;
                    ended(&lease, End::Released, self.time()?);
                    Withdrawn::Held(lease)
                }
                "waiting" => Withdrawn::Waiting,
                "unknown" => Withdrawn::Unknown,
                "too_many" => Withdrawn::TooMany,
                _ => return Err(BadReply("code")),
            }),
            Command::Settle(_) => Outcome::Settled(self.checked(name)?.0),
        };
        Ok((CommandResult::Outcome(outcome), own))
    }

    /// The outcome of an acquire and its transition; `None` if the call was abandoned before it arrived.
    fn acquired(
        &mut self,
        code: &str,
        acquire: &Acquire,
        name: &LockName,
        now: Timestamp,
    ) -> Result<Option<(Acquired, Option<Transition>)>, BadReply> {
        let acquired = match code {
            "granted" => {
                let claim = &acquire.claim;
                let lease = Lease {
                    locks: claim.locks.clone(),
                    owner: claim.owner.clone(),
                    caller: claim.caller.clone(),
                    note: claim.note.clone(),
                    fence: self.fence()?,
                    acquired_at: now,
                    expires_at: now + claim.ttl.as_duration(),
                };
                let granted = Transition::Granted {
                    lease: lease.clone(),
                    waited_since: None,
                    confirm_by: None,
                };
                return Ok(Some((Acquired::Granted(lease), Some(granted))));
            }
            "again" => Acquired::Granted(self.lease(name)?),
            "held" => Acquired::Held(self.obstacle()?),
            "full" => Acquired::QueueFull(self.obstacle()?),
            "queued" => Acquired::Queued {
                obstacle: self.obstacle()?,
                position: Position {
                    arrival: self.number("position")?,
                    ticket: self.ticket()?,
                },
                until: self.time()?,
            },
            "withdrawn" => Acquired::Withdrawn,
            "timed_out" => Acquired::TimedOut,
            "another_attempt" => Acquired::AttemptMismatch,
            "exhausted" => Acquired::FencesExhausted,
            "abandoned" => return Ok(None),
            _ => return Err(BadReply("code")),
        };
        Ok(Some((acquired, None)))
    }
}

/// How a call of this node has left its queue. Of a lease, the reply has only the number of its transition, counted from 1.
enum PackedWake {
    Granted(usize),
    Wake(Wake),
}

/// The transitions in a reply; `None` stands for that of the outcome.
struct ReportedTransitions(Vec<Option<Transition>>);

impl ReportedTransitions {
    /// Fills in the transition of the outcome. Returns all transitions, and the granted leases by the numbers of their transitions.
    fn with_outcome(self, mut own: Option<Transition>) -> (Vec<Transition>, HashMap<usize, Lease>) {
        let mut granted = HashMap::new();
        let mut transitions = Vec::with_capacity(self.0.len());
        for (index, transition) in self.0.into_iter().enumerate() {
            let Some(transition) = transition.or_else(|| own.take()) else {
                continue;
            };
            if let Transition::Granted { lease, .. } = &transition {
                granted.insert(index + 1, lease.clone());
            }
            transitions.push(transition);
        }
        (transitions, granted)
    }
}

/// Why there was no lease to act on; `None` if there was.
fn not_held(code: &str) -> Result<Option<NotHeld>, BadReply> {
    Ok(Some(match code {
        "done" => return Ok(None),
        "not_found" => NotHeld::NotFound,
        "already_released" => NotHeld::AlreadyReleased { forced: false },
        "taken_away" => NotHeld::AlreadyReleased { forced: true },
        "owned_by_another" => NotHeld::OwnedByAnother,
        "ambiguous" => NotHeld::Ambiguous,
        _ => return Err(BadReply("code")),
    }))
}
