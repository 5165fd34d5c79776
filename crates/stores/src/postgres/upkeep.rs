//! The background work of a node: it shows that it lives, notices when others die, and compares the calls that wait here with the rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forrst_lock::model::Key;
use forrst_lock::{LockName, NodeId, StoreError, Ticket, Timestamp};
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryMessage;

use super::link::{Link, Message};
use super::reader::Heartbeat;
use super::transaction::{NODE_SILENCE, NODE_TTL, NOW};

/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After how long a poll settles a key whose lease has ended, in case nothing else does.
const OVERDUE: Duration = Duration::from_secs(2);
/// Between two polls of the keys that calls wait for, while notifications arrive, and while they do not.
const SLOW_POLL: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(200);
/// How many keys are read at once.
const POLLED_AT_ONCE: usize = 500;
/// After how long without a heartbeat a node is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// Sends heartbeats until the store is dropped.
pub(super) async fn send_heartbeats(link: Arc<Link>) {
    let mut dead: HashSet<NodeId> = HashSet::new();
    loop {
        sleep(HEARTBEAT.mul_f64(0.9 + fastrand::f64() / 10.0)).await;
        let Ok(heartbeat) = send_heartbeat(&link).await else {
            continue;
        };
        let was_silent = heartbeat
            .before
            .is_none_or(|before| before + NODE_TTL / 2 < heartbeat.now);
        if was_silent {
            // The other nodes may have passed over the calls of this one.
            link.poll.notify_one();
        }
        let now_dead: HashSet<NodeId> = heartbeat.dead.into_iter().collect();
        if !now_dead.is_subset(&dead) {
            // They may be first in a queue in which calls of this node wait.
            link.send(Message::Settle(link.waiting.names()));
        }
        dead = now_dead;
    }
}

/// It need not survive a crash, so it does not wait for the disk.
pub(super) async fn send_heartbeat(link: &Link) -> Result<Heartbeat, StoreError> {
    let millis = |duration: Duration| duration.as_millis().to_string();
    let statement = link
        .schema
        .sql(
            "BEGIN; SET LOCAL synchronous_commit = off;
             SET LOCAL statement_timeout = {timeout};
             SELECT n.id, n.seen, t.now FROM (SELECT {now} AS now) AS t
             LEFT JOIN {schema}.nodes AS n ON true;
             UPDATE {schema}.store SET grace_until = {now} + {ttl}
             WHERE (SELECT max(seen) FROM {schema}.nodes) < {now} - {silence};
             DELETE FROM {schema}.nodes WHERE seen < {now} - {forgotten};
             INSERT INTO {schema}.nodes (id, seen) VALUES ('{id}', {now})
             ON CONFLICT (id) DO UPDATE SET seen = excluded.seen;
             COMMIT",
        )
        .replace("{now}", NOW)
        .replace("{timeout}", &millis(link.timeout))
        .replace("{ttl}", &millis(NODE_TTL))
        .replace("{silence}", &millis(NODE_SILENCE))
        .replace("{forgotten}", &millis(FORGOTTEN_AFTER))
        .replace("{id}", link.runner.node.as_str());
    let statement = statement.as_str();
    let answers = link
        .reader
        .with(|it| async move {
            let answers = it.client.simple_query(statement).await;
            if answers.is_err() {
                let _ = it.client.batch_execute("ROLLBACK").await;
            }
            answers
        })
        .await?;
    let rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => {
            let number = |index| row.get(index)?.parse().ok();
            Some((
                row.get(0).unwrap_or_default().to_owned(),
                number(1).unwrap_or(0),
                number(2)?,
            ))
        }
        _ => None,
    });
    let rows: Vec<(String, i64, i64)> = rows.collect();
    Ok(Heartbeat::read(&rows, &link.runner.node))
}

/// Polls until the store is dropped.
pub(super) async fn poll(link: Arc<Link>) {
    loop {
        let pause = match link.is_listening.load(Ordering::Relaxed) {
            true => SLOW_POLL,
            false => POLL,
        };
        let _ = timeout(
            pause.mul_f64(0.8 + 0.2 * fastrand::f64()),
            link.poll.notified(),
        )
        .await;
        if poll_once(&link).await.is_err() {
            sleep(POLL).await;
            link.poll.notify_one();
        }
    }
}

/// Finds the calls of this node that are not in their queues any more, and the keys that have to be settled.
async fn poll_once(link: &Link) -> Result<(), StoreError> {
    let waiting = link.waiting.by_name();
    let names: Vec<LockName> = waiting.keys().cloned().collect();
    for names in names.chunks(POLLED_AT_ONCE) {
        let reads = link.reader.read(names).await?;
        let keys = reads.keys.iter().map(|key| (key.name(), key));
        let keys: HashMap<&LockName, &Key> = keys.collect();
        let (mut missing, mut due) = (Vec::new(), Vec::new());
        for name in names {
            let key = keys.get(name);
            let calls = waiting.get(name).into_iter().flatten();
            let is_missing = |ticket: Ticket| key.is_none_or(|key| !is_waiting(key, ticket));
            missing.extend(calls.copied().filter(|(_, ticket)| is_missing(*ticket)));
            if key.is_some_and(|key| is_due(key, reads.moment.now)) {
                due.push(name.clone());
            }
        }
        // In the order of arrival: the first that rejoins may get the lock.
        missing.sort_unstable();
        if !missing.is_empty() {
            let tickets = missing.into_iter().map(|(_, ticket)| ticket);
            link.send(Message::Recheck(tickets.collect()));
        }
        if !due.is_empty() {
            link.send(Message::Settle(due));
        }
    }
    Ok(())
}

fn is_waiting(key: &Key, ticket: Ticket) -> bool {
    let mut calls = key.queue().iter().flat_map(|waiting| &waiting.calls);
    calls.any(|call| call.ticket == ticket)
}

/// Whether a key should have been settled by now: the service does that as soon as a lease ends.
fn is_due(key: &Key, now: Timestamp) -> bool {
    key.holders().any(|holder| holder.due() + OVERDUE <= now)
}
