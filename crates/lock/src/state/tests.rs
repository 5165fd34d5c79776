use std::time::Duration;

use super::*;
use crate::LockKey;

const MEMORY: ReleaseMemory = ReleaseMemory(Duration::from_secs(20));

/// One key, its clock and its counter, driven step by step.
struct Bench {
    state: State<&'static str>,
    now: u64,
    last_fence: u64,
    tickets: u128,
}

type Told = Vec<(&'static str, Wake)>;

impl Bench {
    fn new() -> Self {
        let name = LockName::global(&LockKey::parse("k").unwrap());
        Self {
            state: State::new(name),
            now: 1_000,
            last_fence: 0,
            tickets: 0,
        }
    }

    fn step<C: Command<&'static str>>(&mut self, command: C) -> (C::Outcome, Told) {
        let last_fence = &mut self.last_fence;
        let mut mint = || {
            let fence = Fence::new(*last_fence + 1)?;
            *last_fence += 1;
            Some(fence)
        };
        let now = Timestamp::from_millis(self.now);
        let done = step(&mut self.state, command, now, MEMORY, &mut mint);
        let told = done.woken.into_iter().map(|w| (w.waiter, w.wake)).collect();
        (done.outcome, told)
    }

    fn claim(&mut self, owner: &str, attempt: Option<&str>) -> Claim {
        self.tickets += 1;
        Claim {
            owner: Owner::parse(owner).unwrap(),
            caller: None,
            attempt: attempt.map(|attempt| Attempt::parse(attempt).unwrap()),
            ticket: Ticket(self.tickets),
            ttl: ttl(100),
        }
    }

    fn acquire(&mut self, owner: &str) -> Acquired {
        let claim = self.claim(owner, None);
        self.step(Acquire { claim, wait: None }).0
    }

    fn wait(&mut self, owner: &'static str, attempt: Option<&str>) -> (Acquired, Told) {
        self.wait_for(owner, attempt, 1_000, 10)
    }

    fn wait_for(
        &mut self,
        owner: &'static str,
        attempt: Option<&str>,
        timeout: u64,
        max_ahead: usize,
    ) -> (Acquired, Told) {
        let claim = self.claim(owner, attempt);
        self.step(Acquire {
            claim,
            wait: Some(Wait {
                timeout: Duration::from_millis(timeout),
                max_ahead,
                waiter: owner,
            }),
        })
    }

    fn release(&mut self, owner: &str) -> (Result<Lease, NotHeld>, Told) {
        self.release_fence(owner, None)
    }

    fn release_fence(&mut self, owner: &str, fence: Option<u64>) -> (Result<Lease, NotHeld>, Told) {
        self.step(Release {
            owner: Owner::parse(owner).unwrap(),
            fence: fence.and_then(Fence::new),
        })
    }

    fn extend(&mut self, owner: &str, millis: u64) -> Result<Lease, NotHeld> {
        let command = Extend {
            owner: Owner::parse(owner).unwrap(),
            fence: None,
            ttl: ttl(millis),
        };
        self.step(command).0
    }

    fn holder(&self) -> Option<(&str, u64)> {
        let lease = self.state.lease()?;
        Some((lease.owner.as_str(), lease.fence.number()))
    }
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap()
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn granted(told: &Told) -> Vec<&'static str> {
    told.iter()
        .filter(|(_, wake)| matches!(wake, Wake::Granted(_)))
        .map(|(waiter, _)| *waiter)
        .collect()
}

#[test]
fn a_free_lock_is_granted_with_a_fence_and_an_expiry() {
    let mut bench = Bench::new();
    let Acquired::Granted(lease) = bench.acquire("a") else {
        panic!("it is free");
    };
    assert_eq!(lease.fence, Fence::FIRST);
    assert_eq!(lease.acquired_at, at(1_000));
    assert_eq!(lease.expires_at, at(1_100));
}

#[test]
fn a_held_lock_is_held_for_everyone_and_for_its_own_owner() {
    let mut bench = Bench::new();
    bench.acquire("a");
    let held = Acquired::Held {
        expires_at: at(1_100),
    };
    assert_eq!(bench.acquire("b"), held);
    assert_eq!(bench.acquire("a"), held);
    assert_eq!(bench.holder(), Some(("a", 1)));
}

#[test]
fn a_lease_is_live_until_its_expiry_and_not_at_it() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.now = 1_099;
    assert!(matches!(bench.acquire("b"), Acquired::Held { .. }));
    bench.now = 1_100;
    assert!(matches!(bench.acquire("b"), Acquired::Granted(_)));
    assert_eq!(bench.holder(), Some(("b", 2)));
}

