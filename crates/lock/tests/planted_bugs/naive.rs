//! A naive store, with a switch for each bug.
//!
//! It searches lists of all leases and claims, and keeps no indexes, so that it is easy to compare with the contract.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use forrst_lock::model::{
    Abandoned, Acquire, Acquired, CALL_MEMORY, Call, Claim, Command, End, LeaseRef, Obstacle,
    Outcome, Position, REMEMBERED_RELEASES, Release, Settled, Transition, WITHDRAWAL_TTL,
    Withdrawal, Withdrawn,
};
use forrst_lock::{
    Answer, Attempt, Capabilities, Fence, Kind, Lease, ListError, ListRequest, LockName,
    LockStatus, LockStore, Locks, Node, Nodes, NotHeld, Owner, Page, Reading, ReleaseMemory,
    Secret, Share, StoreError, Ticket, Timestamp, Ttl, Waiter, Wake,
};
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    ReleaseWithoutOwnerCheck,
    ReleaseIgnoresTheFence,
    ReleaseEndsTheNextLease,
    FencePerProcess,
    ExtendRevives,
    ExtendAdds,
    ExpiryOffByOne,
    LostWakeUp,
    EveryoneIsWoken,
    TombstoneKeptTooLong,
    NoTombstone,
    CallForgottenLikeALock,
    ContenderClearsTheHolder,
    Reentrant,
    AbandonDoesNothing,
    AbandonForgetsTheLease,
    GoneWaiterKeepsTheLock,
    QueueWithoutLimit,
    ReleasedOnlyWhileFree,
    ForgetsThatItWasForced,
    OnlyTheLastReleaseRemembered,
    ForceReleaseIgnoresTheFence,
    ReaderPassesAWaitingWriter,
    WriterBesideReaders,
    NeighboursOneAtATime,
    UpgradeInPlace,
    LimitExceededByOne,
    AnotherLimitFits,
    SharedBesideALimit,
    AmbiguousReleaseTakesTheFirst,
    ForceReleaseEndsOne,
    SetGrantedInPart,
    SetReleasedInPart,
    RefusalNamesEveryKey,
    SetWaitsForItsLastKeyOnly,
    SetTakesKeysWhileItWaits,
    AbandonedSetLeftInOneQueue,
    TimedOutSetStillReserves,
    SetExpiresInPart,
    SetExtendedInPart,
    FenceOfTheFirstKey,
    SetListedOnce,
    AttemptForOtherKeys,
    RepeatedWaitSupersedes,
    PositionLeavesWithAnyCall,
    AnyCallRollsTheLeaseBack,
    WithdrawalForgotten,
    WithdrawalKeepsTheLease,
    RejoinAfterTheRelease,
}

#[derive(Debug)]
pub(crate) struct NaiveStore {
    bug: Bug,
    started: Instant,
    nodes: Nodes,
    space: Mutex<Keyspace>,
}

#[derive(Debug)]
struct Keyspace {
    bug: Bug,
    now: Timestamp,
    leases: Vec<Granted>,
    /// In order of arrival.
    waiting: Vec<Queued>,
    releases: HashMap<LockName, Vec<Release>>,
    /// All releases, never forgotten, for [`Bug::TombstoneKeptTooLong`].
    old_releases: Vec<(LockName, Release)>,
    withdrawals: Vec<(LockName, Withdrawal)>,
    fences: HashMap<LockName, u64>,
    last_fence: u64,
    arrivals: u64,
    transitions: Vec<Transition>,
}

#[derive(Debug, Clone)]
struct Granted {
    lease: Lease,
    attempt: Option<Attempt>,
    calls: Vec<Ticket>,
}

#[derive(Debug, Clone)]
struct Queued {
    claim: Claim,
    calls: Vec<Call>,
    since: Timestamp,
    arrival: u64,
}

impl NaiveStore {
    pub(crate) fn new(bug: Bug) -> Self {
        Self {
            bug,
            started: Instant::now(),
            nodes: Nodes::default(),
            space: Mutex::new(Keyspace {
                bug,
                now: Timestamp::from_millis(0),
                leases: Vec::new(),
                waiting: Vec::new(),
                releases: HashMap::new(),
                old_releases: Vec::new(),
                withdrawals: Vec::new(),
                fences: HashMap::new(),
                last_fence: 0,
                arrivals: 0,
                transitions: Vec::new(),
            }),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000) + self.started.elapsed()
    }

