//! The transaction that runs a batch of commands: two round trips.
//!
//! The first begins it, inserts the rows that are missing, locks all rows in the order of their names, and then reads the time. The
//! second writes what has changed, notifies other nodes, and commits.

use std::time::Duration;

use forrst_lock::{LockName, NodeId, Timestamp};
use futures_util::future::{join4, join5};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{Connection, message_of};
use super::row::{Row, Write, WrittenRow};
use super::rows::{Moment, Rows};
use super::schema::Schema;
use crate::server_clock::ServerClock;

/// For how long a node counts as alive after its last heartbeat.
pub(super) const NODE_TTL: Duration = Duration::from_secs(5);
/// If no node has sent a heartbeat for this long, then the server was unavailable, and none of them is dead.
pub(super) const NODE_SILENCE: Duration = Duration::from_millis(2500);

/// How long a batch waits for a row that another transaction has locked.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a command waits for it after that.
const BRIEF_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// The statements, with the name of the schema.
#[derive(Debug)]
pub(super) struct Statements {
    begin: String,
    /// As `begin`, for keys that other transactions have locked.
    begin_briefly: String,
    free: String,
    insert: String,
    lock: String,
    read_moment: String,
    write: String,
    delete: String,
    raise_floor: String,
}

/// Why a transaction failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Two transactions waited for each other, or similar: nothing was done, and it can be repeated at once.
    Conflict,
    /// A row is locked by another transaction, for longer than a batch waits.
    Blocked,
    /// Nothing was done.
    NotDone(String),
    /// The answer to the commit was lost.
    Unknown(String),
}

/// The current time of the server in whole milliseconds, rounded down.
pub(super) const NOW: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The statement that reads a [`Moment`], without the name of the schema.
pub(super) fn read_moment() -> String {
    format!(
        "SELECT {NOW}, s.fence_floor, s.grace_until, n.ids, n.seen \
         FROM {{schema}}.store AS s, \
         (SELECT array_agg(id) AS ids, array_agg(seen) AS seen FROM {{schema}}.nodes) AS n"
    )
}

impl Statements {
    /// `timeout` is how long a transaction may take.
    ///
    /// The timeouts are set in each transaction, because a pooler may give the next one another session. If this process hangs, the
    /// last of them frees the rows. A statement timeout could end the wait of a commit for its replicas, and the commit would still
    /// seem to succeed, so there is none; this process has a timeout of its own.
    pub(super) fn new(schema: &Schema, timeout: Duration) -> Self {
        let timeout = timeout.as_millis().max(2);
        let begin = |lock_timeout: u128| {
            format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {lock_timeout}; \
                 SET LOCAL statement_timeout = 0; \
                 SET LOCAL idle_in_transaction_session_timeout = {timeout}"
            )
        };
        Self {
            begin: begin((timeout / 4).min(LOCK_TIMEOUT.as_millis())),
            begin_briefly: begin(BRIEF_LOCK_TIMEOUT.as_millis()),
            free: schema.sql(
                "SELECT name FROM {schema}.locks WHERE name = ANY($1::text[]) \
                 ORDER BY name FOR UPDATE SKIP LOCKED",
            ),
            insert: schema.sql(
                "INSERT INTO {schema}.locks (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING",
            ),
            lock: schema.sql(
                "SELECT name, state::text, fence, due FROM {schema}.locks \
                 WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE",
            ),
            read_moment: schema.sql(&read_moment()),
            write: schema.sql(
                "UPDATE {schema}.locks AS l SET state = n.state::json, fence = n.fence, \
                 due = n.due, holders = n.holders, leases = n.leases, waiters = n.waiters \
                 FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::int[], \
                 $6::int[], $7::int[]) \
                 AS n (name, state, fence, due, holders, leases, waiters) WHERE l.name = n.name",
            ),
            delete: schema.sql("DELETE FROM {schema}.locks WHERE name = ANY($1::text[])"),
            raise_floor: schema
                .sql("UPDATE {schema}.store SET fence_floor = greatest(fence_floor, $1)"),
        }
    }
}

/// A transaction that has locked its rows.
pub(super) struct Transaction<'a> {
    connection: &'a Connection,
    statements: &'a Statements,
    deadline: Instant,
    pub(super) rows: Rows,
    pub(super) moment: Moment,
}

