//! The connection for everything that is not a step: reads, heartbeats and checks. It is made again when it breaks.

use std::sync::Arc;

use forrst_lock::model::{Key, Waiting};
use forrst_lock::{
    Answer, Counts, ListError, ListRequest, LockName, LockStatus, NodeId, Page, StoreError,
    Timestamp, Waiter,
};
use futures_util::future::try_join;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row as SqlRow};

use super::connect::{Connection, Connector, message_of};
use super::row::Row;
use super::rows::Moment;
use super::schema::Schema;
use super::transaction::{NODE_TTL, NOW, read_moment};

#[derive(Debug)]
pub(super) struct Reader {
    connector: Connector,
    connection: Mutex<Option<Arc<Connection>>>,
    statements: Statements,
}

#[derive(Debug)]
struct Statements {
    moment: String,
    by_name: String,
    list: String,
    counts: String,
    due: String,
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Keys as they are read.
pub(super) struct Reads {
    pub(super) keys: Vec<Key>,
    pub(super) moment: Moment,
}

impl Reads {
    /// Whether a claim is not only of dead nodes.
    fn is_live(&self, waiting: &Waiting) -> bool {
        let Some(alive) = &self.moment.alive else {
            return true;
        };
        let mut nodes = waiting.calls.iter().map(|call| call.node.as_ref());
        nodes.any(|node| node.is_none_or(|node| alive.contains(node)))
    }

    /// What is shown of a key: claims of dead nodes do not count.
    fn status(&self, key: &Key) -> LockStatus {
        let live = key.queue().iter().filter(|waiting| self.is_live(waiting));
        LockStatus {
            waiters: live.count(),
            ..LockStatus::new(key, self.moment.now)
        }
    }
}

impl Reader {
    pub(super) fn new(connector: Connector, schema: &Schema) -> Self {
        let statement = |text: &str| schema.sql(text).replace("{now}", NOW);
        Self {
            connector,
            connection: Mutex::default(),
            statements: Statements {
                moment: schema.sql(&read_moment()),
                by_name: statement(
                    "SELECT name, state::text FROM {schema}.locks WHERE name = ANY($1::text[])",
                ),
                list: statement(
                    "SELECT name, state::text FROM {schema}.locks
                     WHERE holders > 0 AND name >= $1 AND name > $2
                     AND ($3::text IS NULL OR name < $3) ORDER BY name LIMIT $4",
                ),
                counts: statement(
                    "SELECT count(*) FILTER (WHERE holders > 0), coalesce(sum(leases), 0)::bigint,
                     count(*) FILTER (WHERE holders = 0 AND waiters > 0) FROM {schema}.locks
                     WHERE name LIKE 'lock:%'",
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

    /// Runs a query for names and states, and reads the time after it, in one round trip.
    async fn keys(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Reads, StoreError> {
        let (rows, moment) = self
            .with(|it| async move {
                let rows = it.client.query_typed(statement, parameters);
                let moment = it.client.query_typed_one(&self.statements.moment, &[]);
                try_join(rows, moment).await
            })
            .await?;
        let keys = rows.iter().map(|row| {
            let name: &str = row.get(0);
            let bad = |_| StoreError::NotDone(format!("`{name}` is not the name of a lock").into());
            let name = LockName::restore(name).map_err(bad)?;
            Ok(Row::read(&name, row.get(1), None)?.key)
        });
        Ok(Reads {
            keys: keys.collect::<Result<_, StoreError>>()?,
            moment: Moment::read(&moment),
        })
    }

    /// Those of these keys that have a row.
    pub(super) async fn read(&self, names: &[LockName]) -> Result<Reads, StoreError> {
        let texts: Vec<&str> = names.iter().map(LockName::as_str).collect();
        let parameters: [Parameter<'_>; 1] = [(&texts, Type::TEXT_ARRAY)];
        self.keys(&self.statements.by_name, &parameters).await
    }

    pub(super) async fn inspect(&self, name: &LockName) -> Result<Answer<LockStatus>, StoreError> {
        let reads = self.read(std::slice::from_ref(name)).await?;
        let now = reads.moment.now;
        let outcome = match reads.keys.first() {
            Some(key) => reads.status(key),
            None => LockStatus::new(&Key::new(name.clone()), now),
        };
        Ok(Answer { outcome, now })
    }

    pub(super) async fn queue(
        &self,
        name: &LockName,
        limit: usize,
    ) -> Result<Answer<Vec<Waiter>>, StoreError> {
        let reads = self.read(std::slice::from_ref(name)).await?;
        let queue = reads.keys.first().into_iter().flat_map(Key::queue);
        let live = queue.filter(|waiting| reads.is_live(waiting));
        Ok(Answer {
            outcome: live.take(limit).map(Waiter::from).collect(),
            now: reads.moment.now,
        })
    }

    /// A page of held locks, by name.
    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, ListError> {
        let mut after = request
            .after()?
            .map_or(String::new(), |name| name.to_string());
        let end = after_all(&request.prefix);
        let limit = request.limit.max(1);
        let count = i64::try_from(limit + 1).unwrap_or(i64::MAX);
        let mut locks = Vec::new();
        let mut first_read = None;
        loop {
            let parameters: [Parameter<'_>; 4] = [
                (&request.prefix, Type::TEXT),
                (&after, Type::TEXT),
                (&end, Type::TEXT),
                (&count, Type::INT8),
            ];
            let reads = self.keys(&self.statements.list, &parameters).await?;
            let now = *first_read.get_or_insert(reads.moment.now);
            let held = reads.keys.iter().map(|key| reads.status(key));
            locks.extend(held.filter(|status| status.holder_count > 0));
            let last = reads.keys.last();
            // Leases that have expired are not shown, so a page may need more rows.
            match last.filter(|_| reads.keys.len() > limit && locks.len() <= limit) {
                Some(last) => after = last.name().to_string(),
                None => return Ok(Page::cut(locks, limit, now)),
            }
        }
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
            .filter_map(|row| LockName::restore(row.get(0)).ok());
        Ok(names.collect())
    }
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