#[test]
fn an_expired_lease_is_reported_once() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.now = 1_100;
    let mut mint = || Fence::new(9);
    let first = step(&mut bench.state, Settle, at(1_100), MEMORY, &mut mint);
    assert_eq!(first.expired.unwrap().owner.as_str(), "a");
    let second = step(&mut bench.state, Settle, at(1_101), MEMORY, &mut mint);
    assert_eq!(second.expired, None);
}

#[test]
fn release_answers_by_who_holds_and_who_held() {
    use NotHeld::{AlreadyReleased, NotFound, OwnedByAnother};
    let mut bench = Bench::new();
    assert_eq!(bench.release("a").0, Err(NotFound), "never held");
    bench.acquire("a");
    assert_eq!(bench.release("b").0, Err(OwnedByAnother));
    assert_eq!(bench.release_fence("a", Some(7)).0, Err(OwnedByAnother));
    assert!(bench.release_fence("a", Some(1)).0.is_ok());
    assert_eq!(bench.release("a").0, Err(AlreadyReleased { forced: false }));
    assert_eq!(
        bench.release_fence("a", Some(1)).0,
        Err(AlreadyReleased { forced: false })
    );
    assert_eq!(bench.release_fence("a", Some(7)).0, Err(NotFound));
    assert_eq!(bench.release("b").0, Err(NotFound));
    bench.acquire("b");
    assert_eq!(
        bench.release("a").0,
        Err(AlreadyReleased { forced: false }),
        "b holds it, and a's was released before"
    );
    assert_eq!(bench.release("c").0, Err(OwnedByAnother));
    bench.now += 100;
    assert_eq!(
        bench.release("a").0,
        Err(AlreadyReleased { forced: false }),
        "b's lease ran out, and a's was released before"
    );
    assert_eq!(bench.release("b").0, Err(NotFound), "b's lease ran out");
}

#[test]
fn releases_are_remembered_for_a_while() {
    let mut bench = Bench::new();
    for owner in ["a", "b"] {
        bench.acquire(owner);
        bench.release(owner).0.unwrap();
    }
    assert_eq!(
        bench.release("a").0,
        Err(NotHeld::AlreadyReleased { forced: false })
    );
    let remembered = u64::try_from(MEMORY.as_duration().as_millis()).unwrap();
    bench.now += remembered - 1;
    assert_eq!(
        bench.release("b").0,
        Err(NotHeld::AlreadyReleased { forced: false })
    );
    assert!(!bench.state.is_vacant(at(bench.now)));
    bench.now += 1;
    assert_eq!(bench.release("b").0, Err(NotHeld::NotFound));
    assert!(bench.state.is_vacant(at(bench.now)));
}

#[test]
fn releases_are_remembered_for_a_second_to_an_hour() {
    for (millis, is_allowed) in [
        (0, false),
        (999, false),
        (1_000, true),
        (3_600_000, true),
        (3_600_001, false),
    ] {
        let memory = ReleaseMemory::new(Duration::from_millis(millis));
        assert_eq!(memory.is_some(), is_allowed, "{millis}");
    }
}

#[test]
fn an_owner_whose_second_lease_ran_out_is_not_told_of_the_first() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.release("a").0.unwrap();
    bench.acquire("a");
    bench.now += 100;
    assert_eq!(bench.release("a").0, Err(NotHeld::NotFound));
}

#[test]
fn a_late_release_leaves_the_successor_alone() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.now += 100;
    bench.acquire("a");
    assert_eq!(
        bench.release_fence("a", Some(1)).0,
        Err(NotHeld::OwnedByAnother)
    );
    assert_eq!(bench.holder(), Some(("a", 2)));
}

#[test]
fn extend_replaces_the_expiry_and_revives_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.extend("a", 50), Err(NotHeld::NotFound));
    bench.acquire("a");
    bench.now = 1_010;
    assert_eq!(bench.extend("b", 50), Err(NotHeld::OwnedByAnother));
    assert_eq!(bench.extend("a", 50).unwrap().expires_at, at(1_060));
    assert_eq!(bench.holder(), Some(("a", 1)), "the fence stays");
    bench.now = 1_060;
    assert_eq!(bench.extend("a", 50), Err(NotHeld::NotFound));
    assert_eq!(bench.holder(), None);
    bench.acquire("a");
    bench.release("a").0.unwrap();
    assert_eq!(
        bench.extend("a", 50),
        Err(NotHeld::AlreadyReleased { forced: false })
    );
}

