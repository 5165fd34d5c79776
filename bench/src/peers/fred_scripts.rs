//! Bare scripts through fred, the client that our own store uses: the difference to our store is what the store adds.

use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::Config;
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use fred::util::sha1_hash;

use super::{ACQUIRE, RELEASE, TTL, failed};
use crate::load::{Measured, Pace, Watched, repeat_at};

/// Acquire with a fence, then release.
pub(crate) async fn with_fence(
    url: &str,
    pace: Pace,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let config = Config::from_url(url).map_err(failed)?;
    let client = Builder::from_config(config).build().map_err(failed)?;
    client.init().await.map_err(failed)?;
    for script in [ACQUIRE, RELEASE] {
        run(&client, "SCRIPT", vec!["LOAD".into(), script.into()]).await?;
    }
    let hashes = [sha1_hash(ACQUIRE), sha1_hash(RELEASE)];
    let measured = repeat_at(pace, callers, duration, watched, {
        let client = client.clone();
        move |_, serial| {
            let (client, [acquire, release]) = (client.clone(), hashes.clone());
            async move {
                let key = format!("fred:{serial}");
                let owner = serial.to_string();
                let ttl = TTL.as_millis().to_string();
                let fence = [&acquire, "2", &key, "fences", &owner, &ttl].map(Value::from);
                let fence = run(&client, "EVALSHA", fence.to_vec()).await?;
                let released = [&release, "1", &key, &owner].map(Value::from);
                let released = run(&client, "EVALSHA", released.to_vec()).await?;
                match (fence.as_i64(), released.as_i64()) {
                    (Some(1..), Some(1)) => Ok(()),
                    other => Err(format!("another caller has {key}: {other:?}")),
                }
            }
        }
    })
    .await;
    client.quit().await.map_err(failed)?;
    measured
}

async fn run(
    client: &Client,
    command: &'static str,
    arguments: Vec<Value>,
) -> Result<Value, String> {
    let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
    client.custom(command, arguments).await.map_err(failed)
}
