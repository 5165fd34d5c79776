//! The specification: what each command does to one key.
//!
//! [`step`] is pure. Time is an argument, fences come from a counter that is handed in, and what others have to
//! be told is part of the result. The memory and embedded stores run it as it stands; every other store is another
//! spelling of it, and the model test of [`crate::contract`] compares the two.
//!
//! A key is free, or held by one lease with a queue of waiters behind it. Four rules hold in every step:
//!
//! 1. A lease whose time has come is gone before the command is looked at (S4, L1).
//! 2. A free lock goes to the first waiter whose time has not come, before any newcomer (L2).
//! 3. What acts on a lease acts on none that was granted in the same step: nobody can have meant it.
//! 4. Every grant takes a fresh fence from the counter, and only a grant does (S2).
//!
//! **Invariant:** between two steps, a key with waiters is held.

use std::collections::VecDeque;
use std::time::Duration;

use crate::store::Waiting;
use crate::{Attempt, Caller, Fence, Lease, LockName, Owner, Ticket, Timestamp, Ttl};

/// How long a key remembers that a lease was released, and whose.
///
/// Long enough for a caller whose answer was lost to ask again, and short, because every released key costs
/// memory for as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseMemory(Duration);

impl ReleaseMemory {
    /// The shortest: less would be over before a caller can ask again.
    pub const MIN: Self = Self(Duration::from_secs(1));
    /// The longest: more would fill a Redis with keys that nobody holds.
    pub const MAX: Self = Self(Duration::from_secs(3600));

    /// Takes what is between [`MIN`](Self::MIN) and [`MAX`](Self::MAX).
    pub fn new(duration: Duration) -> Option<Self> {
        let range = Self::MIN.0..=Self::MAX.0;
        range.contains(&duration).then_some(Self(duration))
    }

    /// As a duration.
    pub const fn as_duration(self) -> Duration {
        self.0
    }
}

/// Half a minute.
impl Default for ReleaseMemory {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

/// How many releases a key remembers. Of more the oldest are forgotten sooner.
pub const REMEMBERED_RELEASES: usize = 16;

/// Everything there is to know about one key. `W` is what a store keeps to reach a waiter.
#[derive(Debug)]
pub struct State<W> {
    name: LockName,
    holder: Option<Holder>,
    queue: VecDeque<Queued<W>>,
    /// The newest last, at most [`REMEMBERED_RELEASES`]. Empty takes no room on the heap.
    releases: Vec<Tombstone>,
}

/// Who holds a key.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The lease.
    pub lease: Lease,
    /// The attempt that got it, which a repetition gets again.
    pub attempt: Option<Attempt>,
    /// The call that got it and can be undone; none once the same attempt was made again, because then an answer may have
    /// reached its owner.
    pub ticket: Option<Ticket>,
}

#[derive(Debug)]
struct Queued<W> {
    claim: Claim,
    since: Timestamp,
    until: Timestamp,
    waiter: W,
}

/// The memory of one release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// Whose lease was released.
    pub owner: Owner,
    /// Which of them.
    pub fence: Fence,
    /// Until when that is remembered.
    pub until: Timestamp,
    /// Whether force-release took it away.
    pub forced: bool,
    /// Whether its owner has been granted no lease of this key since. A call without a fence means the owner's newest
    /// lease, so it is answered by this release only if there is no newer one.
    pub is_newest: bool,
}

/// What a waiter is told, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// The lock is its own from now on; the ttl counts from this moment.
    Granted(Lease),
    /// The lock became free, but only after the time that this waiter had.
    TimedOut,
    /// The same owner repeated the same attempt, which has taken this waiter's place.
    Superseded,
    /// There are no fences left, so nothing can be granted any more.
    FencesExhausted,
}

/// What a step did, and whom it concerns besides the one who asked.
#[derive(Debug)]
pub struct Step<W, O> {
    /// The answer to the command.
    pub outcome: O,
    /// The lease that was found to have run out.
    pub expired: Option<Lease>,
    /// Those who have left the queue and have to hear why; at most one of them was granted the lock.
    pub woken: Vec<Woken<W>>,
}

/// One who has left the queue.
#[derive(Debug)]
pub struct Woken<W> {
    /// How to reach it.
    pub waiter: W,
    /// Its call: what to [`Abandon`] when it was granted the lock and cannot be reached.
    pub ticket: Ticket,
    /// What to tell it.
    pub wake: Wake,
}

/// Mints the fence of the next grant; none when they have run out.
pub type MintFence<'a> = &'a mut dyn FnMut() -> Option<Fence>;

