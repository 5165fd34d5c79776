//! The connection for everything that is not a step: reads, heartbeats and checks. It is made again when it breaks.

use std::collections::HashMap;
use std::sync::Arc;

use forrst_lock::model::Key;
use forrst_lock::{
    Answer, Counts, ListError, ListRequest, LockName, LockStatus, NodeId, Page, StoreError,
    Timestamp, Waiter,
};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row as SqlRow};

use super::connect::{Connection, Connector, message_of};
use super::row::Row;
use super::schema::Schema;
use super::transaction::{NODE_TTL, NOW};

#[derive(Debug)]
pub(super) struct Reader {
    connector: Connector,
    connection: Mutex<Option<Arc<Connection>>>,
    statements: Statements,
}

#[derive(Debug)]
struct Statements {
    by_name: String,
    list: String,
    counts: String,
    due: String,
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A key as it is read, and the nodes that are alive.
pub(super) struct Read {
    pub(super) key: Key,
    pub(super) now: Timestamp,
}

impl Reader {
    pub(super) fn new(connector: Connector, schema: &Schema) -> Self {
        let statement = |text: &str| schema.sql(text).replace("{now}", NOW);
        Self {
            connector,
            connection: Mutex::default(),
            statements: Statements {
                // One row for each name, so that the time is there even if the lock is not.
                by_name: statement(
                    "SELECT n.name, l.state::text, {now}
                     FROM unnest($1::text[]) AS n (name)
                     LEFT JOIN {schema}.locks AS l ON l.name = n.name",
                ),
                list: statement(
                    "SELECT name, state::text, {now} FROM {schema}.locks
                     WHERE holders > 0 AND name >= $1 AND name > $2
                     AND ($3::text IS NULL OR name < $3) ORDER BY name LIMIT $4",
                ),
                counts: statement(
                    "SELECT count(*) FILTER (WHERE holders > 0), coalesce(sum(leases), 0)::bigint,
                     count(*) FILTER (WHERE holders = 0 AND waiters > 0) FROM {schema}.locks",
                ),
                due: statement(
                    "SELECT name FROM {schema}.locks WHERE due <= {now} ORDER BY due LIMIT $1",
                ),
            },
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|it| !it.client.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = self.connector.connect(None).await;
        let connection = connection.map_err(|error| StoreError::NotDone(Box::new(error)))?;
        let connection = Arc::new(connection);
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// Runs something on the connection, within the timeout. A connection that does not answer in time is given up.
    pub(super) async fn with<T, F>(
        &self,
        run: impl FnOnce(Arc<Connection>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let limit = self.connector.timeout;
        let mut used = None;
        let running = async {
            let connection = self.connection().await?;
            used = Some(connection.clone());
            let done = run(connection).await;
            done.map_err(|error| StoreError::NotDone(message_of(&error).into()))
        };
        match timeout(limit, running).await {
            Ok(done) => done,
            Err(_) => {
                if let Some(used) = used {
                    self.give_up(&used).await;
                }
                let why = format!("Postgres did not answer within {limit:?}");
                Err(StoreError::NotDone(why.into()))
            }
        }
    }

    async fn give_up(&self, used: &Arc<Connection>) {
        let mut current = self.connection.lock().await;
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, used)) {
            *current = None;
        }
    }

    async fn rows(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<SqlRow>, StoreError> {
        self.with(|it| async move { it.client.query_typed(statement, parameters).await })
            .await
    }

    /// These keys, all as of the same moment. A key that has no row is vacant.
    pub(super) async fn read(
        &self,
        names: &[LockName],
    ) -> Result<HashMap<LockName, Read>, StoreError> {
        let texts: Vec<&str> = names.iter().map(LockName::as_str).collect();
        let rows = self
            .rows(&self.statements.by_name, &[(&texts, Type::TEXT_ARRAY)])
            .await?;
        let rows = rows.iter().map(|row| {
            let read = read(row)?;
            Ok((read.key.name().clone(), read))
        });
        rows.collect()
    }

    async fn read_one(&self, name: &LockName) -> Result<Read, StoreError> {
        let mut read = self.read(std::slice::from_ref(name)).await?;
        let missing = || StoreError::NotDone("Postgres did not answer with a row".into());
        read.remove(name).ok_or_else(missing)
    }

    pub(super) async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let Read { key, now } = self.read_one(name).await?;
        let outcome = LockStatus::new(&key, now);
        Ok(Answer { outcome, now })
    }

    pub(super) async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let Read { key, now } = self.read_one(name).await?;
        let waiting = key.queue().iter().take(limit).map(Waiter::from);
        let outcome = waiting.collect();
        Ok(Answer { outcome, now })
    }

