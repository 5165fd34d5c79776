//! The answer to [`Command::Acquire`](super::Command::Acquire): a lease, a position in the queues, or a refusal that says what
//! blocks it.
//!
//! A call that repeats an attempt, or that rejoins its queues after they lost it, is answered with what it already has.

use std::time::Duration;

use smallvec::smallvec;

use super::executor::Executor;
use super::key::MAX_CALLS;
use super::{
    Acquire, Acquired, Call, Holder, Keys, Locks, Obstacle, Position, Share, Wait, Waiting,
};
use crate::{Attempt, LockName, Timestamp};

/// When to retry if no blocking lease is found.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// How many claims are followed, from the one that a key is reserved for, to find a lease that blocks it.
const MAX_FOLLOWED: usize = 32;

impl<K: Keys> Executor<'_, '_, K> {
    pub(super) fn acquire(&mut self, acquire: &Acquire) -> Acquired {
        if let Some(answer) = self.existing_outcome(acquire) {
            return answer;
        }
        let Acquire {
            claim,
            ticket,
            node,
            wait,
        } = acquire;
        let rejoin = wait.as_ref().and_then(|wait| wait.rejoin);
        let position = rejoin.map(|(position, _)| position);
        if self.is_grantable(&claim.locks, position) {
            let Some(fence) = (self.env.mint)(&claim.locks) else {
                return Acquired::FencesExhausted;
            };
            let lease = self.lease(claim, fence);
            let holder = Holder {
                lease: lease.clone(),
                attempt: claim.attempt.clone(),
                calls: smallvec![*ticket],
                confirm_by: None,
            };
            self.grant(&claim.locks, holder, None);
            return Acquired::Granted(lease);
        }
        let Some(Wait {
            timeout, max_queue, ..
        }) = wait
        else {
            return Acquired::Held(self.obstacle(&claim.locks, position));
        };
        if rejoin.is_none() && self.is_full(&claim.locks, *max_queue) {
            return Acquired::QueueFull(self.obstacle(&claim.locks, None));
        }
        let now = self.env.now;
        let (position, until) = rejoin.unwrap_or_else(|| {
            let arrival = self.arrival(&claim.locks);
            let ticket = *ticket;
            (Position { arrival, ticket }, now + *timeout)
        });
        let obstacle = self.obstacle(&claim.locks, Some(position));
        let call = Call {
            ticket: *ticket,
            node: node.clone(),
            until,
        };
        let since = Timestamp::from_millis(position.arrival / 1000).min(now);
        let waiting = Waiting::new(position, claim.clone(), call, since);
        for name in claim.locks.names() {
            self.key(name).enqueue(waiting.clone());
        }
        Acquired::Queued {
            obstacle,
            position,
            until,
        }
    }

    /// The answer to a call whose attempt was made before, or that rejoins its queues; `None` for a new one.
    fn existing_outcome(&mut self, acquire: &Acquire) -> Option<Acquired> {
        let Acquire {
            claim,
            ticket,
            wait,
            ..
        } = acquire;
        let now = self.env.now;
        let rejoin = wait.as_ref().and_then(|wait| wait.rejoin);
        let attempt = claim.attempt.as_ref();
        if attempt.is_none() && rejoin.is_none() {
            return None;
        }
        let mut names = claim.locks.names();
        let is_withdrawn = |attempt: &Attempt| {
            names.any(|name| self.key(name).is_withdrawn(&claim.owner, attempt, now))
        };
        if attempt.is_some_and(is_withdrawn) {
            return Some(Acquired::Withdrawn);
        }
        for name in claim.locks.names() {
            let key = self.key(name);
            let by_attempt = attempt.and_then(|it| key.held_by_attempt(&claim.owner, it));
            let by_call = || rejoin.and_then(|_| key.held_by_call(*ticket));
            if let Some(holder) = by_attempt.or_else(by_call) {
                let (lease, confirm_by) = (holder.lease.clone(), holder.confirm_by);
                if lease.locks != claim.locks {
                    return Some(Acquired::AttemptMismatch);
                }
                self.change(&lease, |holder| {
                    holder.add_call(*ticket);
                    holder.confirm_by = None;
                });
                self.confirmed(&lease, confirm_by);
                return Some(Acquired::Granted(lease));
            }
        }
        if rejoin.is_some_and(|(_, until)| until <= now) {
            return Some(Acquired::TimedOut);
        }
        for name in claim.locks.names() {
            let key = self.key(name);
            let by_attempt = attempt.and_then(|it| key.awaited_by_attempt(&claim.owner, it));
            let by_call = || rejoin.and_then(|_| key.awaited_by_call(*ticket));
            if let Some(waiting) = by_attempt.or_else(by_call) {
                let position = waiting.position;
                if waiting.claim.locks != claim.locks {
                    return Some(Acquired::AttemptMismatch);
                }
                if !self.prune(name, position) {
                    return Some(self.join(acquire, position));
                }
            }
        }
        // A call that rejoins may have waited for a lease that another call of its attempt has received and released since. A
        // call that does not rejoin is newer than that release.
        let attempt = attempt.filter(|_| rejoin.is_some())?;
        let mut names = claim.locks.names();
        let is_released = names.any(|name| self.key(name).is_released(&claim.owner, attempt, now));
        is_released.then_some(Acquired::Withdrawn)
    }