    fn run(&self, command: Command) -> Answer<Outcome> {
        let at = Instant::now();
        let now = self.now();
        let reading = Reading { at, now };
        let mut space = self.space.lock().unwrap();
        space.now = now;
        let outcome = space.step(command);
        let mut transitions = std::mem::take(&mut space.transitions);
        while !transitions.is_empty() {
            for transition in transitions {
                let Transition::Woken { call, wake } = transition else {
                    self.nodes.changed(&transition, now);
                    continue;
                };
                let is_grant = matches!(wake, Wake::Granted(_));
                if is_grant && self.bug == Bug::LostWakeUp {
                    continue;
                }
                let is_awake = self.nodes.wake(call.ticket, &wake, reading);
                if is_grant && !is_awake && self.bug != Bug::GoneWaiterKeepsTheLock {
                    let name = match &wake {
                        Wake::Granted(lease) => lease.name().clone(),
                        _ => continue,
                    };
                    let ticket = call.ticket;
                    space.step(Command::Abandon { name, ticket });
                }
            }
            transitions = std::mem::take(&mut space.transitions);
        }
        Answer { outcome, now }
    }
}

impl Keyspace {
    fn step(&mut self, command: Command) -> Outcome {
        let revives = self.bug == Bug::ExtendRevives && matches!(command, Command::Extend(..));
        if !revives {
            self.expire();
        }
        let acquires = matches!(command, Command::Acquire(_));
        let ends_the_next = self.bug == Bug::ReleaseEndsTheNextLease;
        if acquires || (ends_the_next && matches!(command, Command::Release(_))) {
            self.grant_what_can_be();
        }
        let outcome = match command {
            Command::Acquire(acquire) => Outcome::Acquired(self.acquire(acquire)),
            Command::Abandon { name, ticket } => Outcome::Abandoned(self.abandon(&name, ticket)),
            Command::Release(lease_ref) => Outcome::Lease(self.release(&lease_ref)),
            Command::Extend(lease_ref, ttl) => Outcome::Lease(self.extend(lease_ref, ttl)),
            Command::ForceRelease { name, fences } => Outcome::Forced(self.force(&name, &fences)),
            Command::Withdraw {
                name,
                owner,
                attempt,
            } => Outcome::Withdrawn(self.withdraw(name, owner, attempt)),
            Command::Settle(name) => {
                self.grant_what_can_be();
                Outcome::Settled(self.settled(&name))
            }
            Command::Confirm { .. } => Outcome::Lease(Err(NotHeld::NotFound)),
        };
        self.grant_what_can_be();
        outcome
    }

    fn is_live(&self, lease: &Lease) -> bool {
        match self.bug {
            Bug::ExpiryOffByOne => lease.expires_at >= self.now,
            _ => lease.is_live(self.now),
        }
    }

    fn expire(&mut self) {
        let over: Vec<Granted> = {
            let over = self.leases.iter().filter(|it| !self.is_live(&it.lease));
            over.cloned().collect()
        };
        for Granted { lease, .. } in over {
            self.leases
                .retain(|it| it.lease.fence != lease.fence || it.lease.locks != lease.locks);
            if self.bug == Bug::SetExpiresInPart && lease.locks.is_set() {
                let rest = lease.locks.as_slice()[1..].to_vec();
                let lease = Lease {
                    locks: Locks::new(rest).unwrap(),
                    expires_at: lease.expires_at + Duration::from_secs(3600),
                    ..lease.clone()
                };
                self.leases.push(Granted {
                    lease,
                    attempt: None,
                    calls: Vec::new(),
                });
            }
            self.ended(lease, End::Expired);
        }
    }

    fn ended(&mut self, lease: Lease, cause: End) {
        let due = lease.expires_at;
        self.transitions
            .push(Transition::Ended { lease, cause, due });
    }