impl<'a> Transaction<'a> {
    /// Locks these keys, which are sorted. Those that are to be created are inserted if they are missing.
    pub(super) async fn begin(
        connection: &'a Connection,
        statements: &'a Statements,
        clock: &mut Option<ServerClock>,
        created: &[&str],
        names: &[&str],
        is_brief: bool,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let client = &connection.client;
        let created_names = created;
        let created: (&(dyn ToSql + Sync), Type) = (&created, Type::TEXT_ARRAY);
        let locked: (&(dyn ToSql + Sync), Type) = (&names, Type::TEXT_ARRAY);
        let (created, locked) = ([created], [locked]);
        let begin = match is_brief {
            true => &statements.begin_briefly,
            false => &statements.begin,
        };
        let sent = Instant::now();
        // Polled in this order, so sent in this order, without waiting for each other's answers.
        let pipeline = join4(
            client.batch_execute(begin),
            client.execute_typed(&statements.insert, &created),
            client.query_typed(&statements.lock, &locked),
            client.query_typed_one(&statements.read_moment, &[]),
        );
        let answers = timeout_at(deadline, pipeline).await;
        let Ok((begun, inserted, locked, read)) = answers else {
            let why = "Postgres did not answer in time";
            return Err(Failure::NotDone(why.to_owned()));
        };
        let received = Instant::now();
        // An error makes all later statements fail, too, so the first one counts.
        begun.map_err(|error| failed(&error))?;
        inserted.map_err(|error| failed(&error))?;
        let locked = locked.map_err(|error| failed(&error))?;
        let read = read.map_err(|error| failed(&error))?;
        let moment = Moment::read(&read);
        let now = moment.now;
        match clock {
            Some(clock) => clock.observe(sent, received, now),
            None => *clock = Some(ServerClock::new(sent, received, now)),
        }
        let mut rows = Rows::default();
        for row in locked {
            let name: &str = row.get(0);
            let name = LockName::restore(name)
                .map_err(|_| Failure::NotDone(format!("`{name}` is not the name of a lock")))?;
            let fence: i64 = row.get(2);
            let fence = u64::try_from(fence).unwrap_or(0);
            rows.fences.insert(name.clone(), fence);
            let read = Row::read(&name, row.get(1), row.get(3));
            let read = read.map_err(|error| Failure::NotDone(error.to_string()))?;
            rows.by_name.insert(name, read);
        }
        let is_missing = |name: &&str| !rows.by_name.contains_key(*name);
        if created_names.iter().any(is_missing) {
            // A sweep has deleted it after the insert found it.
            return Err(Failure::Conflict);
        }
        Ok(Self {
            connection,
            statements,
            deadline,
            rows,
            moment,
        })
    }

    /// The keys among these whose rows no other transaction has locked.
    pub(super) async fn free_keys(
        connection: &Connection,
        statements: &Statements,
        names: &[&str],
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        let parameters: Parameters<'_, 1> = [(&names, Type::TEXT_ARRAY)];
        // A single statement is a transaction, which frees the rows at once.
        let free = connection.client.query_typed(&statements.free, &parameters);
        let rows = timeout_at(deadline, free).await;
        let rows = rows.map_err(|_| Failure::NotDone("Postgres did not answer in time".into()))?;
        let rows = rows.map_err(|error| failed(&error))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Ends it without a change.
    pub(super) async fn roll_back(self) -> Result<(), Failure> {
        let rollback = self.connection.client.batch_execute("ROLLBACK");
        match timeout_at(self.deadline, rollback).await {
            Ok(done) => done.map_err(|error| failed(&error)),
            Err(_) => Err(Failure::NotDone("Postgres did not answer in time".into())),
        }
    }

    /// Writes what has changed, notifies other nodes on their channels, and commits. `visited` are the keys of a sweep.
    pub(super) async fn commit(
        mut self,
        visited: &[LockName],
        news: &[(String, String)],
    ) -> Result<(), Failure> {
        let now = self.moment.now;
        let mut written = Columns::default();
        let (mut deleted, mut is_changed, mut floor) = (Vec::new(), !news.is_empty(), 0);
        for (name, row) in &mut self.rows.by_name {
            let fence = self.rows.fences.get(name).copied().unwrap_or(0);
            match row.write(now, fence, visited.contains(name)) {
                Write::Nothing => {}
                Write::Delete => {
                    // A row that was only inserted to lock it is gone after a rollback, too.
                    is_changed |= row.due.is_some();
                    deleted.push(name.as_str());
                    floor = floor.max(fence);
                }
                Write::Row(_) if !row.exists => {
                    // Only the rows of acquires are inserted, and all others are changed only where they have a lease or a claim.
                    let why = format!("the row of {name} is missing");
                    return Err(Failure::NotDone(why));
                }
                Write::Row(row) => {
                    is_changed = true;
                    written.push(name, row);
                }
            }
        }
        if !is_changed {
            return self.roll_back().await;
        }
        let (client, statements) = (&self.connection.client, self.statements);
        let (channels, payloads): (Vec<&str>, Vec<&str>) = news
            .iter()
            .map(|(to, news)| (to.as_str(), news.as_str()))
            .unzip();
        let floor = i64::try_from(floor).unwrap_or(i64::MAX);
        let write = written.parameters();
        let delete: Parameters<'_, 1> = [(&deleted, Type::TEXT_ARRAY)];
        let raise: Parameters<'_, 1> = [(&floor, Type::INT8)];
        let notify: Parameters<'_, 2> =
            [(&channels, Type::TEXT_ARRAY), (&payloads, Type::TEXT_ARRAY)];
        let run = async |is_needed: bool, statement, parameters| match is_needed {
            true => client.query_typed(statement, parameters).await.map(drop),
            false => Ok(()),
        };
        // In this order. If one of them fails, the commit rolls back.
        let pipeline = join5(
            run(!written.names.is_empty(), &statements.write, &write),
            run(!deleted.is_empty(), &statements.delete, &delete),
            run(floor > 0, &statements.raise_floor, &raise),
            run(!channels.is_empty(), NOTIFY, &notify),
            client.batch_execute("COMMIT"),
        );
        let Ok((written, deleted, raised, notified, committed)) =
            timeout_at(self.deadline, pipeline).await
        else {
            let why = "Postgres did not answer in time";
            return Err(Failure::Unknown(why.to_owned()));
        };
        for done in [written, deleted, raised, notified, committed] {
            done.map_err(|error| match error.as_db_error() {
                // The server has answered, so it has not committed.
                Some(_) if !is_connection_error(&error) => failed(&error),
                _ => Failure::Unknown(message_of(&error)),
            })?;
        }
        Ok(())
    }
}

type Parameters<'a, const N: usize> = [(&'a (dyn ToSql + Sync), Type); N];