/// One command on one key, applied to a state whose lease has not run out.
pub trait Command<W> {
    /// What the one who asked is told.
    type Outcome;

    /// The command's own part of a step. Call [`step`] instead: it sees to the rules.
    fn apply(self, state: &mut State<W>, turn: &mut Turn<'_, W>) -> Self::Outcome;
}

/// What a command has at hand.
pub struct Turn<'a, W> {
    now: Timestamp,
    mint: MintFence<'a>,
    memory: ReleaseMemory,
    woken: Vec<Woken<W>>,
}

/// Applies one command to one key at the time `now`. A release is remembered for as long as `memory` says.
pub fn step<W, C: Command<W>>(
    state: &mut State<W>,
    command: C,
    now: Timestamp,
    memory: ReleaseMemory,
    mint: MintFence<'_>,
) -> Step<W, C::Outcome> {
    let mut turn = Turn {
        now,
        mint,
        memory,
        woken: Vec::new(),
    };
    let expired = state.expire(now);
    let outcome = command.apply(state, &mut turn);
    state.hand_over(&mut turn);
    Step {
        outcome,
        expired,
        woken: turn.woken,
    }
}

/// Who asks for which lease.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Whose lease it becomes.
    pub owner: Owner,
    /// Who asks, where the server knows its callers.
    pub caller: Option<Caller>,
    /// Repeated by a caller who did not get the answer.
    pub attempt: Option<Attempt>,
    /// This call, and no other.
    pub ticket: Ticket,
    /// How long the lease lasts from its grant.
    pub ttl: Ttl,
}

impl Claim {
    /// Whether this is the same attempt again, after an answer that was lost.
    fn repeats(&self, owner: &Owner, attempt: Option<&Attempt>) -> bool {
        self.attempt.is_some() && self.attempt.as_ref() == attempt && self.owner == *owner
    }
}

/// Asks for the lock.
#[derive(Debug)]
pub struct Acquire<W> {
    /// Who asks.
    pub claim: Claim,
    /// What to do when the lock is held: give up at once, or wait.
    pub wait: Option<Wait<W>>,
}

/// How to wait for a lock that is held.
#[derive(Debug)]
pub struct Wait<W> {
    /// How long at most.
    pub timeout: Duration,
    /// How many may wait before this one.
    pub max_ahead: usize,
    /// How to reach the one who waits.
    pub waiter: W,
}

/// The answer to [`Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// It was free, or the caller repeated the attempt that holds it.
    Granted(Lease),
    /// Somebody holds it, and the caller does not want to wait.
    Held {
        /// When the holder's lease ends unless it is extended.
        expires_at: Timestamp,
    },
    /// Somebody holds it, and the caller waits from now on.
    Queued {
        /// When the holder's lease ends unless it is extended.
        expires_at: Timestamp,
    },
    /// Somebody holds it, and too many wait already.
    QueueFull {
        /// When the holder's lease ends unless it is extended.
        expires_at: Timestamp,
    },
    /// There are no fences left.
    FencesExhausted,
}

impl<W> Command<W> for Acquire<W> {
    type Outcome = Acquired;

    fn apply(self, state: &mut State<W>, turn: &mut Turn<'_, W>) -> Acquired {
        let Self { claim, wait } = self;
        state.hand_over(turn);
        let Some(holder) = &mut state.holder else {
            return match (turn.mint)() {
                Some(fence) => Acquired::Granted(state.grant(claim, fence, turn.now)),
                None => Acquired::FencesExhausted,
            };
        };
        if claim.repeats(&holder.lease.owner, holder.attempt.as_ref()) {
            // Whichever of the two calls is given up, the other one may have told the owner.
            holder.ticket = None;
            return Acquired::Granted(holder.lease.clone());
        }
        let expires_at = holder.lease.expires_at;
        let Some(wait) = wait else {
            return Acquired::Held { expires_at };
        };
        let earlier = match claim.attempt {
            Some(_) => state
                .queue
                .iter_mut()
                .find(|queued| claim.repeats(&queued.claim.owner, queued.claim.attempt.as_ref())),
            None => None,
        };
        let queued = Queued {
            claim,
            since: earlier.as_ref().map_or(turn.now, |earlier| earlier.since),
            until: turn.now + wait.timeout,
            waiter: wait.waiter,
        };
        if let Some(earlier) = earlier {
            let earlier = std::mem::replace(earlier, queued);
            turn.woken.push(Woken {
                waiter: earlier.waiter,
                ticket: earlier.claim.ticket,
                wake: Wake::Superseded,
            });
        } else if state.queue.len() >= wait.max_ahead {
            return Acquired::QueueFull { expires_at };
        } else {
            state.queue.push_back(queued);
        }
        Acquired::Queued { expires_at }
    }
}