    fn leases_on<'a>(&'a self, name: &LockName) -> impl Iterator<Item = &'a Granted> {
        let name = name.clone();
        self.leases
            .iter()
            .filter(move |it| it.lease.locks.share_of(&name).is_some())
    }

    fn fits_one(&self, name: &LockName, share: Share, owner: &Owner) -> bool {
        let held = self.leases_on(name);
        let held = held.filter(|it| self.bug != Bug::UpgradeInPlace || it.lease.owner != *owner);
        let held: Vec<Kind> = held
            .filter_map(|it| it.lease.locks.share_of(name))
            .map(Share::kind)
            .collect();
        let all = |kind: Kind| held.iter().all(|held| *held == kind);
        let is_limit = |kind: &Kind| matches!(kind, Kind::Limit(_));
        match share.kind() {
            Kind::Exclusive if self.bug == Bug::WriterBesideReaders => all(Kind::Shared),
            Kind::Exclusive => held.is_empty(),
            Kind::Shared if self.bug == Bug::SharedBesideALimit => held
                .iter()
                .all(|kind| *kind == Kind::Shared || is_limit(kind)),
            Kind::Shared => all(Kind::Shared),
            Kind::Limit(limit) => {
                let extra = usize::from(self.bug == Bug::LimitExceededByOne);
                let is_alike = match self.bug {
                    Bug::AnotherLimitFits => held.iter().all(is_limit),
                    _ => all(Kind::Limit(limit)),
                };
                is_alike && held.len() < limit as usize + extra
            }
        }
    }

    /// Whether an earlier claim waits for this key.
    fn is_awaited(&self, name: &LockName, before: u64, share: Share) -> bool {
        if self.bug == Bug::ReaderPassesAWaitingWriter && share == Share::SHARED {
            return false;
        }
        self.waiting.iter().any(|it| {
            let locks = &it.claim.locks;
            let waits = match self.bug {
                Bug::SetWaitsForItsLastKeyOnly => locks.names().next_back() == Some(name),
                _ => locks.share_of(name).is_some(),
            };
            it.arrival < before && waits
        })
    }

    fn blocked_by(&self, claim: &Claim, before: u64) -> Vec<LockName> {
        let locks = claim.locks.as_slice().iter();
        let blocked = locks.filter(|(name, share)| {
            self.is_awaited(name, before, *share) || !self.fits_one(name, *share, &claim.owner)
        });
        let blocked: Vec<LockName> = blocked.map(|(name, _)| name.clone()).collect();
        match self.bug {
            Bug::RefusalNamesEveryKey if !blocked.is_empty() => {
                claim.locks.names().cloned().collect()
            }
            _ => blocked,
        }
    }

    fn mint(&mut self, locks: &Locks) -> Fence {
        self.last_fence += 1;
        if self.bug == Bug::FencePerProcess && self.last_fence.is_multiple_of(3) {
            self.last_fence = 1;
        }
        let mut fence = self.last_fence;
        if self.bug == Bug::FenceOfTheFirstKey {
            let first = self.fences.entry(locks.first().clone()).or_default();
            *first += 1;
            fence = *first;
        }
        Fence::new(fence).unwrap()
    }

    fn grant(&mut self, claim: &Claim, calls: Vec<Ticket>, since: Option<Timestamp>) -> Lease {
        let fence = self.mint(&claim.locks);
        let lease = Lease {
            locks: claim.locks.clone(),
            owner: claim.owner.clone(),
            caller: claim.caller.clone(),
            note: claim.note.clone(),
            fence,
            acquired_at: self.now,
            expires_at: self.now + claim.ttl.as_duration(),
        };
        for name in claim.locks.names() {
            let releases = self.releases.entry(name.clone()).or_default();
            for release in releases {
                release.is_newest &= release.owner != claim.owner;
            }
        }
        self.leases.push(Granted {
            lease: lease.clone(),
            attempt: claim.attempt.clone(),
            calls,
        });
        self.transitions.push(Transition::Granted {
            lease: lease.clone(),
            waited_since: since,
            confirm_by: None,
        });
        lease
    }

    fn wake(&mut self, call: Call, wake: Wake) {
        self.transitions.push(Transition::Woken { call, wake });
    }

    fn grant_what_can_be(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            let it = self.waiting[index].clone();
            let is_first =
                |(name, share): &(LockName, Share)| !self.is_awaited(name, it.arrival, *share);
            let locks = it.claim.locks.as_slice();
            let is_over = |call: &Call| call.until <= self.now;
            let is_blocked = !self.blocked_by(&it.claim, it.arrival).is_empty();
            let reserves = self.bug == Bug::TimedOutSetStillReserves && is_blocked;
            if locks.iter().any(is_first) && it.calls.iter().any(is_over) && !reserves {
                self.drop_timed_out_calls(it.arrival);
                index = 0;
                continue;
            }
            if is_blocked {
                self.take_a_free_key(index);
                index += 1;
                continue;
            }
            self.waiting.remove(index);
            let calls = it.calls.iter().map(|call| call.ticket).collect();
            let lease = self.grant(&it.claim, calls, Some(it.since));
            for call in it.calls {
                self.wake(call, Wake::Granted(lease.clone()));
            }
            if self.bug == Bug::EveryoneIsWoken
                && let Some(next) = self.waiting.iter_mut().find(|next| {
                    next.claim
                        .locks
                        .names()
                        .any(|name| lease.locks.share_of(name).is_some())
                })
            {
                // As with a broadcast: the next call is woken as well, finds the lock held, and would have to queue again.
                let call = next.calls.remove(0);
                self.waiting.retain(|it| !it.calls.is_empty());
                let obstacle = self.obstacle(lease.locks.names().cloned().collect());
                self.wake(call, Wake::TimedOut(obstacle));
            }
            if self.bug == Bug::NeighboursOneAtATime {
                return;
            }
            index = 0;
        }
    }

    /// Returns whether no call is left, so that the claim has left the queue.
    fn drop_timed_out_calls(&mut self, arrival: u64) -> bool {
        let Some(index) = self.waiting.iter().position(|it| it.arrival == arrival) else {
            return true;
        };
        let it = self.waiting[index].clone();
        let obstacle = self.obstacle(self.blocked_by(&it.claim, arrival));
        let is_over = |call: &Call| call.until <= self.now;
        let (over, left): (Vec<Call>, Vec<Call>) = it.calls.into_iter().partition(is_over);
        for call in over {
            self.wake(call, Wake::TimedOut(obstacle.clone()));
        }
        let is_empty = left.is_empty();
        self.waiting[index].calls = left;
        if is_empty {
            self.waiting.remove(index);
        }
        is_empty
    }

    /// As a store that locks key by key, and waits for the next while it holds the previous one.
    fn take_a_free_key(&mut self, index: usize) {
        let it = &self.waiting[index];
        if self.bug != Bug::SetTakesKeysWhileItWaits || !it.claim.locks.is_set() {
            return;
        }
        let claim = it.claim.clone();
        let free = claim
            .locks
            .as_slice()
            .iter()
            .rev()
            .find(|(name, share)| self.fits_one(name, *share, &claim.owner));
        if let Some((name, share)) = free {
            let one = Claim {
                locks: Locks::one(name.clone(), *share),
                ..claim.clone()
            };
            self.grant(&one, Vec::new(), None);
        }
    }

    fn acquire(&mut self, acquire: Acquire) -> Acquired {
        let Acquire {
            claim,
            ticket,
            node,
            wait,
        } = acquire;
        if let Some(attempt) = &claim.attempt
            && let Some(known) = self.repeat(&claim, attempt, ticket, wait.as_ref())
        {
            return known;
        }
        let rejoins = wait.as_ref().is_some_and(|wait| wait.rejoin.is_some());
        if rejoins && self.is_released(&claim) {
            return Acquired::Withdrawn;
        }
        if self.bug == Bug::Reentrant
            && let Some(it) = self
                .leases_on(claim.locks.first())
                .find(|it| it.lease.owner == claim.owner)
        {
            return Acquired::Granted(it.lease.clone());
        }
        let blocked_by = self.blocked_by(&claim, u64::MAX);
        if blocked_by.is_empty() {
            return Acquired::Granted(self.grant(&claim, vec![ticket], None));
        }
        if self.bug == Bug::SetGrantedInPart && claim.locks.is_set() && wait.is_none() {
            let free = claim.locks.as_slice().iter();
            let free = free.filter(|(name, _)| !blocked_by.contains(name)).cloned();
            if let Ok(locks) = Locks::new(free.collect()) {
                let part = Claim {
                    locks,
                    ..claim.clone()
                };
                self.grant(&part, vec![ticket], None);
            }
        }
        let obstacle = self.obstacle(blocked_by);
        let Some(wait) = wait else {
            if self.bug == Bug::ContenderClearsTheHolder {
                self.leases
                    .retain(|it| it.lease.locks.share_of(claim.locks.first()).is_none());
            }
            return Acquired::Held(obstacle);
        };
        let is_full = claim.locks.names().any(|name| {
            if self.queue(name).count() < wait.max_queue {
                return false;
            }
            let arrivals: Vec<u64> = self.queue(name).map(|it| it.arrival).collect();
            for arrival in arrivals {
                self.drop_timed_out_calls(arrival);
            }
            self.queue(name).count() >= wait.max_queue
        });
        if is_full && self.bug != Bug::QueueWithoutLimit {
            return Acquired::QueueFull(obstacle);
        }
        self.arrivals += 1;
        let until = self.now + wait.timeout;
        let call = Call {
            ticket,
            node,
            until,
        };
        self.waiting.push(Queued {
            claim,
            calls: vec![call],
            since: self.now,
            arrival: self.arrivals,
        });
        Acquired::Queued {
            obstacle,
            position: Position {
                arrival: self.arrivals,
                ticket,
            },
            until,
        }
    }

    fn repeat(
        &mut self,
        claim: &Claim,
        attempt: &Attempt,
        ticket: Ticket,
        wait: Option<&forrst_lock::model::Wait>,
    ) -> Option<Acquired> {
        let now = self.now;
        let is_withdrawn = self.withdrawals.iter().any(|(name, it)| {
            it.until > now
                && claim.locks.share_of(name).is_some()
                && it.owner == claim.owner
                && it.attempt == *attempt
        });
        if is_withdrawn && self.bug != Bug::WithdrawalForgotten {
            return Some(Acquired::Withdrawn);
        }
        let is_same = |owner: &Owner, known: Option<&Attempt>, locks: &Locks| {
            *owner == claim.owner
                && known == Some(attempt)
                && locks
                    .names()
                    .any(|name| claim.locks.share_of(name).is_some())
        };
        let ignores_keys = self.bug == Bug::AttemptForOtherKeys;
        let mut leases = self.leases.iter_mut();
        let held = leases.find(|it| is_same(&it.lease.owner, it.attempt.as_ref(), &it.lease.locks));
        if let Some(it) = held {
            if it.lease.locks != claim.locks && !ignores_keys {
                return Some(Acquired::AttemptMismatch);
            }
            if !it.calls.is_empty() {
                it.calls.push(ticket);
            }
            return Some(Acquired::Granted(it.lease.clone()));
        }
        let mut waiting = self.waiting.iter();
        let index = waiting
            .position(|it| is_same(&it.claim.owner, it.claim.attempt.as_ref(), &it.claim.locks))?;
        let it = self.waiting[index].clone();
        if it.claim.locks != claim.locks && !ignores_keys {
            return Some(Acquired::AttemptMismatch);
        }
        if self.drop_timed_out_calls(it.arrival) {
            return None;
        }
        let obstacle = self.obstacle(self.blocked_by(&it.claim, it.arrival));
        let Some(wait) = wait else {
            return Some(Acquired::Held(obstacle));
        };
        if self.bug == Bug::RepeatedWaitSupersedes {
            for call in std::mem::take(&mut self.waiting[index].calls) {
                self.wake(call, Wake::TimedOut(obstacle.clone()));
            }
        }
        let until = now + wait.timeout;
        self.waiting[index].calls.push(Call {
            ticket,
            node: None,
            until,
        });
        let position = Position {
            arrival: it.arrival,
            ticket,
        };
        Some(Acquired::Queued {
            obstacle,
            position,
            until,
        })
    }

    fn obstacle(&self, blocked_by: Vec<LockName>) -> Obstacle {
        let retry_at = blocked_by.iter().map(|name| self.next_end(name)).min();
        let retry_at = retry_at.unwrap_or(self.now);
        Obstacle {
            blocked_by,
            retry_at,
        }
    }

    /// When the first lease on this key ends; without one, the first lease on a key that blocks the first claim here.
    fn next_end(&self, name: &LockName) -> Timestamp {
        if let Some(end) = self.leases_on(name).map(|it| it.lease.expires_at).min() {
            return end;
        }
        let later = self.now + Duration::from_secs(1);
        let Some(first) = self.queue(name).next() else {
            return later;
        };
        let blocked_by = self.blocked_by(&first.claim, first.arrival);
        let ends = blocked_by.iter().flat_map(|name| self.leases_on(name));
        let end = ends.map(|it| it.lease.expires_at).min();
        let next = blocked_by.first().filter(|next| *next != name);
        end.unwrap_or_else(|| next.map_or(later, |next| self.next_end(next)))
    }

    fn queue<'a>(&'a self, name: &LockName) -> impl Iterator<Item = &'a Queued> {
        let name = name.clone();
        let waits = move |it: &&Queued| it.claim.locks.share_of(&name).is_some();
        self.waiting.iter().filter(waits)
    }

    fn settled(&self, name: &LockName) -> Settled {
        let first = self.queue(name).next();
        let obstacle = first.map(|it| self.obstacle(self.blocked_by(&it.claim, it.arrival)));
        Settled {
            waiters: self.queue(name).count(),
            retry_at: obstacle.map_or(self.now, |obstacle| obstacle.retry_at),
        }
    }

    fn abandon(&mut self, name: &LockName, ticket: Ticket) -> Abandoned {
        if self.bug == Bug::AbandonDoesNothing {
            return Abandoned::Nothing;
        }
        let held = self.leases.iter().position(|it| it.calls.contains(&ticket));
        if let Some(index) = held {
            let it = &mut self.leases[index];
            if self.bug == Bug::AbandonForgetsTheLease {
                return Abandoned::Returned(it.lease.clone());
            }
            it.calls.retain(|call| *call != ticket);
            if !it.calls.is_empty() && self.bug != Bug::AnyCallRollsTheLeaseBack {
                return Abandoned::Nothing;
            }
            let Granted { lease, .. } = self.leases.remove(index);
            self.ended(lease.clone(), End::Abandoned);
            return Abandoned::Returned(lease);
        }
        let has = |it: &Queued| it.calls.iter().any(|call| call.ticket == ticket);
        let Some(index) = self.waiting.iter().position(has) else {
            return Abandoned::Nothing;
        };
        let (claim, arrival) = (
            self.waiting[index].claim.clone(),
            self.waiting[index].arrival,
        );
        let obstacle = self.obstacle(self.blocked_by(&claim, arrival));
        let it = &mut self.waiting[index];
        let other_key = it
            .claim
            .locks
            .as_slice()
            .iter()
            .find(|(key, _)| key != name)
            .cloned();
        it.calls.retain(|call| call.ticket != ticket);
        if it.calls.is_empty() || self.bug == Bug::PositionLeavesWithAnyCall {
            match (self.bug, other_key) {
                (Bug::AbandonedSetLeftInOneQueue, Some((key, share))) => {
                    it.claim.locks = Locks::one(key, share);
                    it.calls.push(Call {
                        ticket,
                        node: None,
                        until: self.now + Duration::from_secs(3600),
                    });
                }
                _ => drop(self.waiting.remove(index)),
            }
        }
        Abandoned::LeftQueue(obstacle)
    }

    fn find(&self, lease_ref: &LeaseRef) -> Result<usize, NotHeld> {
        let of_key = |it: &Granted| it.lease.locks.share_of(&lease_ref.name).is_some();
        let all: Vec<usize> = {
            let all = self.leases.iter().enumerate();
            all.filter(|(_, it)| of_key(it))
                .map(|(index, _)| index)
                .collect()
        };
        let own: Vec<usize> = {
            let own = all.iter().copied();
            own.filter(|index| self.leases[*index].lease.owner == lease_ref.owner)
                .collect()
        };
        let is_meant = |index: &usize| {
            let fence = self.leases[*index].lease.fence;
            lease_ref.fence.is_none_or(|it| it == fence) || self.bug == Bug::ReleaseIgnoresTheFence
        };
        let meant: Vec<usize> = own.iter().copied().filter(is_meant).collect();
        match meant.as_slice() {
            [one] => return Ok(*one),
            [first, ..] if self.bug == Bug::AmbiguousReleaseTakesTheFirst => return Ok(*first),
            [_, _, ..] => return Err(NotHeld::Ambiguous),
            [] if self.bug == Bug::ReleaseWithoutOwnerCheck && !all.is_empty() => return Ok(all[0]),
            [] if !own.is_empty() => return Err(NotHeld::OwnedByAnother),
            [] => {}
        }
        let now = self.now;
        let kept_too_long = self.bug == Bug::TombstoneKeptTooLong;
        let old = self
            .old_releases
            .iter()
            .filter(|(name, _)| kept_too_long && *name == lease_ref.name);
        let known = self.releases.get(&lease_ref.name).into_iter().flatten();
        let known = known.filter(|release| release.until > now);
        let mut known: Vec<&Release> = old.map(|(_, release)| release).chain(known).collect();
        known.retain(|release| {
            release.owner == lease_ref.owner
                && lease_ref
                    .fence
                    .map_or(release.is_newest, |fence| fence == release.fence)
        });
        match known.last() {
            Some(_) if self.bug == Bug::ReleasedOnlyWhileFree && !all.is_empty() => {
                Err(NotHeld::OwnedByAnother)
            }
            Some(release) => Err(NotHeld::AlreadyReleased {
                forced: release.forced && self.bug != Bug::ForgetsThatItWasForced,
            }),
            None if !all.is_empty() => Err(NotHeld::OwnedByAnother),
            None => Err(NotHeld::NotFound),
        }
    }

    /// Whether a lease of the attempt of this claim was released.
    fn is_released(&self, claim: &Claim) -> bool {
        let releases = claim
            .locks
            .names()
            .filter_map(|name| self.releases.get(name));
        let is_released = releases.flatten().any(|release| {
            release.until > self.now
                && release.owner == claim.owner
                && release.attempt.is_some()
                && release.attempt == claim.attempt
        });
        is_released && self.bug != Bug::RejoinAfterTheRelease
    }

    fn remember(&mut self, granted: &Granted, forced: bool) {
        let Granted { lease, attempt, .. } = granted;
        if self.bug == Bug::NoTombstone {
            return;
        }
        for name in lease.locks.names() {
            let is_newer = |owner: &Owner, fence| *owner == lease.owner && fence > lease.fence;
            let has_newer = self
                .leases_on(name)
                .any(|it| is_newer(&it.lease.owner, it.lease.fence));
            let mut known = self.releases.get(name).into_iter().flatten();
            let knows_newer = known.any(|it| it.until > self.now && is_newer(&it.owner, it.fence));
            let memory = match self.bug {
                Bug::CallForgottenLikeALock => ReleaseMemory::default().as_duration(),
                _ if name.is_call() => CALL_MEMORY,
                _ => ReleaseMemory::default().as_duration(),
            };
            let release = Release {
                owner: lease.owner.clone(),
                attempt: attempt.clone(),
                fence: lease.fence,
                until: self.now + memory,
                forced,
                is_newest: !has_newer && !knows_newer,
            };
            self.old_releases.push((name.clone(), release.clone()));
            let releases = self.releases.entry(name.clone()).or_default();
            let now = self.now;
            releases.retain(|release| release.until > now);
            let most = match self.bug {
                Bug::OnlyTheLastReleaseRemembered => 1,
                _ => REMEMBERED_RELEASES,
            };
            if releases.len() == most {
                releases.remove(0);
            }
            releases.push(release);
        }
    }

    fn end(&mut self, index: usize, forced: bool) -> Lease {
        let granted = self.leases.remove(index);
        self.remember(&granted, forced);
        let Granted { lease, .. } = granted;
        let cause = if forced { End::Forced } else { End::Released };
        self.ended(lease.clone(), cause);
        lease
    }

    fn release(&mut self, lease_ref: &LeaseRef) -> Result<Lease, NotHeld> {
        let index = self.find(lease_ref)?;
        if self.bug == Bug::SetReleasedInPart && self.leases[index].lease.locks.is_set() {
            let lease = self.leases[index].lease.clone();
            let rest = lease
                .locks
                .as_slice()
                .iter()
                .filter(|(name, _)| *name != lease_ref.name);
            self.leases[index].lease.locks = Locks::new(rest.cloned().collect()).unwrap();
            return Ok(lease);
        }
        Ok(self.end(index, false))
    }

    fn extend(&mut self, lease_ref: LeaseRef, ttl: Ttl) -> Result<Lease, NotHeld> {
        let index = self.find(&lease_ref)?;
        let now = self.now;
        if self.bug == Bug::SetExtendedInPart && self.leases[index].lease.locks.is_set() {
            let mut part = self.leases[index].clone();
            let whole = part.lease.clone();
            let rest = whole
                .locks
                .as_slice()
                .iter()
                .filter(|(name, _)| *name != lease_ref.name);
            self.leases[index].lease.locks = Locks::new(rest.cloned().collect()).unwrap();
            let share = whole.locks.share_of(&lease_ref.name).unwrap();
            part.lease.locks = Locks::one(lease_ref.name, share);
            part.lease.expires_at = now + ttl.as_duration();
            self.leases.push(part.clone());
            return Ok(Lease {
                locks: whole.locks,
                ..part.lease
            });
        }
        let lease = &mut self.leases[index].lease;
        let before = lease.expires_at;
        let added = match self.bug {
            Bug::ExtendAdds => before.remaining(now),
            _ => Duration::ZERO,
        };
        lease.expires_at = now + ttl.as_duration() + added;
        let lease = lease.clone();
        self.transitions.push(Transition::Extended {
            lease: lease.clone(),
            before,
        });
        Ok(lease)
    }

    fn force(&mut self, name: &LockName, fences: &[Fence]) -> Result<Vec<Lease>, NotHeld> {
        let ignores = self.bug == Bug::ForceReleaseIgnoresTheFence;
        let mut ended = Vec::new();
        let count = self.leases_on(name).count();
        while let Some(index) = self.leases.iter().position(|it| {
            let is_named = fences.is_empty() || fences.contains(&it.lease.fence);
            let is_meant = ignores || is_named;
            is_meant && it.lease.locks.share_of(name).is_some()
        }) {
            ended.push(self.end(index, true));
            if self.bug == Bug::ForceReleaseEndsOne {
                break;
            }
        }
        match ended.is_empty() {
            false => Ok(ended),
            true if count > 0 => Err(NotHeld::OwnedByAnother),
            true => Err(NotHeld::NotFound),
        }
    }

    fn withdraw(&mut self, name: LockName, owner: Owner, attempt: Attempt) -> Withdrawn {
        let until = self.now + WITHDRAWAL_TTL;
        let held = self.leases.iter().position(|it| {
            it.lease.locks.share_of(&name).is_some()
                && it.lease.owner == owner
                && it.attempt.as_ref() == Some(&attempt)
        });
        let waiting = self.waiting.iter().position(|it| {
            it.claim.locks.share_of(&name).is_some()
                && it.claim.owner == owner
                && it.claim.attempt.as_ref() == Some(&attempt)
        });
        let was = match (held, waiting) {
            (Some(index), _) if self.bug == Bug::WithdrawalKeepsTheLease => {
                Withdrawn::Held(self.leases[index].lease.clone())
            }
            (Some(index), _) => Withdrawn::Held(self.end(index, false)),
            (None, Some(index)) => {
                for call in self.waiting.remove(index).calls {
                    self.wake(call, Wake::Withdrawn);
                }
                Withdrawn::Waiting
            }
            (None, None) => Withdrawn::Unknown,
        };
        let withdrawal = Withdrawal {
            owner,
            attempt,
            until,
        };
        self.withdrawals.push((name, withdrawal));
        was
    }

    fn status(&self, name: &LockName, now: Timestamp) -> LockStatus {
        let live = self.leases_on(name).filter(|it| it.lease.is_live(now));
        let mut holders: Vec<Lease> = live.map(|it| it.lease.clone()).collect();
        holders.sort_by_key(|lease| lease.fence);
        let (holder_count, last_fence) = (holders.len(), holders.last().map(|lease| lease.fence));
        holders.truncate(LockStatus::MAX_HOLDERS);
        LockStatus {
            name: name.clone(),
            kind: holders
                .first()
                .and_then(|lease| lease.locks.share_of(name))
                .map(Share::kind),
            holder_count,
            last_fence,
            holders,
            waiters: self.queue(name).count(),
        }
    }
}