    /// Adds a call to a waiting claim, or replaces it if it is there already.
    fn join(&mut self, acquire: &Acquire, position: Position) -> Acquired {
        let Acquire {
            claim,
            ticket,
            node,
            wait,
        } = acquire;
        let obstacle = self.obstacle(&claim.locks, Some(position));
        let Some(wait) = wait else {
            return Acquired::Held(obstacle);
        };
        let ticket = *ticket;
        let first = self.key(claim.locks.first()).waiting(position);
        let others = first.map_or(0, |waiting| {
            let others = waiting.calls.iter().filter(|call| call.ticket != ticket);
            others.count()
        });
        if others >= MAX_CALLS {
            return Acquired::QueueFull(obstacle);
        }
        let by_timeout = self.env.now + wait.timeout;
        let until = wait.rejoin.map_or(by_timeout, |(_, until)| until);
        let call = Call {
            ticket,
            node: node.clone(),
            until,
        };
        for name in claim.locks.names() {
            if let Some(waiting) = self.key(name).waiting_mut(position) {
                waiting.calls.retain(|known| known.ticket != ticket);
                waiting.calls.push(call.clone());
            }
        }
        Acquired::Queued {
            obstacle,
            position,
            until,
        }
    }

    /// Whether neither an earlier claim nor a lease at this key blocks a claim. A claim without a position is behind all others.
    pub(super) fn is_unblocked(
        &mut self,
        name: &LockName,
        share: Share,
        position: Option<Position>,
    ) -> bool {
        let key = self.keys.key(name);
        !key.has_before(position) && key.has_room_for(share)
    }

    /// Whether a claim on these keys can be granted now.
    pub(super) fn is_grantable(&mut self, locks: &Locks, position: Option<Position>) -> bool {
        let mut locks = locks.as_slice().iter();
        locks.all(|(name, share)| self.is_unblocked(name, *share, position))
    }

    /// Whether any of these queues has `max` claims, after those without a live call were removed.
    fn is_full(&mut self, locks: &Locks, max: usize) -> bool {
        locks.names().any(|name| {
            if self.key(name).queue().len() < max {
                return false;
            }
            let (env, queue) = (&*self.env, self.keys.key(name).queue());
            let has_gone_calls =
                |waiting: &&Waiting| waiting.calls.iter().any(|call| !env.stays(call));
            let stale: Vec<Position> = queue
                .iter()
                .filter(has_gone_calls)
                .map(|it| it.position)
                .collect();
            for position in stale {
                self.prune(name, position);
            }
            self.key(name).queue().len() >= max
        })
    }

    /// An arrival that is behind all others in these queues.
    fn arrival(&mut self, locks: &Locks) -> u64 {
        let by_time = self.env.now.as_millis().saturating_mul(1000);
        let last = locks
            .names()
            .filter_map(|name| self.keys.key(name).last_arrival())
            .max();
        last.map_or(by_time, |last| by_time.max(last.saturating_add(1)))
    }

    /// The keys that block a claim, and when to retry.
    pub(super) fn obstacle(&mut self, locks: &Locks, position: Option<Position>) -> Obstacle {
        let blocked_by = self.blocked_by(locks, position);
        let ends = blocked_by.iter().map(|name| self.next_end(name));
        let retry_at = ends.min().unwrap_or(self.env.now);
        Obstacle {
            blocked_by,
            retry_at,
        }
    }

    fn blocked_by(&mut self, locks: &Locks, position: Option<Position>) -> Vec<LockName> {
        let locks = locks.as_slice().iter();
        let blocked = locks.filter(|(name, share)| !self.is_unblocked(name, *share, position));
        blocked.map(|(name, _)| name.clone()).collect()
    }

    /// When the first of the leases that block this key is due. If the key is only reserved, these are leases on other keys,
    /// found by following claims.
    fn next_end(&mut self, name: &LockName) -> Timestamp {
        let mut name = name.clone();
        for _ in 0..MAX_FOLLOWED {
            let key = self.key(&name);
            if let Some((due, _)) = key.first_due() {
                return due;
            }
            let Some(first) = key.next() else {
                break;
            };
            let (locks, position) = (first.claim.locks.clone(), first.position);
            // Each claim that is followed is older than the previous one, so this ends.
            let blocked_by = self.blocked_by(&locks, Some(position));
            let dues = blocked_by
                .iter()
                .filter_map(|name| self.key(name).first_due());
            if let Some((due, _)) = dues.min() {
                return due;
            }
            match blocked_by.into_iter().next() {
                Some(next) => name = next,
                None => break,
            }
        }
        self.env.now + DEFAULT_RETRY
    }
}