#[test]
fn force_release_ends_any_lease_and_its_owner_learns_so() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.step(ForceRelease::default()).0,
        Err(NotHeld::NotFound)
    );
    bench.acquire("a");
    bench.wait("b", None);
    let (forced, told) = bench.step(ForceRelease::default());
    assert_eq!(forced.unwrap().owner.as_str(), "a");
    assert_eq!(granted(&told), ["b"]);
    bench.release("b").0.unwrap();
    assert_eq!(
        bench.release("b").0,
        Err(NotHeld::AlreadyReleased { forced: false })
    );
    bench.acquire("c");
    bench.step(ForceRelease::default()).0.unwrap();
    assert_eq!(
        bench.release("c").0,
        Err(NotHeld::AlreadyReleased { forced: true })
    );
    bench.acquire("d");
    assert_eq!(
        bench.release("c").0,
        Err(NotHeld::AlreadyReleased { forced: true })
    );
    let other = ForceRelease {
        fence: Fence::new(1),
    };
    assert_eq!(bench.step(other).0, Err(NotHeld::OwnedByAnother));
    assert_eq!(bench.holder().map(|(owner, _)| owner), Some("d"));
}

#[test]
fn waiters_are_served_in_arrival_order_with_their_own_ttl_from_the_grant() {
    let mut bench = Bench::new();
    bench.acquire("a");
    for owner in ["b", "c", "d"] {
        let (outcome, told) = bench.wait(owner, None);
        assert!(matches!(outcome, Acquired::Queued { .. }));
        assert!(told.is_empty());
    }
    let mut holder = "a";
    for next in ["b", "c", "d"] {
        bench.now += 50;
        let (released, told) = bench.release(holder);
        released.unwrap();
        assert_eq!(granted(&told), [next]);
        assert_eq!(told.len(), 1, "nobody else is woken");
        let lease = bench.state.lease().unwrap();
        assert_eq!(lease.acquired_at, at(bench.now));
        assert_eq!(lease.expires_at, at(bench.now + 100));
        holder = next;
    }
}

#[test]
fn expiry_hands_over_before_a_newcomer_gets_a_turn() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.wait("b", None);
    bench.now += 100;
    let claim = bench.claim("newcomer", None);
    let (outcome, told) = bench.step(Acquire { claim, wait: None });
    assert!(matches!(outcome, Acquired::Held { .. }));
    assert_eq!(granted(&told), ["b"]);
}

#[test]
fn a_waiter_whose_time_is_over_is_passed_by() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.wait_for("late", None, 50, 10);
    bench.wait_for("in time", None, 51, 10);
    bench.now += 50;
    let (_, told) = bench.release("a");
    assert_eq!(told[0], ("late", Wake::TimedOut));
    assert_eq!(granted(&told), ["in time"]);
}

#[test]
fn the_queue_is_bounded() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.wait_for("b", Some("1"), 1_000, 1);
    let (outcome, _) = bench.wait_for("c", None, 1_000, 1);
    assert_eq!(
        outcome,
        Acquired::QueueFull {
            expires_at: at(1_100)
        }
    );
    assert_eq!(bench.state.waiters(), 1);
    let (outcome, _) = bench.wait_for("b", Some("1"), 1_000, 1);
    assert!(
        matches!(outcome, Acquired::Queued { .. }),
        "a repetition needs no place of its own"
    );
}

#[test]
fn a_repeated_attempt_gets_the_same_lease() {
    let mut bench = Bench::new();
    let claim = bench.claim("a", Some("1"));
    let first_ticket = claim.ticket;
    let (first, _) = bench.step(Acquire { claim, wait: None });
    bench.now += 10;
    let claim = bench.claim("a", Some("1"));
    let (second, _) = bench.step(Acquire { claim, wait: None });
    assert_eq!(first, second);
    for ticket in [first_ticket, Ticket(bench.tickets)] {
        assert_eq!(bench.step(Abandon { ticket }).0, Abandoned::Nothing);
    }
    assert_eq!(bench.holder(), Some(("a", 1)));
    for (owner, attempt) in [("a", Some("2")), ("b", Some("1")), ("a", None)] {
        let claim = bench.claim(owner, attempt);
        let (other, _) = bench.step(Acquire { claim, wait: None });
        assert!(
            matches!(other, Acquired::Held { .. }),
            "{owner} {attempt:?}"
        );
    }
}

