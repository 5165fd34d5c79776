//! The subscription to the messages of other nodes: that a waiter of this node was granted a lease or has left its queue, or that a
//! lease of this node was changed or has ended.
//!
//! A node also publishes to its own channel: if that stops arriving, the subscription is replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fred::error::Error as FredError;
use fred::interfaces::{EventInterface, PubsubInterface};
use fred::types::config::Server;
use fred::types::{Message as PubSubMessage, Value};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::connect::{FIRST_PAUSE, LONGEST_PAUSE, RunningClient};
use super::connection::Connections;
use super::link::Link;
use super::message::{NodeMessage, Notification};
use super::unpack::Unpacker;

/// How often a node publishes a heartbeat to its own channel.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After how long without a message a subscription counts as dead.
const SILENCE: Duration = Duration::from_secs(3);

/// A connection to one server that is subscribed to a channel. In a cluster, each server delivers what is published at any of them.
pub(super) struct Subscription {
    running: RunningClient,
    server: Option<Server>,
    messages: Receiver<PubSubMessage>,
}

impl Subscription {
    /// Subscribes at a random server, if possible not at `last`.
    pub(super) async fn connect(
        connections: &Connections,
        channel: &str,
        last: Option<&Server>,
    ) -> Result<Self, FredError> {
        let server = connections.any_server(last);
        let builder = connections.builder_for(server.as_ref());
        let running = RunningClient::connect(&builder).await?;
        let messages = running.client.message_rx();
        running.client.subscribe(channel).await?;
        Ok(Self {
            running,
            server,
            messages,
        })
    }
}

/// Runs until the store is dropped.
pub(super) async fn run(link: Arc<Link>, mut subscription: Subscription) {
    loop {
        listen(&link, &mut subscription).await;
        let last = subscription.server.take();
        drop(subscription);
        subscription = connect_again(&link, last).await;
    }
}

async fn connect_again(link: &Link, last: Option<Server>) -> Subscription {
    let mut pause = FIRST_PAUSE;
    loop {
        sleep(pause).await;
        match Subscription::connect(&link.connections, &link.channel(), last.as_ref()).await {
            Ok(subscription) => return subscription,
            Err(error) => tracing::debug!(%error, "cannot subscribe at Redis"),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Handles messages until the subscription is dead.
async fn listen(link: &Arc<Link>, subscription: &mut Subscription) {
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_received = Instant::now();
    loop {
        tokio::select! {
            message = subscription.messages.recv() => match message {
                Ok(message) => {
                    last_received = Instant::now();
                    handle(link, &message);
                }
                // The next heartbeat of the group shows that messages were missed.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            _ = subscription.running.ended() => return,
            _ = heartbeat.tick() => {
                if last_received.elapsed() > SILENCE {
                    tracing::warn!("the subscription at Redis is silent: subscribing again");
                    return;
                }
                let link = link.clone();
                tokio::spawn(async move {
                    let arguments = vec![Value::from(link.channel()), Value::from("")];
                    // At a random server, because one that hangs delivers nothing.
                    let all = link.connections.all();
                    match fastrand::choice(&all) {
                        Some(connection) => connection.command("PUBLISH", arguments).await.map(drop),
                        None => Ok(()),
                    }
                });
            }
        }
    }
}

fn handle(link: &Arc<Link>, message: &PubSubMessage) {
    let packed = message.value.as_bytes().unwrap_or_default();
    // This node's own heartbeat.
    if packed.is_empty() {
        return;
    }
    let NodeMessage {
        number,
        group_key,
        notifications,
    } = match Unpacker::new(packed).message() {
        Ok(message) => message,
        Err(error) => return tracing::warn!(%error, "cannot read a message from another node"),
    };
    let Some(group) = link.groups.iter().find(|group| group.keys[0] == group_key) else {
        return tracing::warn!(
            group_key,
            "a message from another node is about an unknown partition group"
        );
    };
    let before = group.last_message.swap(number, Ordering::Relaxed);
    if number != before + 1 {
        group.request_recheck();
    }
    let reading = link.reading(group);
    for notification in notifications {
        match (notification, reading) {
            (Notification::Granted(name, ticket, fence), _) => link.confirm(name, ticket, fence),
            (Notification::Ended(name, fence), _) => link.nodes.ended_elsewhere(&name, fence),
            (Notification::Woken(ticket, wake), Some(reading)) => {
                link.deliver(group, ticket, &wake, reading);
            }
            (Notification::Changed(name, fence, expires_at), Some(reading)) => {
                link.nodes
                    .changed_elsewhere(&name, fence, expires_at, reading);
            }
            // Without a connection the server's clock is unknown, so the times in the message cannot be converted.
            (Notification::Woken(..) | Notification::Changed(..), None) => group.request_recheck(),
        }
    }
}
