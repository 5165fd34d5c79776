//! The execution of one step: expired leases end, the command is applied, and claims that can be granted are granted.
//!
//! When a lease or a waiting claim of several keys is removed, that may unblock claims at each of these keys, and their grants may
//! unblock further ones. A step ends only when no key that it changed has a claim that can be granted.

use super::{
    Abandoned, CALL_MEMORY, CONFIRM_WITHIN, Call, Claim, Command, End, Env, Holder, Key, Keys,
    LeaseRef, Locks, NotHeld, Outcome, Position, Release, Settled, Transition, WITHDRAWAL_TTL,
    Waiting, Wake, Withdrawal, Withdrawn,
};
use crate::{Attempt, Fence, Lease, LockName, Owner, Ticket, Timestamp, Ttl};

pub(super) struct Executor<'a, 'e, K> {
    pub(super) keys: &'a mut K,
    pub(super) env: &'a mut Env<'e>,
    transitions: &'a mut Vec<Transition>,
    /// Keys, other than those of the command, where a claim may be grantable now.
    unsettled: Vec<LockName>,
    /// Keys, other than those of the command, that were settled; only recorded to check the invariants.
    touched: Vec<LockName>,
}

impl<'a, 'e, K: Keys> Executor<'a, 'e, K> {
    pub(super) fn new(
        keys: &'a mut K,
        env: &'a mut Env<'e>,
        transitions: &'a mut Vec<Transition>,
    ) -> Self {
        Self {
            keys,
            env,
            transitions,
            unsettled: Vec::new(),
            touched: Vec::new(),
        }
    }

    pub(super) fn execute(mut self, command: &Command) -> Outcome {
        match command {
            Command::Acquire(acquire) => {
                let locks = &acquire.claim.locks;
                for name in locks.names() {
                    self.expire(name);
                }
                for name in locks.names() {
                    self.settle_from(name);
                }
                let outcome = Outcome::Acquired(self.acquire(acquire));
                self.settle_others();
                self.check_all(locks.names());
                outcome
            }
            Command::Abandon { name, ticket } => {
                self.apply_to_key(name, |this| Outcome::Abandoned(this.abandon(name, *ticket)))
            }
            Command::Release(lease_ref) => self.apply_to_key(&lease_ref.name, |this| {
                let fence = this.find_lease(lease_ref).map(|lease| lease.fence);
                let ended = fence.map(|fence| this.end(&lease_ref.name, fence, End::Released));
                Outcome::Lease(ended.and_then(|ended| ended.ok_or(NotHeld::NotFound)))
            }),
            Command::Extend(lease_ref, ttl) => self.apply_to_key(&lease_ref.name, |this| {
                let found = this.find_lease(lease_ref).cloned();
                Outcome::Lease(found.map(|lease| this.extend(lease, *ttl)))
            }),
            Command::ForceRelease { name, fences } => self.apply_to_key(name, |this| {
                Outcome::Forced(this.force_release(name, fences))
            }),
            Command::Withdraw {
                name,
                owner,
                attempt,
            } => self.apply_to_key(name, |this| {
                Outcome::Withdrawn(this.withdraw(name, owner, attempt))
            }),
            Command::Confirm { name, fence } => {
                self.apply_to_key(name, |this| Outcome::Lease(this.confirm(name, *fence)))
            }
            Command::Settle(name) => {
                self.apply_to_key(name, |_| ());
                Outcome::Settled(self.settled(name))
            }
        }
    }

    /// Applies a command to one key: after its expired leases have ended, and before waiting claims are granted.
    fn apply_to_key<T>(&mut self, name: &LockName, apply: impl FnOnce(&mut Self) -> T) -> T {
        self.expire(name);
        let outcome = apply(self);
        self.settle_from(name);
        self.check_all([name]);
        outcome
    }

    pub(super) fn key(&mut self, name: &LockName) -> &mut Key {
        self.keys.key(name)
    }

    /// Ends the leases on this key that have expired, or whose grant was not confirmed. Returns whether there was any.
    fn expire(&mut self, name: &LockName) -> bool {
        let now = self.env.now;
        let mut is_any = false;
        while let Some((due, fence)) = self.key(name).first_due()
            && due <= now
            && let Some(holder) = self.key(name).holder(fence)
        {
            let cause = if holder.lease.is_live(now) {
                End::Unconfirmed
            } else {
                End::Expired
            };
            self.end(name, fence, cause);
            is_any = true;
        }
        is_any
    }

