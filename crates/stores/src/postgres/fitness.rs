//! Whether a server is fit for locks: settings with which it can lose what it has acknowledged, and a clock that was set back.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::Timestamp;
use tokio::time::sleep;
use tokio_postgres::{Client, Error};

use super::link::Link;
use super::reader::timestamp;
use super::schema::Schema;
use super::transaction::NOW;

/// How often the settings are checked.
const CHECK: Duration = Duration::from_secs(3);
/// A clock that is behind by less was not set back: servers of a cluster differ, too.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);
/// The oldest version that is supported: 12.
const OLDEST: i32 = 120_000;

/// The settings of a server that matter for locks.
#[derive(Debug, Clone)]
pub(super) struct Fitness {
    version: i32,
    pub(super) version_name: String,
    encoding: String,
    has_fsync: bool,
    waits_for_disk: bool,
    has_full_pages: bool,
    is_read_only: bool,
    now: Timestamp,
    /// The latest time that a node has seen.
    seen: Timestamp,
}

impl Fitness {
    /// The tables may not exist yet.
    pub(super) async fn read(client: &Client, schema: Option<&Schema>) -> Result<Self, Error> {
        let seen = match schema {
            Some(schema) => schema.sql("(SELECT max(seen) FROM {schema}.nodes)"),
            None => "NULL::bigint".to_owned(),
        };
        let statement = format!(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
             current_setting('server_encoding'), current_setting('fsync') = 'on',
             current_setting('synchronous_commit') <> 'off',
             current_setting('full_page_writes') = 'on',
             pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
             {NOW}, {seen}"
        );
        let row = client.query_typed_one(&statement, &[]).await?;
        let seen: Option<i64> = row.get(8);
        Ok(Self {
            version: row.get(0),
            version_name: row.get(1),
            encoding: row.get(2),
            has_fsync: row.get(3),
            waits_for_disk: row.get(4),
            has_full_pages: row.get(5),
            is_read_only: row.get(6),
            now: timestamp(row.get(7)),
            seen: timestamp(seen.unwrap_or(0)),
        })
    }

    /// Why the server cannot be used at all.
    pub(super) fn obstacle(&self) -> Option<String> {
        if self.version < OLDEST {
            let version = &self.version_name;
            return Some(format!(
                "Postgres {version} is too old: 12 or newer is needed"
            ));
        }
        (self.encoding != "UTF8").then(|| {
            let encoding = &self.encoding;
            format!("the encoding of the database is {encoding}, and keys need UTF8")
        })
    }

    /// What is unsafe, each as one sentence.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.has_fsync {
            problems.push(
                "fsync is off: a crash of the machine can lose locks and damage the database. Set fsync = on"
                    .to_owned(),
            );
        }
        if !self.waits_for_disk {
            problems.push(
                "synchronous_commit is off: the locks of the last moments are lost when the server crashes. Set it to on for this \
                 database or role"
                    .to_owned(),
            );
        }
        if !self.has_full_pages {
            problems.push(
                "full_page_writes is off: a crash of the machine can damage the database. Set full_page_writes = on"
                    .to_owned(),
            );
        }
        if self.is_read_only {
            problems.push(
                "the server is read-only or recovering: nothing can be locked. Use the address of the primary"
                    .to_owned(),
            );
        }
        let behind = self.seen.remaining(self.now);
        if behind > CLOCK_TOLERANCE {
            let seconds = behind.as_secs_f64();
            problems.push(format!(
                "the clock of the server was set back: it is {seconds:.1} s behind the time that nodes have seen. Leases last longer by \
                 that time; synchronise it by slewing"
            ));
        }
        problems
    }
}

/// Warns of each problem.
pub(super) fn warn(problems: &[String]) {
    for problem in problems {
        tracing::warn!("UNSAFE: {problem}");
    }
}

/// Checks the settings again and again, until the store is dropped. With `strict`, nothing is granted while they are unsafe.
pub(super) async fn watch(link: Arc<Link>, strict: bool, mut known: Vec<String>) {
    loop {
        sleep(CHECK).await;
        let schema = &link.schema;
        let read = link
            .reader
            .with(|it| async move { Fitness::read(&it.client, Some(schema)).await });
        let Ok(fitness) = read.await else { continue };
        let found = fitness.problems();
        // The time by which a clock is behind changes all the time.
        if found.len() != known.len() {
            warn(&found);
        }
        if found.is_empty() && !known.is_empty() {
            tracing::info!("the settings of Postgres are safe for locks");
        }
        if let Ok(mut refusal) = link.refusal.write() {
            *refusal = (strict && !found.is_empty()).then(|| found.join("; "));
        }
        known = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Fitness {
        Fitness {
            version: 150_018,
            version_name: "15.18".to_owned(),
            encoding: "UTF8".to_owned(),
            has_fsync: true,
            waits_for_disk: true,
            has_full_pages: true,
            is_read_only: false,
            now: Timestamp::from_millis(1_000_000),
            seen: Timestamp::from_millis(1_000_000),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Fitness), word: &str) {
        let mut fitness = good();
        change(&mut fitness);
        let problems = fitness.problems();
        assert!(
            matches!(&*problems, [problem] if problem.contains(word)),
            "{problems:?}"
        );
    }

    #[test]
    fn each_unsafe_setting_is_reported() {
        assert_eq!(good().problems(), Vec::<String>::new());
        check(|it| it.has_fsync = false, "fsync is off");
        check(|it| it.waits_for_disk = false, "synchronous_commit is off");
        check(|it| it.has_full_pages = false, "full_page_writes is off");
        check(|it| it.is_read_only = true, "read-only");
        let ahead = Timestamp::from_millis(1_010_000);
        check(|it| it.seen = ahead, "10.0 s behind");
    }

    #[test]
    fn servers_that_cannot_be_used_are_refused() {
        assert_eq!(good().obstacle(), None);
        let old = Fitness {
            version: 110_000,
            version_name: "11.0".to_owned(),
            ..good()
        };
        assert!(old.obstacle().unwrap().contains("11.0 is too old"));
        let other = Fitness {
            encoding: "LATIN1".to_owned(),
            ..good()
        };
        assert!(other.obstacle().unwrap().contains("LATIN1"));
    }
}