/// Takes back whatever a call that nobody waits for any more has brought, or would still bring.
#[derive(Debug)]
pub struct Abandon {
    /// The call.
    pub ticket: Ticket,
}

/// The answer to [`Abandon`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abandoned {
    /// It held the lock, which is free again. There is no tombstone: its owner never knew.
    Returned(Lease),
    /// It waited, and has left the queue.
    LeftQueue,
    /// It had nothing.
    Nothing,
}

impl<W> Command<W> for Abandon {
    type Outcome = Abandoned;

    fn apply(self, state: &mut State<W>, _: &mut Turn<'_, W>) -> Abandoned {
        let ticket = Some(self.ticket);
        if let Some(holder) = state.holder.take_if(|holder| holder.ticket == ticket) {
            return Abandoned::Returned(holder.lease);
        }
        match state
            .queue
            .iter()
            .position(|queued| queued.claim.ticket == self.ticket)
        {
            Some(place) => {
                state.queue.remove(place);
                Abandoned::LeftQueue
            }
            None => Abandoned::Nothing,
        }
    }
}

/// Gives the lock back.
#[derive(Debug, Clone)]
pub struct Release {
    /// The token of the lease.
    pub owner: Owner,
    /// Which lease of that owner; any when omitted.
    pub fence: Option<Fence>,
}

/// Why [`Release`] or [`Extend`] found no lease to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotHeld {
    /// Never held, or the lease has run out.
    NotFound,
    /// This owner's lease was released a short while ago, and the owner holds no other. Another owner may hold the lock.
    AlreadyReleased {
        /// Whether force-release took it away.
        forced: bool,
    },
    /// Another owner holds it, or the same owner by another fence.
    OwnedByAnother,
}

impl<W> Command<W> for Release {
    type Outcome = Result<Lease, NotHeld>;

    fn apply(self, state: &mut State<W>, turn: &mut Turn<'_, W>) -> Self::Outcome {
        state.held_by(&self.owner, self.fence, turn.now)?;
        state
            .end_lease(turn.now, turn.memory, false)
            .ok_or(NotHeld::NotFound)
    }
}

/// Lets the lease end `ttl` from now, whatever it had left.
#[derive(Debug, Clone)]
pub struct Extend {
    /// The token of the lease.
    pub owner: Owner,
    /// Which lease of that owner; any when omitted.
    pub fence: Option<Fence>,
    /// The time from now until its new end.
    pub ttl: Ttl,
}

impl<W> Command<W> for Extend {
    type Outcome = Result<Lease, NotHeld>;

    fn apply(self, state: &mut State<W>, turn: &mut Turn<'_, W>) -> Self::Outcome {
        let lease = state.held_by(&self.owner, self.fence, turn.now)?;
        lease.expires_at = turn.now + self.ttl.as_duration();
        Ok(lease.clone())
    }
}

/// Ends the lease, whichever owner has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForceRelease {
    /// Only the lease of this fence; any when omitted.
    pub fence: Option<Fence>,
}

impl<W> Command<W> for ForceRelease {
    /// The lease that was ended. [`NotHeld::NotFound`] when the lock was free, [`NotHeld::OwnedByAnother`] when another
    /// fence holds it.
    type Outcome = Result<Lease, NotHeld>;

    fn apply(self, state: &mut State<W>, turn: &mut Turn<'_, W>) -> Self::Outcome {
        match (&state.holder, self.fence) {
            (Some(holder), Some(fence)) if holder.lease.fence != fence => {
                Err(NotHeld::OwnedByAnother)
            }
            _ => state
                .end_lease(turn.now, turn.memory, true)
                .ok_or(NotHeld::NotFound),
        }
    }
}

/// Does nothing of its own: an expired lease ends and the next waiter gets the lock, as in every step.
#[derive(Debug, Clone, Copy)]
pub struct Settle;

impl<W> Command<W> for Settle {
    type Outcome = ();

    fn apply(self, _: &mut State<W>, _: &mut Turn<'_, W>) {}
}

impl<W> State<W> {
    /// A key that nobody has ever held.
    pub fn new(name: LockName) -> Self {
        Self {
            name,
            holder: None,
            queue: VecDeque::new(),
            releases: Vec::new(),
        }
    }

    /// A key as a durable store finds it again, with nobody waiting.
    pub fn restored(name: LockName, holder: Option<Holder>, releases: Vec<Tombstone>) -> Self {
        Self {
            name,
            holder,
            queue: VecDeque::new(),
            releases,
        }
    }