    /// Ends a lease on this key, and on all its other keys.
    fn end(&mut self, name: &LockName, fence: Fence, cause: End) -> Option<Lease> {
        let ended = self.key(name).remove(fence)?;
        let due = ended.due();
        let Holder { lease, attempt, .. } = ended;
        if lease.locks.is_set() {
            for other in lease.locks.names().filter(|other| *other != name) {
                self.key(other).remove(fence);
            }
        }
        if let End::Released | End::Forced = cause {
            let now = self.env.now;
            for name in lease.locks.names() {
                let memory = if name.is_call() {
                    CALL_MEMORY
                } else {
                    self.env.memory.as_duration()
                };
                let release = Release {
                    owner: lease.owner.clone(),
                    attempt: attempt.clone(),
                    fence,
                    until: now + memory,
                    forced: cause == End::Forced,
                    is_newest: false,
                };
                self.key(name).remember_release(release, now);
            }
        }
        self.unsettle(&lease.locks);
        self.transitions.push(Transition::Ended {
            lease: lease.clone(),
            cause,
            due,
        });
        Some(lease)
    }

    /// Marks the keys of a set as unsettled. A single key is settled by the command that changed it.
    fn unsettle(&mut self, locks: &Locks) {
        if locks.is_set() {
            self.unsettled.extend(locks.names().cloned());
        }
    }

    /// Grants all claims that can be granted at this key, and at those that this unsettles.
    fn settle_from(&mut self, name: &LockName) {
        self.settle_key(name);
        self.settle_others();
    }

    fn settle_others(&mut self) {
        while let Some(name) = self.unsettled.pop() {
            self.expire(&name);
            self.settle_key(&name);
            if cfg!(debug_assertions) {
                self.touched.push(name);
            }
        }
    }

    fn settle_key(&mut self, name: &LockName) {
        while let Some(first) = self.key(name).next() {
            let position = first.position;
            let is_done = self.prune(name, position) || self.grant_waiting(name, position);
            if !is_done {
                return;
            }
        }
    }

    /// Removes the calls of a claim that have timed out or whose node is dead. Returns whether none is left.
    pub(super) fn prune(&mut self, name: &LockName, position: Position) -> bool {
        let Some(waiting) = self.keys.key(name).waiting(position) else {
            return true;
        };
        if waiting.calls.iter().all(|call| self.env.stays(call)) {
            return false;
        }
        let locks = waiting.claim.locks.clone();
        let calls = waiting.calls.iter().cloned();
        let (remaining, gone): (Vec<Call>, Vec<Call>) =
            calls.partition(|call| self.env.stays(call));
        let obstacle = self.obstacle(&locks, Some(position));
        self.retain_calls(name, position, |call| remaining.contains(call));
        for call in gone {
            // If a dead node comes back, its call rejoins, and receives its outcome then.
            if !self.env.is_gone(&call) {
                let wake = Wake::TimedOut(obstacle.clone());
                self.transitions.push(Transition::Woken { call, wake });
            }
        }
        remaining.is_empty()
    }

    /// Removes the claims before a position that have no live call. Returns whether there was any.
    fn prune_before(&mut self, name: &LockName, position: Position) -> bool {
        let mut is_any = false;
        while let Some(first) = self.key(name).next().map(|first| first.position)
            && first < position
            && self.prune(name, first)
        {
            is_any = true;
        }
        is_any
    }

    /// Keeps some of the calls of a claim. A claim without calls leaves all its queues.
    fn retain_calls(&mut self, name: &LockName, position: Position, stays: impl Fn(&Call) -> bool) {
        let Some(waiting) = self.key(name).waiting(position) else {
            return;
        };
        let locks = waiting.claim.locks.clone();
        let mut is_empty = false;
        for name in locks.names() {
            if let Some(waiting) = self.key(name).waiting_mut(position) {
                waiting.calls.retain(|call| stays(call));
                is_empty = waiting.calls.is_empty();
            }
            if is_empty {
                self.key(name).dequeue(position);
            }
        }
        if is_empty {
            self.unsettle(&locks);
        }
    }

