//! Bare commands and scripts through redis-rs: the least that a lock, or a hand-over, costs with Redis.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};

use super::{ACQUIRE, RELEASE, RELEASE_AND_SIGNAL, TTL, failed};
use crate::load::{Measured, Watched, repeat};

/// SET NX PX, then compare and delete.
pub(crate) async fn without_fence(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let connection = connect(url).await?;
    let release = Arc::new(Script::new(RELEASE));
    repeat(callers, duration, watched, move |_, serial| {
        let (mut connection, release) = (connection.clone(), release.clone());
        async move {
            let key = format!("bare:{serial}");
            let taken = try_set(&mut connection, &key, serial).await?;
            expect(taken, &key)?;
            let mut release = release.key(&key);
            let released: i64 = release
                .arg(serial)
                .invoke_async(&mut connection)
                .await
                .map_err(failed)?;
            expect(released == 1, &key)
        }
    })
    .await
}

/// SET NX PX and INCR in one script, then compare and delete.
pub(crate) async fn with_fence(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let connection = connect(url).await?;
    let scripts = Arc::new((Script::new(ACQUIRE), Script::new(RELEASE)));
    repeat(callers, duration, watched, move |_, serial| {
        let (mut connection, scripts) = (connection.clone(), scripts.clone());
        async move {
            let key = format!("fence:{serial}");
            let ttl = TTL.as_millis() as u64;
            let mut acquire = scripts.0.key(&key);
            let acquire = acquire.key("fences").arg(serial).arg(ttl);
            let fence: i64 = acquire
                .invoke_async(&mut connection)
                .await
                .map_err(failed)?;
            expect(fence > 0, &key)?;
            let mut release = scripts.1.key(&key);
            let released: i64 = release
                .arg(serial)
                .invoke_async(&mut connection)
                .await
                .map_err(failed)?;
            expect(released == 1, &key)
        }
    })
    .await
}

/// One lock for all callers: one that does not get it waits for a signal with BLPOP, and tries again.
pub(crate) async fn hand_overs(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let release = Arc::new(Script::new(RELEASE_AND_SIGNAL));
    repeat_on_connections(
        url,
        callers,
        duration,
        watched,
        move |mut connection, serial| {
            let release = release.clone();
            async move {
                while !try_set(&mut connection, "hot", serial).await? {
                    let mut pop = redis::cmd("BLPOP");
                    let pop = pop.arg("hot:signal").arg(1);
                    let _: Option<(String, String)> =
                        pop.query_async(&mut connection).await.map_err(failed)?;
                }
                let mut release = release.key("hot");
                let release = release.key("hot:signal").arg(serial);
                let released: i64 = release
                    .invoke_async(&mut connection)
                    .await
                    .map_err(failed)?;
                expect(released == 1, "hot")
            }
        },
    )
    .await
}

/// One token for all callers: BLPOP takes it, and LPUSH hands it to the caller that has waited longest. Without a lease and a
/// fence, this is the least that a hand-over in Redis needs.
pub(crate) async fn token_passes(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let reset = redis::pipe().del("token").lpush("token", 1).to_owned();
    let mut connection = connect(url).await?;
    let _: (i64, i64) = reset.query_async(&mut connection).await.map_err(failed)?;
    repeat_on_connections(
        url,
        callers,
        duration,
        watched,
        |mut connection, _| async move {
            let mut pop = redis::cmd("BLPOP");
            let pop = pop.arg("token").arg(0);
            let (key, token): (String, String) =
                pop.query_async(&mut connection).await.map_err(failed)?;
            let mut push = redis::cmd("LPUSH");
            let push = push.arg(key).arg(token);
            push.query_async(&mut connection).await.map_err(failed)
        },
    )
    .await
}

/// A closed loop of `operation(connection, serial)`. Each caller has its own connection, because BLPOP blocks it.
async fn repeat_on_connections<F, Fut>(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
    operation: F,
) -> Result<Measured, String>
where
    F: Fn(MultiplexedConnection, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), String>> + Send,
{
    let mut connections = Vec::new();
    for _ in 0..callers {
        connections.push(connect(url).await?);
    }
    repeat(callers, duration, watched, move |caller, serial| {
        operation(connections[caller].clone(), serial)
    })
    .await
}

async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let client = Client::open(url).map_err(failed)?;
    // BLPOP blocks for longer than the default timeout.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.map_err(failed)
}

async fn try_set(
    connection: &mut MultiplexedConnection,
    key: &str,
    owner: u64,
) -> Result<bool, String> {
    let mut set = redis::cmd("SET");
    let set = set
        .arg(key)
        .arg(owner)
        .arg("NX")
        .arg("PX")
        .arg(TTL.as_millis() as u64);
    let set: Option<String> = set.query_async(connection).await.map_err(failed)?;
    Ok(set.is_some())
}

fn expect(succeeded: bool, key: &str) -> Result<(), String> {
    succeeded
        .then_some(())
        .ok_or_else(|| format!("another caller has {key}"))
}
