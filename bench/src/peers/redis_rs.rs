//! Bare scripts through redis-rs.

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

/// The same with a fence.
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

/// One lock for all: a caller that does not get it waits for a signal with BLPOP, on a connection of its own, and tries again.
pub(crate) async fn hand_overs(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let connections = connections(url, callers).await?;
    let release = Arc::new(Script::new(RELEASE_AND_SIGNAL));
    repeat(callers, duration, watched, move |caller, serial| {
        let (mut connection, release) = (connections[caller].clone(), release.clone());
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
    })
    .await
}

/// One token for all: BLPOP takes it, and LPUSH hands it to the caller that has waited longest. Without a lease and a fence, it is
/// the least that a hand-over in Redis needs.
pub(crate) async fn token_passes(
    url: &str,
    callers: usize,
    duration: Duration,
    watched: Watched<u32>,
) -> Result<Measured, String> {
    let connections = connections(url, callers).await?;
    let mut first = connections[0].clone();
    let reset = redis::pipe().del("token").lpush("token", 1).to_owned();
    let _: (i64, i64) = reset.query_async(&mut first).await.map_err(failed)?;
    repeat(callers, duration, watched, move |caller, _| {
        let mut connection = connections[caller].clone();
        async move {
            let mut pop = redis::cmd("BLPOP");
            let pop = pop.arg("token").arg(0);
            let (key, token): (String, String) =
                pop.query_async(&mut connection).await.map_err(failed)?;
            let mut push = redis::cmd("LPUSH");
            let push = push.arg(key).arg(token);
            push.query_async(&mut connection).await.map_err(failed)
        }
    })
    .await
}

async fn connections(url: &str, count: usize) -> Result<Vec<MultiplexedConnection>, String> {
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(connect(url).await?);
    }
    Ok(connections)
}

async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let client = Client::open(url).map_err(failed)?;
    // A caller that waits is not one whose server is gone.
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

fn expect(is_so: bool, key: &str) -> Result<(), String> {
    is_so
        .then_some(())
        .ok_or_else(|| format!("another caller has {key}"))
}
