//! What a call for a lease gets.

use std::time::Duration;

use smallvec::smallvec;

use super::key::MAX_CALLS;
use super::turn::Turn;
use super::{
    Acquire, Acquired, Call, Holder, Keys, Locks, Obstacle, Position, Share, Wait, Waiting,
};
use crate::{Attempt, LockName, Timestamp};

/// When to look again if no lease is found that is in the way.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How many claims are followed, from the one that a key is reserved for to a lease that it waits for.
const MAX_FOLLOWED: usize = 32;

impl<K: Keys> Turn<'_, '_, K> {
    pub(super) fn acquire(&mut self, acquire: &Acquire) -> Acquired {
        if let Some(answer) = self.known(acquire) {
            return answer;
        }
        let Acquire {
            claim,
            ticket,
            node,
            wait,
        } = acquire;
        let again = wait.as_ref().and_then(|wait| wait.again);
        let position = again.map(|(position, _)| position);
        if self.is_free(&claim.locks, position) {
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
            self.hold(&claim.locks, holder, None);
            return Acquired::Granted(lease);
        }
        let Some(Wait {
            timeout, max_queue, ..
        }) = wait
        else {
            return Acquired::Held(self.obstacle(&claim.locks, position));
        };
        if again.is_none() && self.is_full(&claim.locks, *max_queue) {
            return Acquired::QueueFull(self.obstacle(&claim.locks, None));
        }
        let now = self.env.now;
        let (position, until) = again.unwrap_or_else(|| {
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

    /// What a call gets that the keys know already: its attempt was made before, or it asks again for its position. None when it
    /// is new.
    fn known(&mut self, acquire: &Acquire) -> Option<Acquired> {
        let Acquire {
            claim,
            ticket,
            wait,
            ..
        } = acquire;
        let now = self.env.now;
        let again = wait.as_ref().and_then(|wait| wait.again);
        let attempt = claim.attempt.as_ref();
        if attempt.is_none() && again.is_none() {
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
            let by_call = || again.and_then(|_| key.held_by_call(*ticket));
            if let Some(holder) = by_attempt.or_else(by_call) {
                let (lease, confirm_by) = (holder.lease.clone(), holder.confirm_by);
                if lease.locks != claim.locks {
                    return Some(Acquired::AnotherAttempt);
                }
                self.change(&lease, |holder| {
                    holder.add_call(*ticket);
                    holder.confirm_by = None;
                });
                self.confirmed(&lease, confirm_by);
                return Some(Acquired::Granted(lease));
            }
        }
        if again.is_some_and(|(_, until)| until <= now) {
            return Some(Acquired::TimedOut);
        }
        for name in claim.locks.names() {
            let key = self.key(name);
            let by_attempt = attempt.and_then(|it| key.awaited_by_attempt(&claim.owner, it));
            let by_call = || again.and_then(|_| key.awaited_by_call(*ticket));
            if let Some(waiting) = by_attempt.or_else(by_call) {
                let position = waiting.position;
                if waiting.claim.locks != claim.locks {
                    return Some(Acquired::AnotherAttempt);
                }
                if !self.prune(name, position) {
                    return Some(self.join(acquire, position));
                }
            }
        }
        // It waited for a lease that another call of its attempt has got and released meanwhile. A call that does not ask again
        // is newer than that.
        let attempt = attempt.filter(|_| again.is_some())?;
        let mut names = claim.locks.names();
        let is_released = names.any(|name| self.key(name).is_released(&claim.owner, attempt, now));
        is_released.then_some(Acquired::Withdrawn)
    }

    /// One more call waits at a position, or the same one once more.
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
        let until = wait.again.map_or(by_timeout, |(_, until)| until);
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

    /// Whether nothing at this key is in the way of a claim: neither an earlier one nor a lease. Without a position all that wait
    /// are earlier.
    pub(super) fn is_open(
        &mut self,
        name: &LockName,
        share: Share,
        position: Option<Position>,
    ) -> bool {
        let key = self.keys.key(name);
        !key.has_before(position) && key.has_room_for(share)
    }

    /// Whether a claim can have all these keys at once.
    pub(super) fn is_free(&mut self, locks: &Locks, position: Option<Position>) -> bool {
        let mut locks = locks.as_slice().iter();
        locks.all(|(name, share)| self.is_open(name, *share, position))
    }

    /// Whether any of these queues is so long, not counting those that nobody waits for any more.
    fn is_full(&mut self, locks: &Locks, max: usize) -> bool {
        locks.names().any(|name| {
            if self.key(name).queue().len() < max {
                return false;
            }
            let (env, queue) = (&*self.env, self.keys.key(name).queue());
            let has_gone = |waiting: &&Waiting| waiting.calls.iter().any(|call| !env.stays(call));
            let gone: Vec<Position> = queue
                .iter()
                .filter(has_gone)
                .map(|it| it.position)
                .collect();
            for position in gone {
                self.prune(name, position);
            }
            self.key(name).queue().len() >= max
        })
    }

    /// Behind all others in all these queues.
    fn arrival(&mut self, locks: &Locks) -> u64 {
        let by_time = self.env.now.as_millis().saturating_mul(1000);
        let last = locks
            .names()
            .filter_map(|name| self.keys.key(name).last_arrival())
            .max();
        last.map_or(by_time, |last| by_time.max(last.saturating_add(1)))
    }

    /// What is in the way of a claim.
    pub(super) fn obstacle(&mut self, locks: &Locks, position: Option<Position>) -> Obstacle {
        let blocked_by = self.blocked_by(locks, position);
        let ends = blocked_by.iter().map(|name| self.next_end(name));
        let look_at = ends.min().unwrap_or(self.env.now);
        Obstacle {
            blocked_by,
            look_at,
        }
    }

    fn blocked_by(&mut self, locks: &Locks, position: Option<Position>) -> Vec<LockName> {
        let locks = locks.as_slice().iter();
        let blocked = locks.filter(|(name, share)| !self.is_open(name, *share, position));
        blocked.map(|(name, _)| name.clone()).collect()
    }

    /// When the first of the leases ends that keep this key from others. If it is only reserved, those are elsewhere.
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
            // Each claim that is followed is older than the one before.
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
        self.env.now + LOOK_AGAIN
    }
}