#[async_trait]
impl LockStore for NaiveStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: false,
            shared: false,
            notifies: false,
            release_memory: ReleaseMemory::default(),
        }
    }

    fn secret(&self) -> Secret {
        Secret::from_bytes([0; 32])
    }

    fn subscribe(&self, node: Weak<dyn Node>) {
        self.nodes.add(node);
    }

    async fn submit(&self, command: Command) -> Result<Answer<Outcome>, StoreError> {
        Ok(self.run(command))
    }

    fn abandon(&self, name: &LockName, ticket: Ticket) {
        let name = name.clone();
        self.run(Command::Abandon { name, ticket });
    }

    async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let now = self.now();
        let space = self.space.lock().unwrap();
        let outcome = space.status(name, now);
        Ok(Answer { outcome, now })
    }

    async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let space = self.space.lock().unwrap();
        let waiter = |it: &Queued| Waiter {
            owner: it.claim.owner.clone(),
            caller: it.claim.caller.clone(),
            note: it.claim.note.clone(),
            since: it.since,
            until: it
                .calls
                .iter()
                .map(|call| call.until)
                .max()
                .unwrap_or(it.since),
        };
        let outcome = space.queue(name).take(limit).map(waiter).collect();
        let now = self.now();
        Ok(Answer { outcome, now })
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let (after, now) = (request.after()?, self.now());
        let space = self.space.lock().unwrap();
        let keys = space.leases.iter().flat_map(|it| {
            let names = it.lease.locks.names();
            let most = match self.bug {
                Bug::SetListedOnce => 1,
                _ => Locks::MAX,
            };
            names.take(most)
        });
        let mut keys: Vec<&LockName> = keys
            .filter(|name| name.as_str().starts_with(&request.prefix))
            .filter(|name| after.as_ref().is_none_or(|after| *name > after))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let locks = keys.into_iter().map(|name| space.status(name, now));
        let locks = locks.filter(|status| status.holder_count > 0).collect();
        Ok(Page::cut(locks, request.limit, now))
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let due = {
            let mut space = self.space.lock().unwrap();
            space.now = self.now();
            let mut leases = space.leases.iter();
            leases
                .find(|it| !space.is_live(&it.lease))
                .map(|it| it.lease.name().clone())
        };
        match due.filter(|_| limit > 0) {
            Some(name) => {
                self.run(Command::Settle(name));
                Ok(1)
            }
            None => Ok(0),
        }
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