    /// Grants the first claim in a queue if nothing blocks it. Returns whether it has left the queue.
    fn grant_waiting(&mut self, name: &LockName, position: Position) -> bool {
        let Some(waiting) = self.key(name).next() else {
            return false;
        };
        let claim = waiting.claim.clone();
        for (name, share) in claim.locks.as_slice() {
            if claim.locks.is_set() {
                // The end of a lease or claim there may also unblock other claims.
                let has_changed = self.expire(name) | self.prune_before(name, position);
                if has_changed {
                    self.unsettled.push(name.clone());
                }
            }
            if !self.is_unblocked(name, *share, Some(position)) {
                return false;
            }
        }
        let fence = (self.env.mint)(&claim.locks);
        let mut removed = None;
        for name in claim.locks.names() {
            removed = self.key(name).dequeue(position);
        }
        self.unsettle(&claim.locks);
        let Some(Waiting { calls, since, .. }) = removed else {
            return true;
        };
        let wake = match fence {
            Some(fence) => {
                let own = self.env.node;
                let is_known = calls
                    .iter()
                    .any(|call| call.node.is_none() || call.node.as_ref() == own);
                let lease = self.lease(&claim, fence);
                let holder = Holder {
                    lease: lease.clone(),
                    attempt: claim.attempt.clone(),
                    calls: calls.iter().map(|call| call.ticket).collect(),
                    confirm_by: (!is_known).then(|| self.env.now + CONFIRM_WITHIN),
                };
                self.grant(&claim.locks, holder, Some(since));
                Wake::Granted(lease)
            }
            None => Wake::FencesExhausted,
        };
        for call in calls {
            let wake = wake.clone();
            self.transitions.push(Transition::Woken { call, wake });
        }
        true
    }

    pub(super) fn lease(&self, claim: &Claim, fence: Fence) -> Lease {
        let now = self.env.now;
        Lease {
            locks: claim.locks.clone(),
            owner: claim.owner.clone(),
            caller: claim.caller.clone(),
            note: claim.note.clone(),
            fence,
            acquired_at: now,
            expires_at: now + claim.ttl.as_duration(),
        }
    }

    /// Adds a lease to all its keys.
    pub(super) fn grant(&mut self, locks: &Locks, holder: Holder, waited_since: Option<Timestamp>) {
        self.transitions.push(Transition::Granted {
            lease: holder.lease.clone(),
            waited_since,
            confirm_by: holder.confirm_by,
        });
        for name in locks.names().skip(1) {
            self.key(name).add_lease(holder.clone());
        }
        self.key(locks.first()).add_lease(holder);
    }

    fn settled(&mut self, name: &LockName) -> Settled {
        let key = self.key(name);
        let waiters = key.queue().len();
        let first = key.next().map(|it| (it.claim.locks.clone(), it.position));
        let retry_at =
            first.map(|(locks, position)| self.obstacle(&locks, Some(position)).retry_at);
        Settled {
            waiters,
            retry_at: retry_at.unwrap_or(self.env.now),
        }
    }

    fn abandon(&mut self, name: &LockName, ticket: Ticket) -> Abandoned {
        if let Some(holder) = self.key(name).held_by_call(ticket) {
            let lease = holder.lease.clone();
            if holder.calls.len() == 1 {
                self.end(name, lease.fence, End::Abandoned);
                return Abandoned::Returned(lease);
            }
            self.change(&lease, |holder| holder.calls.retain(|call| *call != ticket));
            return Abandoned::Nothing;
        }
        let Some(waiting) = self.key(name).awaited_by_call(ticket) else {
            return Abandoned::Nothing;
        };
        let (locks, position) = (waiting.claim.locks.clone(), waiting.position);
        let obstacle = self.obstacle(&locks, Some(position));
        self.retain_calls(name, position, |call| call.ticket != ticket);
        Abandoned::LeftQueue(obstacle)
    }

    fn find_lease(&mut self, lease_ref: &LeaseRef) -> Result<&Lease, NotHeld> {
        let now = self.env.now;
        self.key(&lease_ref.name)
            .held_by(&lease_ref.owner, lease_ref.fence, now)
    }

    fn extend(&mut self, lease: Lease, ttl: Ttl) -> Lease {
        let expires_at = self.env.now + ttl.as_duration();
        let holder = self.key(lease.name()).holder(lease.fence);
        let before = holder.map_or(lease.expires_at, Holder::due);
        self.change(&lease, |holder| {
            holder.lease.expires_at = expires_at;
            // An owner that extends a lease has received it.
            holder.confirm_by = None;
        });
        let lease = Lease {
            expires_at,
            ..lease
        };
        self.transitions.push(Transition::Extended {
            lease: lease.clone(),
            before,
        });
        lease
    }

