//! The background work of each partition group: a heartbeat once a second, and rechecks of the waiting calls when something may have
//! been missed.
//!
//! Keys are not polled. Messages to a node are counted, so the answer to a heartbeat shows whether one was lost; a server that took over
//! has another instance id; and a node that did not reach the server for a while knows that itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forrst_lock::model::Wake;
use forrst_lock::{LockName, StoreError, Ticket};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::command::LibraryCommand;
use super::group::{PartitionGroup, Recheck};
use super::library::NODE_TTL;
use super::link::Link;
use super::queue::CommandAnswer;
use super::reply::CommandResult;

/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a message may take to arrive.
const MESSAGE_DELAY: Duration = Duration::from_millis(200);
/// Spreads the rechecks of nodes that notice the same event.
const JITTER: Duration = Duration::from_millis(100);
/// The pauses between attempts to recheck while Redis is unavailable grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How many tickets one command checks, and how many commands run concurrently.
const AT_ONCE: usize = 64;

/// Runs until the store is dropped.
pub(super) async fn run(link: Arc<Link>, number: usize) {
    let group = &link.groups[number];
    // A recheck of many calls must not delay the heartbeat.
    tokio::join!(send_heartbeats(&link, group), recheck_calls(&link, group));
}

async fn send_heartbeats(link: &Arc<Link>, group: &PartitionGroup) {
    let mut heartbeats = Heartbeats::default();
    // Spreads the heartbeats of the groups of a cluster.
    let mut pause = HEARTBEAT.mul_f64(fastrand::f64());
    loop {
        sleep(pause).await;
        heartbeats.send(link, group).await;
        pause = HEARTBEAT.mul_f64(0.9 + fastrand::f64() / 10.0);
    }
}

async fn recheck_calls(link: &Arc<Link>, group: &PartitionGroup) {
    let mut pause = FIRST_PAUSE;
    loop {
        let recheck = group.next_recheck().await;
        sleep(JITTER.mul_f64(fastrand::f64())).await;
        if recheck_all(link, group, recheck).await.is_ok() {
            pause = FIRST_PAUSE;
            continue;
        }
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        group.request_recheck_with(recheck);
    }
}

/// What a group remembers of its last heartbeats.
#[derive(Default)]
struct Heartbeats {
    last: Option<Instant>,
    dead: HashSet<String>,
}

impl Heartbeats {
    async fn send(&mut self, link: &Arc<Link>, group: &PartitionGroup) {
        let received = group.last_message.load(Ordering::Relaxed);
        let Ok(CommandAnswer { result, .. }) = link.submit(group, LibraryCommand::Heartbeat).await
        else {
            return;
        };
        let CommandResult::Heartbeat {
            messages,
            was_alive,
            dead,
        } = result
        else {
            return;
        };
        let now = Instant::now();
        // That the server counted this node as alive is not enough: its clock may have stood still meanwhile.
        let was_silent = self.last.is_some_and(|last| now - last > NODE_TTL / 2);
        self.last = Some(now);
        if !was_alive {
            group.node_became_alive();
        }
        if was_silent || has_lost_messages(group, received, messages).await {
            group.request_recheck();
        }
        let dead: HashSet<String> = dead.into_iter().collect();
        if !dead.is_subset(&self.dead) {
            group.request_recheck_with(Recheck {
                settles: true,
                ..Recheck::default()
            });
        }
        self.dead = dead;
    }
}

/// Whether some of the messages that were sent to this node have not arrived. `received` is how many it had before the heartbeat.
async fn has_lost_messages(group: &PartitionGroup, received: u64, sent: u64) -> bool {
    // Another server has taken over, or this one has lost some of its data.
    if sent < received {
        group.last_message.store(sent, Ordering::Relaxed);
        return true;
    }
    let have_all_come = || group.last_message.load(Ordering::Relaxed) >= sent;
    if !have_all_come() {
        sleep(MESSAGE_DELAY).await;
    }
    if have_all_come() {
        return false;
    }
    group.last_message.fetch_max(sent, Ordering::Relaxed);
    true
}

/// Queries Redis about all calls that wait in this group, in batches.
async fn recheck_all(
    link: &Arc<Link>,
    group: &PartitionGroup,
    recheck: Recheck,
) -> Result<(), StoreError> {
    let names = link
        .waiters
        .names(|name| link.keyspace.group_of(name) == group.number);
    let mut waiting = Vec::new();
    for name in names {
        let tickets = link.waiters.tickets_for(&name);
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
            .map(|(name, tickets)| check_waiters(link, group, name, tickets, recheck.settles));
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
    group: &PartitionGroup,
    name: &LockName,
    tickets: &[Ticket],
    settles: bool,
) -> Result<Vec<(LockName, Ticket)>, StoreError> {
    let since = Instant::now();
    let command = LibraryCommand::CheckWaiters {
        name: name.clone(),
        tickets: tickets.to_vec(),
        settles,
    };
    let answered = link.submit(group, command).await?;
    let CommandResult::Checked { granted, missing } = &answered.result else {
        return Ok(Vec::new());
    };
    for (ticket, lease) in granted {
        link.until_replicated(lease, &answered, since).await?;
        let wake = Wake::Granted(lease.clone());
        link.deliver(group, *ticket, &wake, answered.reading);
    }
    let missing = missing.iter().map(|ticket| (name.clone(), *ticket));
    Ok(missing.collect())
}
