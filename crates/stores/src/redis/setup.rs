//! Whether a Redis is set up so that it keeps locks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fred::error::Error as FredError;
use fred::interfaces::ClusterInterface;
use fred::types::Value;
use fred::types::config::Server;
use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::link::Link;

/// How soon to look again while something is wrong: it may be put right at any time.
const NEXT_LOOK: Duration = Duration::from_secs(3);
const NEXT_TRY: Duration = Duration::from_millis(200);

/// One server, as far as it matters for locks.
#[derive(Debug, Default)]
struct Facts {
    version: String,
    eviction: String,
    has_log: bool,
    has_snapshots: bool,
    replicas: u32,
}

pub(super) fn warn(problems: &[String]) {
    for problem in problems {
        tracing::warn!("UNSAFE: {problem}");
    }
}

/// Looks at every new connection: another server may answer after a fail-over, or the same one with other settings. Where
/// something is wrong, looks until it is put right, and refuses grants meanwhile if it is told to.
///
/// Works until the store is gone.
pub(super) async fn watch(link: Arc<Link>, wait_for: u32, strict: bool, mut known: Vec<String>) {
    let mut made = link.connection.made();
    loop {
        let is_new = match known.is_empty() {
            true => made.changed().await.is_ok(),
            false => timeout(NEXT_LOOK, made.changed()).await.is_ok(),
        };
        let found = until_seen(&link.connection, wait_for).await;
        if is_new || found != known {
            warn(&found);
        }
        if found.is_empty() && !known.is_empty() {
            tracing::info!("Redis is set up so that it keeps locks");
        }
        if let Ok(mut refusal) = link.refusal.write() {
            *refusal = (strict && !found.is_empty()).then(|| found.join("; "));
        }
        known = found;
    }
}

async fn until_seen(connection: &Connection, wait_for: u32) -> Vec<String> {
    loop {
        match problems(connection, wait_for).await {
            Ok(found) => return found,
            Err(_) => sleep(NEXT_TRY).await,
        }
    }
}

/// Everything that is wrong with the servers that keep locks, each in one sentence.
pub(super) async fn problems(
    connection: &Connection,
    wait_for: u32,
) -> Result<Vec<String>, FredError> {
    let mut problems = Vec::new();
    for server in servers(connection) {
        let facts = facts(connection, server.as_ref()).await?;
        let place = server.map_or_else(String::new, |server| format!(" ({server})"));
        let found = facts.problems(wait_for);
        problems.extend(found.into_iter().map(|problem| format!("{problem}{place}")));
    }
    Ok(problems)
}

/// The version of a server that is too old.
pub(super) async fn too_old(connection: &Connection) -> Result<Option<String>, FredError> {
    for server in servers(connection) {
        let version = facts(connection, server.as_ref()).await?.version;
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let version_number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version_number < (6, 2) {
            return Ok(Some(version));
        }
    }
    Ok(None)
}

/// The primaries of a cluster; else the one server there is.
fn servers(connection: &Connection) -> Vec<Option<Server>> {
    let client = connection.client();
    match client.and_then(|client| client.cached_cluster_state()) {
        Some(cluster) => cluster
            .unique_primary_nodes()
            .into_iter()
            .map(Some)
            .collect(),
        None => vec![None],
    }
}

async fn facts(connection: &Connection, server: Option<&Server>) -> Result<Facts, FredError> {
    let mut info = HashMap::new();
    for section in ["server", "memory", "persistence", "replication"] {
        let text = connection.command_on(server, "INFO", &[section]).await?;
        let text = text.into_string().unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        info.extend(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())));
    }
    let mut take = |name: &str| info.remove(name).unwrap_or_default();
    Ok(Facts {
        version: take("redis_version"),
        eviction: take("maxmemory_policy"),
        has_log: take("aof_enabled") == "1",
        replicas: take("connected_slaves").parse().unwrap_or(0),
        has_snapshots: has_snapshots(connection, server).await,
    })
}

/// Hosted servers often do not tell; they are taken at their best.
async fn has_snapshots(connection: &Connection, server: Option<&Server>) -> bool {
    let setting = connection.command_on(server, "CONFIG", &["GET", "save"]);
    match setting.await {
        Ok(Value::Array(parts)) => {
            let value = parts.into_iter().nth(1).and_then(Value::into_string);
            value.is_some_and(|value| !value.is_empty())
        }
        _ => true,
    }
}

impl Facts {
    fn problems(&self, wait_for: u32) -> Vec<String> {
        let mut problems = Vec::new();
        if self.eviction != "noeviction" {
            problems.push(format!(
                "Redis may throw locks away when its memory is full: its maxmemory-policy is {}, and should be noeviction",
                self.eviction
            ));
        }
        if !self.has_log && !self.has_snapshots {
            problems.push(
                "Redis has no persistence: all locks are gone when it restarts. Set appendonly yes"
                    .to_owned(),
            );
        } else if !self.has_log {
            problems.push(
                "Redis only saves snapshots: the locks of the last minutes are gone when it crashes. Set appendonly yes"
                    .to_owned(),
            );
        }
        if self.replicas > 0 && wait_for == 0 {
            problems.push(
                "Redis has replicas, and a fail-over can forget the locks granted last. --redis-wait 1 makes every grant \
                 wait until a replica has it"
                    .to_owned(),
            );
        }
        if wait_for > self.replicas {
            problems.push(format!(
                "every grant waits for {wait_for} replicas, but Redis has {}: nothing can be locked",
                self.replicas
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            version: "7.0.15".to_owned(),
            eviction: "noeviction".to_owned(),
            has_log: true,
            has_snapshots: false,
            replicas: 0,
        }
    }

    fn check(facts: &Facts, wait_for: u32, words: &[&str]) {
        let problems = facts.problems(wait_for);
        assert_eq!(problems.len(), words.len(), "{problems:?}");
        for (problem, word) in problems.iter().zip(words) {
            assert!(problem.contains(word), "{problem}");
        }
    }

    #[test]
    fn each_danger_is_named() {
        check(&good(), 0, &[]);
        let eviction = "volatile-lru".to_owned();
        check(&Facts { eviction, ..good() }, 0, &["volatile-lru"]);
        let has_log = false;
        check(&Facts { has_log, ..good() }, 0, &["no persistence"]);
        let has_snapshots = true;
        let facts = Facts {
            has_log,
            has_snapshots,
            ..good()
        };
        check(&facts, 0, &["snapshots"]);
        let replicas = 1;
        check(&Facts { replicas, ..good() }, 0, &["--redis-wait"]);
        check(&Facts { replicas, ..good() }, 1, &[]);
        check(&Facts { replicas, ..good() }, 2, &["2 replicas"]);
    }
}