    fn force_release(&mut self, name: &LockName, fences: &[Fence]) -> Result<Vec<Lease>, NotHeld> {
        let key = self.key(name);
        let is_selected =
            |holder: &&Holder| fences.is_empty() || fences.contains(&holder.lease.fence);
        let selected = key.holders().filter(is_selected);
        let selected: Vec<Fence> = selected.map(|holder| holder.lease.fence).collect();
        match selected.is_empty() {
            true if key.holder_count() > 0 => Err(NotHeld::OwnedByAnother),
            true => Err(NotHeld::NotFound),
            false => {
                let selected = selected.into_iter();
                let ended = selected.filter_map(|fence| self.end(name, fence, End::Forced));
                Ok(ended.collect())
            }
        }
    }

    fn withdraw(&mut self, name: &LockName, owner: &Owner, attempt: &Attempt) -> Withdrawn {
        let now = self.env.now;
        let key = self.key(name);
        if !key.can_withdraw(now) && !key.is_withdrawn(owner, attempt, now) {
            return Withdrawn::TooMany;
        }
        let held = key.held_by_attempt(owner, attempt);
        let held = held.map(|holder| holder.lease.clone());
        let awaited = key.awaited_by_attempt(owner, attempt);
        let awaited = awaited.map(|waiting| waiting.position);
        let was = match (held, awaited) {
            (Some(lease), _) => {
                self.end(name, lease.fence, End::Released);
                Withdrawn::Held(lease)
            }
            (None, Some(position)) if !self.prune(name, position) => {
                let waiting = self.key(name).waiting(position);
                let calls = waiting.map(|waiting| waiting.calls.clone());
                self.retain_calls(name, position, |_| false);
                for call in calls.into_iter().flatten() {
                    let wake = Wake::Withdrawn;
                    self.transitions.push(Transition::Woken { call, wake });
                }
                Withdrawn::Waiting
            }
            _ => Withdrawn::Unknown,
        };
        let withdrawal = Withdrawal {
            owner: owner.clone(),
            attempt: attempt.clone(),
            until: now + WITHDRAWAL_TTL,
        };
        self.key(name).remember_withdrawal(withdrawal, now);
        was
    }

    fn confirm(&mut self, name: &LockName, fence: Fence) -> Result<Lease, NotHeld> {
        let holder = self.key(name).holder(fence).ok_or(NotHeld::NotFound)?;
        let (lease, confirm_by) = (holder.lease.clone(), holder.confirm_by);
        self.change(&lease, |holder| holder.confirm_by = None);
        self.confirmed(&lease, confirm_by);
        Ok(lease)
    }

    pub(super) fn confirmed(&mut self, lease: &Lease, confirm_by: Option<Timestamp>) {
        if let Some(confirm_by) = confirm_by {
            self.transitions.push(Transition::Confirmed {
                lease: lease.clone(),
                confirm_by,
            });
        }
    }

    /// Changes a lease in each of its keys.
    pub(super) fn change(&mut self, lease: &Lease, change: impl Fn(&mut Holder)) {
        for name in lease.locks.names() {
            self.keys.key(name).change_holder(lease.fence, &change);
        }
    }

    /// Checks the invariants at these keys and at all others that were settled, in debug builds.
    fn check_all<'n>(&mut self, names: impl IntoIterator<Item = &'n LockName>) {
        if cfg!(debug_assertions) && !self.keys.is_discarded() {
            names.into_iter().for_each(|name| self.check(name));
            for name in std::mem::take(&mut self.touched) {
                self.check(&name);
            }
        }
    }

    /// The invariants at one key.
    fn check(&mut self, name: &LockName) {
        let key = self.key(name);
        key.check();
        // Only the first are checked, so that the cost of a step does not grow with the number of waiters.
        let queue: Vec<Waiting> = key.queue().iter().take(8).cloned().collect();
        let leases: Vec<Holder> = key.holders().take(8).cloned().collect();
        for holder in leases {
            for name in holder.lease.locks.names() {
                if !self.keys.is_loaded(name) {
                    continue;
                }
                let other = self.key(name).holder(holder.lease.fence);
                debug_assert_eq!(other, Some(&holder), "a lease differs between its keys");
            }
        }
        for waiting in &queue {
            for name in waiting.claim.locks.names() {
                if !self.keys.is_loaded(name) {
                    continue;
                }
                let other = self.key(name).waiting(waiting.position);
                debug_assert_eq!(other, Some(waiting), "a claim is not in all its queues");
            }
        }
        if let Some(first) = queue.first() {
            let locks = first.claim.locks.clone();
            let are_loaded = locks.names().all(|name| self.keys.is_loaded(name));
            debug_assert!(
                !are_loaded || !self.is_grantable(&locks, Some(first.position)),
                "a claim that could be granted waits: {first:?}"
            );
        }
    }
}
