//! A caller that acquires, extends and releases locks at random until its connection breaks.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;

use crate::crash::connection::Connection;
use crate::crash::lease::Span;
use crate::crash::operation::{Action, Operation, Outcome};
use crate::crash::server::Killer;
use forrst_testkit::{Answer, Lock, moment};

/// In milliseconds. The short ones expire around the crash, the long ones have to survive it.
const TTLS: [u64; 8] = [200, 300, 500, 1_000, 3_000, 60_000, 600_000, 3_600_000];
/// How many locks a caller holds at most, so that others get some, too.
const MAX_HELD: usize = 2;
/// How many callers continue in a closing round.
const LAST_CALLERS: usize = 2;

/// The settings of all callers between a start and a crash.
pub(crate) struct Round {
    pub(crate) start: usize,
    pub(crate) address: SocketAddr,
    pub(crate) locks: Vec<Lock>,
    /// All callers release what they hold, and a few continue without keeping a lock. Then the last fences are those of leases that
    /// have ended, and still must not be granted again.
    pub(crate) is_closing: bool,
    pub(crate) killer: Killer,
    /// After which kind of answer to kill the server.
    pub(crate) moment: Moment,
}

/// A kind of answer that acknowledges a change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moment {
    Grant,
    GrantAfterWaiting,
    Extension,
    Release,
}

impl Moment {
    pub(crate) const ALL: [Self; 4] = [
        Self::Grant,
        Self::GrantAfterWaiting,
        Self::Extension,
        Self::Release,
    ];

    fn is_at(self, action: &Action, outcome: &Outcome, took: Duration) -> bool {
        match (self, outcome) {
            (Self::Grant, Outcome::Granted(_)) => true,
            (Self::GrantAfterWaiting, Outcome::Granted(_)) => {
                // The answer does not say that the call waited, but a late one probably did.
                let took_long = took > Duration::from_millis(15);
                took_long && matches!(action, Action::Acquire { block: Some(_), .. })
            }
            (Self::Extension, Outcome::Extended { .. }) => true,
            (Self::Release, Outcome::Released) => true,
            _ => false,
        }
    }
}

pub(crate) struct Caller {
    number: usize,
    random: Rng,
    /// How many owner tokens it has used.
    owners: usize,
    held: Vec<Held>,
    /// An attempt without an answer, which it repeats after the crash.
    to_repeat: Option<Step>,
}

#[derive(Debug, Clone)]
struct Held {
    step: Step,
    fence: u64,
}

/// What to do next.
#[derive(Debug, Clone)]
struct Step {
    lock: usize,
    owner: String,
    action: Action,
}

/// What a caller did until its connection broke.
pub(crate) struct RoundResult {
    pub(crate) operations: Vec<Operation>,
    pub(crate) broke: Instant,
}

impl Caller {
    pub(crate) fn new(number: usize, random: Rng) -> Self {
        Self {
            number,
            random,
            owners: 0,
            held: Vec::new(),
            to_repeat: None,
        }
    }

    /// To be called when a status after the crash shows that an unanswered request was granted.
    pub(crate) fn learn(&mut self, operation: &Operation) {
        let step = Step {
            lock: operation.lock,
            owner: operation.owner.clone(),
            action: operation.action.clone(),
        };
        self.note(&step, &operation.outcome);
    }

    pub(crate) async fn run(&mut self, round: &Round) -> io::Result<RoundResult> {
        let mut connection = Connection::open(round.address).await?;
        let mut operations = Vec::new();
        loop {
            let Some(step) = self.next_step(round) else {
                connection.wait_for_end().await;
                return Ok(RoundResult {
                    operations,
                    broke: Instant::now(),
                });
            };
            let request = request_for(&step, &round.locks[step.lock]);
            let from = Instant::now();
            let answer = connection.call(&request).await;
            let to = Instant::now();
            let outcome = match &answer {
                Ok(answer) => outcome_of(&step.action, answer),
                Err(_) => Outcome::Unanswered,
            };
            if round.moment.is_at(&step.action, &outcome, to - from) {
                round.killer.kill_once();
            }
            self.note(&step, &outcome);
            operations.push(Operation {
                caller: self.number,
                start: round.start,
                lock: step.lock,
                owner: step.owner,
                action: step.action,
                span: Span { from, to },
                outcome,
            });
            if answer.is_err() {
                return Ok(RoundResult {
                    operations,
                    broke: to,
                });
            }
        }
    }

