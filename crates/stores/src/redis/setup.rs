//! Checks whether the settings of a Redis keep locks safe: at the start, and with every new connection, which may lead to a server with
//! other settings.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fred::error::Error as FredError;
use fred::types::Value;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, Connections, not_connected};
use super::link::Link;

/// How soon to check again while there is a problem: it may be fixed at any time.
const RECHECK_PAUSE: Duration = Duration::from_secs(3);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The settings of a server that matter for locks.
#[derive(Debug, Default)]
struct ServerSettings {
    version: String,
    eviction: String,
    has_aof: bool,
    has_snapshots: bool,
    replicas: u32,
}

pub(super) fn warn(problems: &[String]) {
    for problem in problems {
        tracing::warn!("UNSAFE: {problem}");
    }
}

/// Checks with every new connection, and repeatedly while there are problems. If `strict`, grants are refused as long as there are.
///
/// Runs until the store is dropped.
pub(super) async fn watch(link: Arc<Link>, wait_for: u32, strict: bool, mut known: Vec<String>) {
    let mut changes = link.connections.changes();
    loop {
        let is_new = match known.is_empty() {
            true => changes.changed().await.is_ok(),
            false => timeout(RECHECK_PAUSE, changes.changed()).await.is_ok(),
        };
        let found = read_problems(&link.connections, wait_for).await;
        if is_new || found != known {
            warn(&found);
        }
        if found.is_empty() && !known.is_empty() {
            tracing::info!("the settings of Redis are safe for locks");
        }
        if let Ok(mut refusal) = link.refusal.write() {
            *refusal = (strict && !found.is_empty()).then(|| found.join("; "));
        }
        known = found;
    }
}

async fn read_problems(connections: &Connections, wait_for: u32) -> Vec<String> {
    loop {
        match problems(connections, wait_for).await {
            Ok(found) => return found,
            Err(_) => sleep(RETRY_PAUSE).await,
        }
    }
}

/// The problems of all servers that are connected, each as one sentence.
pub(super) async fn problems(
    connections: &Connections,
    wait_for: u32,
) -> Result<Vec<String>, FredError> {
    let mut problems = Vec::new();
    for (connection, settings) in read_all_settings(connections).await? {
        let server = connection.server();
        let suffix = server.map_or_else(String::new, |server| format!(" ({server})"));
        let found = settings.problems(wait_for);
        problems.extend(
            found
                .into_iter()
                .map(|problem| format!("{problem}{suffix}")),
        );
    }
    Ok(problems)
}

/// The version of a server that is too old, if there is one: functions came with Redis 7.
pub(super) async fn too_old(connections: &Connections) -> Result<Option<String>, FredError> {
    let all = read_all_settings(connections).await?;
    let versions = all.into_iter().map(|(_, settings)| settings.version);
    let major = |version: &str| version.split('.').next()?.parse().ok();
    Ok(versions
        .into_iter()
        .find(|version| major(version).unwrap_or(0) < 7))
}

/// The settings of each primary that is connected. One whose connection breaks meanwhile is checked when it is connected again.
async fn read_all_settings(
    connections: &Connections,
) -> Result<Vec<(Arc<Connection>, ServerSettings)>, FredError> {
    let all = connections.all();
    let settings = join_all(all.iter().map(|connection| read_settings(connection))).await;
    let (mut found, mut failed) = (Vec::new(), not_connected());
    for (connection, settings) in all.into_iter().zip(settings) {
        match settings {
            Ok(settings) => found.push((connection, settings)),
            Err(error) if connection.is_open() => return Err(error),
            Err(error) => failed = error,
        }
    }
    match found.is_empty() {
        true => Err(failed),
        false => Ok(found),
    }
}

async fn read_settings(connection: &Connection) -> Result<ServerSettings, FredError> {
    let mut info = HashMap::new();
    for section in ["server", "memory", "persistence", "replication"] {
        let text = connection.command("INFO", vec![section.into()]).await?;
        let text = text.into_string().unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        info.extend(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())));
    }
    let mut take = |name: &str| info.remove(name).unwrap_or_default();
    Ok(ServerSettings {
        version: take("redis_version"),
        eviction: take("maxmemory_policy"),
        has_aof: take("aof_enabled") == "1",
        replicas: take("connected_slaves").parse().unwrap_or(0),
        has_snapshots: has_snapshots(connection).await,
    })
}

/// Hosted servers often refuse `CONFIG`; they are assumed to have snapshots.
async fn has_snapshots(connection: &Connection) -> bool {
    let setting = connection.command("CONFIG", vec!["GET".into(), "save".into()]);
    match setting.await {
        Ok(Value::Array(parts)) => {
            let value = parts.into_iter().nth(1).and_then(Value::into_string);
            value.is_some_and(|value| !value.is_empty())
        }
        _ => true,
    }
}

impl ServerSettings {
    fn problems(&self, wait_for: u32) -> Vec<String> {
        let mut problems = Vec::new();
        if self.eviction != "noeviction" {
            problems.push(format!(
                "Redis may evict locks when its memory is full: its maxmemory-policy is {}, and should be noeviction",
                self.eviction
            ));
        }
        if !self.has_aof && !self.has_snapshots {
            problems.push(
                "Redis has no persistence: all locks are lost when it restarts. Set appendonly yes"
                    .to_owned(),
            );
        } else if !self.has_aof {
            problems.push(
                "Redis only saves snapshots: the locks of the last minutes are lost when it crashes. Set appendonly yes"
                    .to_owned(),
            );
        }
        if self.replicas > 0 && wait_for == 0 {
            problems.push(
                "Redis has replicas, and a fail-over can lose the latest locks. --redis-wait 1 makes every grant wait until a \
                 replica has it"
                    .to_owned(),
            );
        }
        if wait_for > self.replicas {
            problems.push(format!(
                "every grant waits for {wait_for} replicas, but Redis has {}: no lock can be granted",
                self.replicas
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ServerSettings {
        ServerSettings {
            version: "7.0.15".to_owned(),
            eviction: "noeviction".to_owned(),
            has_aof: true,
            has_snapshots: false,
            replicas: 0,
        }
    }

    fn check(settings: &ServerSettings, wait_for: u32, words: &[&str]) {
        let problems = settings.problems(wait_for);
        assert_eq!(problems.len(), words.len(), "{problems:?}");
        for (problem, word) in problems.iter().zip(words) {
            assert!(problem.contains(word), "{problem}");
        }
    }

    #[test]
    fn each_unsafe_setting_is_reported() {
        check(&good(), 0, &[]);
        let eviction = "volatile-lru".to_owned();
        check(&ServerSettings { eviction, ..good() }, 0, &["volatile-lru"]);
        let has_aof = false;
        check(
            &ServerSettings { has_aof, ..good() },
            0,
            &["no persistence"],
        );
        let has_snapshots = true;
        let settings = ServerSettings {
            has_aof,
            has_snapshots,
            ..good()
        };
        check(&settings, 0, &["snapshots"]);
        let replicas = 1;
        check(&ServerSettings { replicas, ..good() }, 0, &["--redis-wait"]);
        check(&ServerSettings { replicas, ..good() }, 1, &[]);
        check(&ServerSettings { replicas, ..good() }, 2, &["2 replicas"]);
    }
}