#[test]
fn a_repeated_waiting_attempt_takes_the_place_of_the_first() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.wait("b", Some("1"));
    let first = Ticket(bench.tickets);
    bench.wait("c", None);
    let (outcome, told) = bench.wait("b", Some("1"));
    assert!(matches!(outcome, Acquired::Queued { .. }));
    assert_eq!(told, [("b", Wake::Superseded)]);
    assert_eq!(bench.state.waiters(), 2);
    let (gone, _) = bench.step(Abandon { ticket: first });
    assert_eq!(gone, Abandoned::Nothing, "its place is the second's now");
    assert_eq!(granted(&bench.release("a").1), ["b"]);
}

#[test]
fn whoever_gives_up_leaves_the_queue_or_returns_the_lock() {
    let mut bench = Bench::new();
    bench.acquire("a");
    bench.wait("b", None);
    let b = Ticket(bench.tickets);
    bench.wait("c", None);
    let c = Ticket(bench.tickets);
    assert_eq!(bench.step(Abandon { ticket: b }).0, Abandoned::LeftQueue);
    assert_eq!(bench.step(Abandon { ticket: b }).0, Abandoned::Nothing);
    assert_eq!(granted(&bench.release("a").1), ["c"]);
    bench.wait("d", None);
    let (returned, told) = bench.step(Abandon { ticket: c });
    assert!(matches!(returned, Abandoned::Returned(_)));
    assert_eq!(granted(&told), ["d"]);
    assert_eq!(
        bench.release("c").0,
        Err(NotHeld::OwnedByAnother),
        "nothing of c is left"
    );
}

#[test]
fn without_fences_nothing_is_granted_and_nobody_is_left_waiting() {
    let mut bench = Bench::new();
    bench.last_fence = Fence::MAX.number() - 1;
    assert!(matches!(bench.acquire("a"), Acquired::Granted(_)));
    bench.wait("b", None);
    bench.wait("c", None);
    let (_, told) = bench.release("a");
    assert_eq!(
        told,
        [("b", Wake::FencesExhausted), ("c", Wake::FencesExhausted)]
    );
    assert_eq!(bench.acquire("d"), Acquired::FencesExhausted);
    assert_eq!(bench.holder(), None);
}

/// All sequences of a small alphabet: what holds here holds for every short history.
#[test]
fn the_properties_hold_in_every_short_history() {
    let alphabet = 9_u32;
    let length = 5;
    for history in 0..alphabet.pow(length) {
        let mut bench = Bench::new();
        let mut rest = history;
        let mut last_granted = 0;
        let mut queue: VecDeque<&str> = VecDeque::new();
        for _ in 0..length {
            let before = bench
                .holder()
                .map(|(owner, fence)| (owner.to_owned(), fence));
            let was_live = bench
                .state
                .lease()
                .is_some_and(|l| l.is_live(at(bench.now)));
            let told = match rest % alphabet {
                0 => {
                    bench.acquire("a");
                    Vec::new()
                }
                1 => {
                    let (outcome, told) = bench.wait("b", None);
                    if matches!(outcome, Acquired::Queued { .. }) {
                        queue.push_back("b");
                    }
                    told
                }
                2 => {
                    let (outcome, told) = bench.wait_for("c", None, 60, 10);
                    if matches!(outcome, Acquired::Queued { .. }) {
                        queue.push_back("c");
                    }
                    told
                }
                3 => bench.release("a").1,
                4 => bench.release("b").1,
                5 => {
                    let _ = bench.extend("a", 100);
                    Vec::new()
                }
                6 => bench.step(ForceRelease::default()).1,
                7 => {
                    bench.now += 60;
                    bench.step(Settle).1
                }
                _ => {
                    bench.now += 100;
                    bench.step(Settle).1
                }
            };
            rest /= alphabet;

            let now = at(bench.now);
            for (waiter, _) in &told {
                // L2: whoever leaves the queue is its first. (A newcomer's own call is not in `told`.)
                if let Some(place) = queue.iter().position(|queued| queued == waiter) {
                    assert_eq!(place, 0, "history {history}");
                    queue.pop_front();
                }
            }
            assert!(granted(&told).len() <= 1, "history {history}");
            assert_eq!(queue.len(), bench.state.waiters(), "history {history}");
            let live = bench.state.lease().is_some_and(|lease| lease.is_live(now));
            assert!(live || bench.state.waiters() == 0, "history {history}");
            if let Some((owner, fence)) = bench.holder() {
                assert!(live, "S4, history {history}");
                let is_new = before != Some((owner.to_owned(), fence));
                if is_new {
                    assert!(fence > last_granted, "S2, history {history}");
                } else {
                    assert!(was_live, "S4: revived, history {history}");
                }
                last_granted = fence;
            }
        }
    }
}
