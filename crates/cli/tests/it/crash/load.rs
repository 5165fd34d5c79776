//! A caller that takes, holds, extends and gives back locks at random until its connection breaks.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;

use crate::crash::connection::Connection;
use crate::crash::lease::Span;
use crate::crash::operation::{Ask, Operation, Outcome};
use crate::crash::server::Killer;
use forrst_testkit::{Answer, Lock, moment};

/// In milliseconds. The short ones run out around the crash, the long ones have to survive it.
const TTLS: [u64; 8] = [200, 300, 500, 1_000, 3_000, 60_000, 600_000, 3_600_000];
/// So that there is something left for the others.
const MOST_HELD: usize = 2;
/// How many go on in a round that closes.
const LAST_CALLERS: usize = 2;

/// What all callers do between a start and a crash.
pub(crate) struct Round {
    pub(crate) start: usize,
    pub(crate) address: SocketAddr,
    pub(crate) locks: Vec<Lock>,
    /// All give back what they have, and a few go on without keeping anything: the last fences are of leases that are gone, and must not be given again all the same.
    pub(crate) is_closing: bool,
    pub(crate) killer: Killer,
    /// After which answer to use it.
    pub(crate) moment: Moment,
}

/// Answers that promise something.
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

    fn is_at(self, ask: &Ask, outcome: &Outcome, took: Duration) -> bool {
        match (self, outcome) {
            (Self::Grant, Outcome::Granted(_)) => true,
            (Self::GrantAfterWaiting, Outcome::Granted(_)) => {
                // It says nothing about having waited, but who was answered late probably has.
                let took_long = took > Duration::from_millis(15);
                took_long && matches!(ask, Ask::Acquire { block: Some(_), .. })
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
    /// How many owners it has been.
    owners: usize,
    held: Vec<Held>,
    /// What it was not answered, and asks once more after the crash.
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
    ask: Ask,
}

/// What a caller has done until its connection broke.
pub(crate) struct Done {
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

    /// After a crash it has turned out that this caller got what it had asked for.
    pub(crate) fn learn(&mut self, operation: &Operation) {
        let step = Step {
            lock: operation.lock,
            owner: operation.owner.clone(),
            ask: operation.ask.clone(),
        };
        self.note(&step, &operation.outcome);
    }

    pub(crate) async fn run(&mut self, round: &Round) -> io::Result<Done> {
        let mut connection = Connection::open(round.address).await?;
        let mut operations = Vec::new();
        loop {
            let Some(step) = self.next_step(round) else {
                connection.wait_for_end().await;
                return Ok(Done {
                    operations,
                    broke: Instant::now(),
                });
            };
            let request = request_for(&step, &round.locks[step.lock]);
            let from = Instant::now();
            let answer = connection.call(&request).await;
            let to = Instant::now();
            let outcome = match &answer {
                Ok(answer) => outcome_of(&step.ask, answer),
                Err(_) => Outcome::Unanswered,
            };
            if round.moment.is_at(&step.ask, &outcome, to - from) {
                round.killer.strike();
            }
            self.note(&step, &outcome);
            operations.push(Operation {
                caller: self.number,
                start: round.start,
                lock: step.lock,
                owner: step.owner,
                ask: step.ask,
                span: Span { from, to },
                outcome,
            });
            if answer.is_err() {
                return Ok(Done {
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
        let most = if round.is_closing { 1 } else { MOST_HELD };
        let is_full = self.held.len() >= most;
        if !self.held.is_empty() && (is_full || self.random.u8(..100) < 40) {
            return Some(self.step_with_a_held_one());
        }
        if round.is_closing && self.number >= LAST_CALLERS {
            return None;
        }
        self.owners += 1;
        let ttl = self.ttl();
        let ask = match self.random.u8(..100) {
            _ if round.is_closing => Ask::Call { ttl },
            0..55 => Ask::Acquire {
                ttl,
                block: (self.random.u8(..100) < 30)
                    .then(|| Duration::from_millis(self.random.u64(20..400))),
                attempt: (self.random.u8(..100) < 40).then(|| format!("try {}", self.owners)),
            },
            55..75 => Ask::Hold { ttl },
            75..96 => Ask::Call { ttl },
            _ => Ask::ForceRelease,
        };
        Some(Step {
            lock: self.random.usize(..round.locks.len()),
            owner: format!("{}.{}", self.number, self.owners),
            ask,
        })
    }

    fn step_with_a_held_one(&mut self) -> Step {
        let place = self.random.usize(..self.held.len());
        let (ttl, choice) = (self.ttl(), self.random.u8(..100));
        let Held { step, fence } = self.held[place].clone();
        let ask = match (choice, &step.ask) {
            (0..30, _) => Ask::Extend { fence, ttl },
            (
                30..40,
                Ask::Acquire {
                    attempt: Some(_), ..
                },
            ) => step.ask.clone(),
            _ => Ask::Release { fence },
        };
        Step { ask, ..step }
    }

    fn ttl(&mut self) -> Duration {
        let place = self.random.usize(..TTLS.len());
        Duration::from_millis(TTLS[place])
    }

    /// Keeps in mind what is held, and what to ask again.
    fn note(&mut self, step: &Step, outcome: &Outcome) {
        match (&step.ask, outcome) {
            (Ask::Call { .. }, Outcome::Granted(_)) => {}
            (_, Outcome::Granted(shown)) => {
                let is_same = |held: &Held| held.fence == shown.fence;
                if !self.held.iter().any(is_same) {
                    self.held.push(Held {
                        step: step.clone(),
                        fence: shown.fence,
                    });
                }
            }
            (Ask::Release { fence }, Outcome::Released | Outcome::Gone { .. })
            | (Ask::Extend { fence, .. }, Outcome::Gone { .. }) => {
                self.held.retain(|held| held.fence != *fence);
            }
            (
                Ask::Acquire {
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
    match &step.ask {
        Ask::Acquire {
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
        Ask::Hold { ttl } => lock.locked_call(owner, *ttl, false),
        Ask::Call { ttl } => lock.locked_call(owner, *ttl, true),
        Ask::Release { fence } => lock.release(owner, *fence),
        Ask::Extend { fence, ttl } => lock.extend(owner, *fence, *ttl),
        Ask::ForceRelease => lock.force_release(),
        Ask::Status => lock.status(),
    }
}

/// # Panics
///
/// When the answer is none that a server in good health gives.
fn outcome_of(ask: &Ask, answer: &Answer) -> Outcome {
    let result = &answer.body["result"];
    match (ask, answer.code()) {
        (Ask::Acquire { .. } | Ask::Hold { .. } | Ask::Call { .. }, None) => {
            Outcome::Granted(answer.granted().expect("an answer without an error"))
        }
        (
            Ask::Acquire { .. } | Ask::Hold { .. } | Ask::Call { .. },
            Some("LOCK_ACQUISITION_FAILED" | "LOCK_TIMEOUT"),
        ) => Outcome::Refused,
        (Ask::Release { .. } | Ask::ForceRelease, None) if result["released"] == true => {
            Outcome::Released
        }
        (Ask::Extend { .. }, None) if result["extended"] == true => Outcome::Extended {
            expires_at: moment(&result["expires_at"]),
        },
        (
            Ask::Release { .. } | Ask::Extend { .. } | Ask::ForceRelease,
            Some(code @ ("LOCK_NOT_FOUND" | "LOCK_ALREADY_RELEASED" | "LOCK_OWNERSHIP_MISMATCH")),
        ) => Outcome::Gone {
            code: code.to_owned(),
        },
        // A grant that was on its way for longer than the rest of its lease is rolled back.
        (Ask::Acquire { .. } | Ask::Hold { .. } | Ask::Call { .. }, Some("UNAVAILABLE")) => {
            Outcome::Unanswered
        }
        _ => panic!("{ask:?} was answered {answer:?}"),
    }
}