    /// What to do next, if anything.
    fn next_step(&mut self, round: &Round) -> Option<Step> {
        if let Some(step) = self.to_repeat.take() {
            return Some(step);
        }
        let most = if round.is_closing { 1 } else { MAX_HELD };
        let is_full = self.held.len() >= most;
        if !self.held.is_empty() && (is_full || self.random.u8(..100) < 40) {
            return Some(self.step_with_a_held_one());
        }
        if round.is_closing && self.number >= LAST_CALLERS {
            return None;
        }
        self.owners += 1;
        let ttl = self.ttl();
        let action = match self.random.u8(..100) {
            _ if round.is_closing => Action::Call { ttl },
            0..55 => Action::Acquire {
                ttl,
                block: (self.random.u8(..100) < 30)
                    .then(|| Duration::from_millis(self.random.u64(20..400))),
                attempt: (self.random.u8(..100) < 40).then(|| format!("try {}", self.owners)),
            },
            55..75 => Action::Hold { ttl },
            75..96 => Action::Call { ttl },
            _ => Action::ForceRelease,
        };
        Some(Step {
            lock: self.random.usize(..round.locks.len()),
            owner: format!("{}.{}", self.number, self.owners),
            action,
        })
    }

    fn step_with_a_held_one(&mut self) -> Step {
        let index = self.random.usize(..self.held.len());
        let (ttl, choice) = (self.ttl(), self.random.u8(..100));
        let Held { step, fence } = self.held[index].clone();
        let action = match (choice, &step.action) {
            (0..30, _) => Action::Extend { fence, ttl },
            (
                30..40,
                Action::Acquire {
                    attempt: Some(_), ..
                },
            ) => step.action.clone(),
            _ => Action::Release { fence },
        };
        Step { action, ..step }
    }

    fn ttl(&mut self) -> Duration {
        let index = self.random.usize(..TTLS.len());
        Duration::from_millis(TTLS[index])
    }

    /// Remembers what is held, and what to repeat.
    fn note(&mut self, step: &Step, outcome: &Outcome) {
        match (&step.action, outcome) {
            (Action::Call { .. }, Outcome::Granted(_)) => {}
            (_, Outcome::Granted(shown)) => {
                let is_same = |held: &Held| held.fence == shown.fence;
                if !self.held.iter().any(is_same) {
                    self.held.push(Held {
                        step: step.clone(),
                        fence: shown.fence,
                    });
                }
            }
            (Action::Release { fence }, Outcome::Released | Outcome::Gone { .. })
            | (Action::Extend { fence, .. }, Outcome::Gone { .. }) => {
                self.held.retain(|held| held.fence != *fence);
            }
            (
                Action::Acquire {
                    attempt: Some(_), ..
                },
                Outcome::Unanswered,
            ) => self.to_repeat = Some(step.clone()),
            _ => {}
        }
    }
}

fn request_for(step: &Step, lock: &Lock) -> Value {
    let owner = &step.owner;
    match &step.action {
        Action::Acquire {
            ttl,
            block,
            attempt,
        } => {
            let mut request = match block {
                Some(block) => lock.acquire_within(owner, *ttl, *block),
                None => lock.acquire(owner, *ttl),
            };
            if let Some(attempt) = attempt {
                request["call"]["arguments"]["attempt"] = attempt.as_str().into();
            }
            request
        }
        Action::Hold { ttl } => lock.locked_call(owner, *ttl, false),
        Action::Call { ttl } => lock.locked_call(owner, *ttl, true),
        Action::Release { fence } => lock.release(owner, *fence),
        Action::Extend { fence, ttl } => lock.extend(owner, *fence, *ttl),
        Action::ForceRelease => lock.force_release(),
        Action::Status => lock.status(),
    }
}

/// # Panics
///
/// If a healthy server does not give such an answer.
fn outcome_of(action: &Action, answer: &Answer) -> Outcome {
    let result = &answer.body["result"];
    match (action, answer.code()) {
        (Action::Acquire { .. } | Action::Hold { .. } | Action::Call { .. }, None) => {
            Outcome::Granted(answer.granted().expect("an answer without an error"))
        }
        (
            Action::Acquire { .. } | Action::Hold { .. } | Action::Call { .. },
            Some("LOCK_ACQUISITION_FAILED" | "LOCK_TIMEOUT"),
        ) => Outcome::Refused,
        (Action::Release { .. } | Action::ForceRelease, None) if result["released"] == true => {
            Outcome::Released
        }
        (Action::Extend { .. }, None) if result["extended"] == true => Outcome::Extended {
            expires_at: moment(&result["expires_at"]),
        },
        (
            Action::Release { .. } | Action::Extend { .. } | Action::ForceRelease,
            Some(code @ ("LOCK_NOT_FOUND" | "LOCK_ALREADY_RELEASED" | "LOCK_OWNERSHIP_MISMATCH")),
        ) => Outcome::Gone {
            code: code.to_owned(),
        },
        // A grant that was on its way for longer than the rest of its lease is rolled back.
        (
            Action::Acquire { .. } | Action::Hold { .. } | Action::Call { .. },
            Some("UNAVAILABLE"),
        ) => Outcome::Unanswered,
        _ => panic!("{action:?} was answered {answer:?}"),
    }
}
