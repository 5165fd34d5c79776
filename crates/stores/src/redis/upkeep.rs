//! The background work of each lane: a heartbeat once a second, and rechecks of the waiting calls when something may have been missed.
//!
//! Keys are not polled. Messages to a node are counted, so the answer to a heartbeat tells whether one was lost; a server that was
//! replaced has another name; and a node that did not reach the server for a while knows that itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forrst_lock::model::Wake;
use forrst_lock::{LockName, StoreError, Ticket};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::lane::{Lane, Recheck};
use super::library::NODE_TTL;
use super::link::Link;
use super::order::Order;
use super::queue::Answered;
use super::reply::Done;

/// Between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// How long a message may take.
const MESSAGE_DELAY: Duration = Duration::from_millis(200);
/// Spreads the rechecks of nodes that notice the same event.
const JITTER: Duration = Duration::from_millis(100);
/// Between attempts to recheck while Redis cannot be reached, growing.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How many waiting calls are rechecked at once.
const AT_ONCE: usize = 64;

/// Runs until the store is dropped.
pub(super) async fn run(link: Arc<Link>, number: usize) {
    let lane = &link.lanes[number];
    // A recheck of many calls must not delay the heartbeat.
    tokio::join!(beat(&link, lane), recheck_calls(&link, lane));
}

async fn beat(link: &Arc<Link>, lane: &Lane) {
    let mut beats = Beats::default();
    // Spreads the heartbeats of the lanes of a cluster.
    let mut pause = BEAT.mul_f64(fastrand::f64());
    loop {
        sleep(pause).await;
        beats.beat(link, lane).await;
        pause = BEAT.mul_f64(0.9 + fastrand::f64() / 10.0);
    }
}

async fn recheck_calls(link: &Arc<Link>, lane: &Lane) {
    let mut pause = FIRST_PAUSE;
    loop {
        let recheck = lane.next_recheck().await;
        sleep(JITTER.mul_f64(fastrand::f64())).await;
        if recheck_all(link, lane, recheck).await.is_ok() {
            pause = FIRST_PAUSE;
            continue;
        }
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        lane.request_recheck_with(recheck);
    }
}

/// What a lane remembers of its last heartbeats.
#[derive(Default)]
struct Beats {
    last: Option<Instant>,
    gone: HashSet<String>,
}

impl Beats {
    async fn beat(&mut self, link: &Arc<Link>, lane: &Lane) {
        let received = lane.last_message.load(Ordering::Relaxed);
        let Ok(Answered { done, .. }) = link.order(lane, Order::Beat).await else {
            return;
        };
        let Done::Beat {
            messages,
            was_alive,
            gone,
        } = done
        else {
            return;
        };
        let now = Instant::now();
        // The server also tells whether this node counted as alive, but its clock may have stood still meanwhile.
        let was_silent = self.last.is_some_and(|last| now - last > NODE_TTL / 2);
        self.last = Some(now);
        if !was_alive {
            lane.was_considered_dead();
        }
        if was_silent || has_lost_messages(lane, received, messages).await {
            lane.request_recheck();
        }
        let gone: HashSet<String> = gone.into_iter().collect();
        if !gone.is_subset(&self.gone) {
            lane.request_recheck_with(Recheck {
                settles: true,
                ..Recheck::default()
            });
        }
        self.gone = gone;
    }
}

/// Whether some of the messages that this node was sent have not come. `received` is how many it had before that was queried.
async fn has_lost_messages(lane: &Lane, received: u64, sent: u64) -> bool {
    // It is another server, or one that has lost some of its data.
    if sent < received {
        lane.last_message.store(sent, Ordering::Relaxed);
        return true;
    }
    let have_all_come = || lane.last_message.load(Ordering::Relaxed) >= sent;
    if !have_all_come() {
        sleep(MESSAGE_DELAY).await;
    }
    if have_all_come() {
        return false;
    }
    lane.last_message.fetch_max(sent, Ordering::Relaxed);
    true
}

/// Queries Redis about all calls that wait in this lane, in batches.
async fn recheck_all(link: &Arc<Link>, lane: &Lane, recheck: Recheck) -> Result<(), StoreError> {
    let names = link
        .waiters
        .names(|name| link.keyspace.lane_of(name) == lane.number);
    let mut waiting = Vec::new();
    for name in names {
        let tickets = link.waiters.of(&name);
        for some in tickets.chunks(AT_ONCE) {
            waiting.push((name.clone(), some.to_vec()));
        }
    }
    let mut missing = Vec::new();
    if recheck.rejoins {
        let all = waiting.drain(..);
        missing.extend(all.flat_map(|(name, tickets)| {
            let of_name = move |ticket| (name.clone(), ticket);
            tickets.into_iter().map(of_name)
        }));
    }
    for some in waiting.chunks(AT_ONCE) {
        let checks = some
            .iter()
            .map(|(name, tickets)| check_waiters(link, lane, name, tickets, recheck.settles));
        for found in join_all(checks).await {
            missing.extend(found?);
        }
    }
    // In the order of arrival: the first that rejoins may get the lock.
    for some in missing.chunks(AT_ONCE) {
        let rejoined = some.iter().map(|(name, ticket)| link.rejoin(name, *ticket));
        join_all(rejoined)
            .await
            .into_iter()
            .collect::<Result<(), _>>()?;
    }
    Ok(())
}

/// Wakes the calls that have a lease by now, and returns those that are not in the queue.
async fn check_waiters(
    link: &Arc<Link>,
    lane: &Lane,
    name: &LockName,
    tickets: &[Ticket],
    settles: bool,
) -> Result<Vec<(LockName, Ticket)>, StoreError> {
    let since = Instant::now();
    let order = Order::CheckWaiters {
        name: name.clone(),
        tickets: tickets.to_vec(),
        settles,
    };
    let answered = link.order(lane, order).await?;
    let Done::Checked { granted, missing } = &answered.done else {
        return Ok(Vec::new());
    };
    for (ticket, lease) in granted {
        link.until_replicated(lease, &answered, since).await?;
        let wake = Wake::Granted(lease.clone());
        link.deliver(lane, *ticket, &wake, answered.reading);
    }
    let missing = missing.iter().map(|ticket| (name.clone(), *ticket));
    Ok(missing.collect())
}