    /// Who holds the key as of the last step.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// The releases that are remembered, the newest last. Some may be past their time.
    pub fn releases(&self) -> &[Tombstone] {
        &self.releases
    }

    /// The lease as of the last step. It may have run out since: see [`Lease::is_live`].
    pub fn lease(&self) -> Option<&Lease> {
        self.holder.as_ref().map(|holder| &holder.lease)
    }

    /// How many wait.
    pub fn waiters(&self) -> usize {
        self.queue.len()
    }

    /// Those who wait, the next one first.
    pub fn queue(&self) -> impl Iterator<Item = Waiting> {
        self.queue.iter().map(|queued| Waiting {
            owner: queued.claim.owner.clone(),
            caller: queued.claim.caller.clone(),
            since: queued.since,
            until: queued.until,
        })
    }

    /// Forgets every release before its time.
    pub fn forget_releases(&mut self) {
        self.releases = Vec::new();
    }

    /// Forgets the releases whose time is over.
    pub fn forget_old_releases(&mut self, now: Timestamp) {
        self.releases.retain(|release| release.until > now);
    }

    /// Whether nothing would be lost by forgetting this key.
    pub fn is_vacant(&self, now: Timestamp) -> bool {
        self.holder.is_none()
            && self.queue.is_empty()
            && self.releases.iter().all(|release| release.until <= now)
    }

    fn expire(&mut self, now: Timestamp) -> Option<Lease> {
        let expired = self.holder.take_if(|holder| !holder.lease.is_live(now))?;
        Some(expired.lease)
    }

    fn hand_over(&mut self, turn: &mut Turn<'_, W>) {
        while self.holder.is_none()
            && let Some(next) = self.queue.pop_front()
        {
            let ticket = next.claim.ticket;
            let wake = if next.until <= turn.now {
                Wake::TimedOut
            } else if let Some(fence) = (turn.mint)() {
                Wake::Granted(self.grant(next.claim, fence, turn.now))
            } else {
                Wake::FencesExhausted
            };
            turn.woken.push(Woken {
                waiter: next.waiter,
                ticket,
                wake,
            });
        }
    }

    fn grant(&mut self, claim: Claim, fence: Fence, now: Timestamp) -> Lease {
        // An owner whose new lease runs out must learn that, and not that an older one was released.
        for release in &mut self.releases {
            release.is_newest &= release.owner != claim.owner;
        }
        let lease = Lease {
            name: self.name.clone(),
            owner: claim.owner,
            caller: claim.caller,
            fence,
            acquired_at: now,
            expires_at: now + claim.ttl.as_duration(),
        };
        self.holder = Some(Holder {
            lease: lease.clone(),
            attempt: claim.attempt,
            ticket: Some(claim.ticket),
        });
        lease
    }

    fn held_by(
        &mut self,
        owner: &Owner,
        fence: Option<Fence>,
        now: Timestamp,
    ) -> Result<&mut Lease, NotHeld> {
        let why_not = self.not_held(owner, fence, now);
        match &mut self.holder {
            Some(holder) if holder.lease.belongs_to(owner, fence) => Ok(&mut holder.lease),
            _ => Err(why_not),
        }
    }

    /// Why a lease that is not the holder's cannot be acted on.
    fn not_held(&self, owner: &Owner, fence: Option<Fence>, now: Timestamp) -> NotHeld {
        let holder = self.lease().map(|lease| &lease.owner);
        if holder == Some(owner) {
            return NotHeld::OwnedByAnother;
        }
        let is_meant = |release: &&Tombstone| {
            release.until > now
                && release.owner == *owner
                && fence.map_or(release.is_newest, |fence| fence == release.fence)
        };
        match self.releases.iter().rfind(is_meant) {
            Some(&Tombstone { forced, .. }) => NotHeld::AlreadyReleased { forced },
            None if holder.is_some() => NotHeld::OwnedByAnother,
            None => NotHeld::NotFound,
        }
    }

    fn end_lease(&mut self, now: Timestamp, memory: ReleaseMemory, forced: bool) -> Option<Lease> {
        let Holder { lease, .. } = self.holder.take()?;
        self.forget_old_releases(now);
        if self.releases.len() == REMEMBERED_RELEASES {
            self.releases.remove(0);
        }
        self.releases.push(Tombstone {
            owner: lease.owner.clone(),
            fence: lease.fence,
            until: now + memory.as_duration(),
            forced,
            is_newest: true,
        });
        Some(lease)
    }
}

#[cfg(test)]
mod tests;
