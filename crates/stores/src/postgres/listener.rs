//! Listens for the notifications of other nodes, on a connection of its own.
//!
//! A node also notifies itself: if that does not arrive, notifications do not work here, as behind a pooler that gives each transaction
//! another session. Then the node polls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forrst_lock::{Reading, StoreError};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_postgres::Notification;
use tokio_postgres::types::Type;

use super::connect::Connection;
use super::link::{Link, Message};
use super::message::{News, unpacked};

/// How often a node notifies itself.
const ECHO: Duration = Duration::from_secs(2);
/// After how long without a notification the connection counts as deaf.
const SILENCE: Duration = Duration::from_secs(6);
/// The pauses between attempts to listen grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs until the store is dropped.
pub(super) async fn run(link: Arc<Link>) {
    let mut pause = FIRST_PAUSE;
    let mut was_deaf = false;
    loop {
        let since = Instant::now();
        match listen(&link).await {
            Ok(has_heard) => {
                if !has_heard && !was_deaf {
                    tracing::warn!(
                        "Postgres does not deliver notifications, as behind a pooler in transaction mode: waiting calls are polled, \
                         which takes up to 200 ms longer. Use the address of the server itself"
                    );
                }
                was_deaf = !has_heard;
                if has_heard {
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) => tracing::debug!(%error, "cannot listen at Postgres"),
        }
        link.is_listening.store(false, Ordering::Relaxed);
        if since.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection breaks or is deaf. Returns whether a notification has arrived.
async fn listen(link: &Arc<Link>) -> Result<bool, StoreError> {
    let channel = link.schema.channel(link.runner.node.as_str());
    let (notify, mut notifications) = unbounded_channel();
    let connection = link.connector.connect(Some(notify)).await;
    let connection = connection.map_err(|error| StoreError::NotDone(Box::new(error)))?;
    let listen = format!("LISTEN {channel}");
    let listening = connection.client.batch_execute(&listen);
    listening
        .await
        .map_err(|error| StoreError::NotDone(Box::new(error)))?;
    // What came before was missed.
    link.poll.notify_one();
    Ok(hear(link, &connection, &channel, &mut notifications).await)
}

async fn hear(
    link: &Arc<Link>,
    connection: &Connection,
    channel: &str,
    notifications: &mut UnboundedReceiver<Notification>,
) -> bool {
    let mut echo = interval(ECHO);
    echo.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut has_heard, mut last) = (false, Instant::now());
    loop {
        tokio::select! {
            notification = notifications.recv() => {
                let Some(notification) = notification else { return has_heard };
                last = Instant::now();
                if !has_heard {
                    has_heard = true;
                    tracing::debug!("Postgres delivers notifications");
                }
                link.is_listening.store(true, Ordering::Relaxed);
                handle(link, notification.payload());
            }
            _ = echo.tick() => {
                if connection.client.is_closed() || last.elapsed() > SILENCE {
                    return has_heard;
                }
                let link = link.clone();
                let channel = channel.to_owned();
                tokio::spawn(async move {
                    let channel = &channel;
                    let notified = link.reader.with(|it| async move {
                        // It need not survive a crash, so it does not wait for the disk.
                        let statement = "SELECT pg_notify($1, '')
                            FROM set_config('synchronous_commit', 'off', true)";
                        it.client.query_typed(statement, &[(channel, Type::TEXT)]).await
                    });
                    // If it fails, the silence shows it.
                    let _ = notified.await;
                });
            }
        }
    }
}

fn handle(link: &Link, payload: &str) {
    // This node's own echo.
    if payload.is_empty() {
        return;
    }
    let news = match unpacked(payload) {
        Ok(news) => news,
        Err(error) => return tracing::warn!(%error, "cannot read a message of another node"),
    };
    let mut woken = Vec::new();
    for news in news {
        match news {
            News::Woken(ticket) => woken.push(ticket),
            News::Ended(name, fence) => link.nodes.ended_elsewhere(&name, fence),
            News::Changed(name, fence, expires_at) => {
                let reading: Option<Reading> = link.reading();
                if let Some(reading) = reading {
                    link.nodes
                        .changed_elsewhere(&name, fence, expires_at, reading);
                }
            }
        }
    }
    if !woken.is_empty() {
        link.send(Message::Recheck(woken));
    }
}
