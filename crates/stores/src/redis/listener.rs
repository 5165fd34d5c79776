//! What other nodes tell this one: that one of its waiters has been handed a lock, or has left its queue.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{LockName, Wake};
use fred::error::Error as FredError;
use fred::interfaces::{EventInterface, PubsubInterface};
use fred::types::{Builder, Message, Value};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::connect::{RunningClient, remember_servers};
use super::link::Link;
use super::reply::Parts;

/// How often a node calls itself, to learn that its subscription is dead: nobody else would notice.
const BEAT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// A connection that hears a channel.
pub(super) struct Subscription {
    running: RunningClient,
    messages: Receiver<Message>,
}

impl Subscription {
    pub(super) async fn of(running: RunningClient, channel: &str) -> Result<Self, FredError> {
        let messages = running.client.message_rx();
        running.client.subscribe(channel).await?;
        Ok(Self { running, messages })
    }
}

/// Works until the store is gone.
pub(super) async fn run(link: Arc<Link>, mut builder: Builder, mut subscription: Subscription) {
    loop {
        listen(&link, &mut subscription).await;
        remember_servers(&mut builder, &subscription.running.client);
        drop(subscription);
        subscription = loop {
            let running = RunningClient::connect_again(&builder).await;
            if let Ok(subscription) = Subscription::of(running, &link.channel()).await {
                break subscription;
            }
        };
    }
}

/// Passes on what is heard, until nothing is heard any more.
async fn listen(link: &Arc<Link>, subscription: &mut Subscription) {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_heard = Instant::now();
    loop {
        tokio::select! {
            message = subscription.messages.recv() => match message {
                Ok(message) => {
                    last_heard = Instant::now();
                    pass_on(link, &message);
                }
                // What was missed is found by the next look at each key.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            _ = subscription.running.ended() => return,
            _ = beat.tick() => {
                if last_heard.elapsed() > SILENCE {
                    tracing::warn!("nothing is heard from Redis' channel: connecting it anew");
                    return;
                }
                let link = link.clone();
                tokio::spawn(async move {
                    let arguments = vec![Value::from(link.channel()), Value::from("")];
                    link.connection.command("PUBLISH", 0, arguments).await
                });
            }
        }
    }
}

fn pass_on(link: &Arc<Link>, message: &Message) {
    let Some(text) = message.value.as_bytes_str().filter(|text| !text.is_empty()) else {
        return;
    };
    let Ok(parts) = serde_json::from_str::<Vec<String>>(&text) else {
        return tracing::warn!("a message that makes no sense came through Redis' channel");
    };
    let mut parts = Parts::of(Value::Array(parts.into_iter().map(Value::from).collect()));
    let Some(name) = parts
        .text("name")
        .ok()
        .and_then(|name| LockName::parse(&name).ok())
    else {
        return;
    };
    match parts.news(&name) {
        Ok((ticket, Wake::Granted(lease))) => link.confirm(name, ticket, lease.fence),
        Ok((ticket, wake)) => link.tell(&name, ticket, &wake),
        Err(error) => tracing::warn!(%error, "a message came through Redis' channel"),
    }
}