    /// A page of held locks, by name.
    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request
            .after()?
            .map_or(String::new(), |name| name.to_string());
        let end = after_all(&request.prefix);
        let limit = request.limit.max(1);
        let mut locks = Vec::new();
        let mut first_read = None;
        loop {
            let count = i64::try_from(limit + 1).unwrap_or(i64::MAX);
            let parameters: [Parameter<'_>; 4] = [
                (&request.prefix, Type::TEXT),
                (&after, Type::TEXT),
                (&end, Type::TEXT),
                (&count, Type::INT8),
            ];
            let rows = self.rows(&self.statements.list, &parameters).await?;
            let is_last = rows.len() <= limit;
            for row in &rows {
                let Read { key, now } = read(row)?;
                first_read.get_or_insert(now);
                let status = LockStatus::new(&key, now);
                after = key.name().to_string();
                if status.holder_count > 0 {
                    locks.push(status);
                }
            }
            // Leases that have expired since are not shown, so a page may need more rows.
            if is_last || locks.len() > limit {
                break;
            }
        }
        let now = match first_read {
            Some(now) => now,
            None => self.now().await?,
        };
        Ok(Page::cut(locks, limit, now))
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let rows = self.rows(&format!("SELECT {NOW}"), &[]).await?;
        Ok(timestamp(rows.first().map_or(0, |row| row.get(0))))
    }

    pub(super) async fn counts(&self) -> Result<Counts, StoreError> {
        let rows = self.rows(&self.statements.counts, &[]).await?;
        let number = |index| {
            let number: i64 = rows.first().map_or(0, |row| row.get(index));
            usize::try_from(number).unwrap_or(0)
        };
        Ok(Counts {
            keys: number(0),
            leases: number(1),
            reserved: number(2),
        })
    }

    /// The first keys that a sweep has to visit.
    pub(super) async fn due(&self, limit: usize) -> Result<Vec<LockName>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 1] = [(&limit, Type::INT8)];
        let rows = self.rows(&self.statements.due, &parameters).await?;
        let names = rows
            .iter()
            .filter_map(|row| LockName::parse(row.get(0)).ok());
        Ok(names.collect())
    }
}

fn read(row: &SqlRow) -> Result<Read, StoreError> {
    let (name, state): (&str, Option<String>) = (row.get(0), row.get(1));
    let bad = |_| StoreError::NotDone(format!("`{name}` is not the name of a lock").into());
    let name = LockName::parse(name).map_err(bad)?;
    let key = match state {
        Some(state) => Row::read(name, state, None)?.key,
        None => Key::new(name),
    };
    Ok(Read {
        key,
        now: timestamp(row.get(2)),
    })
}

pub(super) fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// The smallest text that is larger than all that begin with a prefix; `None` if there is none.
fn after_all(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

/// The answer to a heartbeat.
#[derive(Debug)]
pub(super) struct Heartbeat {
    pub(super) now: Timestamp,
    /// When this node had sent its last heartbeat.
    pub(super) before: Option<Timestamp>,
    /// The other nodes that have sent none for too long.
    pub(super) dead: Vec<NodeId>,
}

impl Heartbeat {
    /// Reads the rows: a node, when it was seen, and the time.
    pub(super) fn read(rows: &[(String, i64, i64)], own: &NodeId) -> Self {
        let now = timestamp(rows.first().map_or(0, |(_, _, now)| *now));
        let before = rows.iter().find(|(id, ..)| id == own.as_str());
        let is_dead = |seen: i64| timestamp(seen) + NODE_TTL <= now;
        let dead = rows
            .iter()
            .filter(|(id, seen, _)| id != own.as_str() && is_dead(*seen));
        Self {
            now,
            before: before.map(|(_, seen, _)| timestamp(*seen)),
            dead: dead.map(|(id, ..)| NodeId::new(id)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::after_all;

    #[test]
    fn the_end_of_a_prefix_is_after_everything_that_begins_with_it() {
        assert_eq!(after_all("lock:a").as_deref(), Some("lock:b"));
        assert_eq!(after_all("lock:a\u{10ffff}").as_deref(), Some("lock:b"));
        // There are no characters between these two.
        assert_eq!(after_all("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(after_all(""), None);
    }
}