const NOTIFY: &str = "SELECT pg_notify(channel, payload) \
    FROM unnest($1::text[], $2::text[]) AS news (channel, payload)";

/// The rows that are written, as columns.
#[derive(Default)]
struct Columns<'a> {
    names: Vec<&'a str>,
    states: Vec<String>,
    fences: Vec<i64>,
    dues: Vec<i64>,
    holders: Vec<i32>,
    leases: Vec<i32>,
    waiters: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, name: &'a LockName, row: WrittenRow) {
        self.names.push(name.as_str());
        self.states.push(row.state);
        self.fences.push(row.fence);
        self.dues.push(row.due);
        self.holders.push(row.holders);
        self.leases.push(row.leases);
        self.waiters.push(row.waiters);
    }

    fn parameters(&self) -> Parameters<'_, 7> {
        [
            (&self.names, Type::TEXT_ARRAY),
            (&self.states, Type::TEXT_ARRAY),
            (&self.fences, Type::INT8_ARRAY),
            (&self.dues, Type::INT8_ARRAY),
            (&self.holders, Type::INT4_ARRAY),
            (&self.leases, Type::INT4_ARRAY),
            (&self.waiters, Type::INT4_ARRAY),
        ]
    }
}

impl Moment {
    /// Reads the row that [`read_moment`] returns.
    pub(super) fn read(row: &tokio_postgres::Row) -> Self {
        let (millis, floor, grace_until): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let ids: Option<Vec<String>> = row.get(3);
        let seen: Option<Vec<i64>> = row.get(4);
        let (ids, seen) = (ids.unwrap_or_default(), seen.unwrap_or_default());
        let before = |ago: Duration| millis - i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        let newest = seen.iter().max().copied().unwrap_or(0);
        let is_known = grace_until <= millis && newest > before(NODE_SILENCE);
        let alive = ids.iter().zip(seen);
        let alive = alive.filter(|(_, seen)| *seen > before(NODE_TTL));
        let alive = alive.map(|(id, _)| NodeId::new(id));
        Self {
            now: Timestamp::from_millis(u64::try_from(millis).unwrap_or(0)),
            alive: is_known.then(|| alive.collect()),
            fence_floor: u64::try_from(floor).unwrap_or(0),
        }
    }
}

/// What an error before the commit means.
fn failed(error: &Error) -> Failure {
    match error.code() {
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => Failure::Blocked,
        Some(code)
            if [
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::T_R_SERIALIZATION_FAILURE,
            ]
            .contains(code) =>
        {
            Failure::Conflict
        }
        _ => Failure::NotDone(message_of(error)),
    }
}

/// Whether the server ended the connection, which it may do after a commit.
fn is_connection_error(error: &Error) -> bool {
    let classes = ["08", "57"];
    error
        .code()
        .is_some_and(|code| classes.contains(&code.code().get(..2).unwrap_or_default()))
}
