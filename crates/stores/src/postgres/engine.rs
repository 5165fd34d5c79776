//! The engine: it runs all commands of this process, one transaction after the other.
//!
//! Commands that arrive while a transaction runs are the next batch, in the order in which they arrived. All keys that they concern
//! are locked first; then the model runs on them in memory, and what has changed is written. Callers are answered, and waiters woken,
//! after the commit.

mod blocked;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::model::Command;
use forrst_lock::{LockName, StoreError, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::connect::Connection;
use super::job::{Caller, Job, Task, names_of};
use super::link::{Link, Message};
use super::message::packed;
use super::rows::{Runner, Step};
use super::transaction::{Failure, Statements, Transaction};
use crate::server_clock::ServerClock;

/// How many commands run in one transaction at most.
const MAX_BATCH: usize = 256;
/// How many keys a command may concern.
const MAX_KEYS: usize = 256;
/// The pauses between attempts to connect grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often failures are logged.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// How far the clock of the server may be set back before this is taken for another time.
const CLOCK_SLACK: Duration = Duration::from_secs(5);

pub(super) struct Engine {
    pub(super) link: Arc<Link>,
    incoming: mpsc::UnboundedReceiver<Message>,
    statements: Statements,
    connection: Option<Connection>,
    /// Of the server that is connected.
    clock: Option<ServerClock>,
    /// The latest time of the server that a step has seen.
    latest: Timestamp,
    pub(super) jobs: VecDeque<Job>,
    /// Jobs whose rows other transactions have locked, and when to try again.
    blocked: VecDeque<Job>,
    blocked_until: Instant,
    /// Why there is no connection, and when to try again.
    down: Option<(String, Instant)>,
    pause: Duration,
    /// When a failure was last logged.
    logged_at: Option<Instant>,
}

impl Engine {
    pub(super) fn new(
        link: Arc<Link>,
        incoming: mpsc::UnboundedReceiver<Message>,
        connection: Connection,
    ) -> Self {
        let statements = Statements::new(&link.schema, link.timeout);
        Self {
            link,
            incoming,
            statements,
            connection: Some(connection),
            clock: None,
            latest: Timestamp::from_millis(0),
            jobs: VecDeque::new(),
            blocked: VecDeque::new(),
            blocked_until: Instant::now(),
            down: None,
            pause: FIRST_PAUSE,
            logged_at: None,
        }
    }

    /// Runs until the store is dropped.
    pub(super) async fn run(mut self) {
        loop {
            if !self.receive().await {
                return;
            }
            if !self.connect().await {
                continue;
            }
            if !self.blocked.is_empty() && Instant::now() >= self.blocked_until {
                self.run_blocked().await;
            }
            let jobs = self.next_batch();
            if !jobs.is_empty() {
                self.run_batch(jobs).await;
            }
        }
    }

    /// Takes what has arrived; waits if there is nothing to do. `false` when the store was dropped.
    async fn receive(&mut self) -> bool {
        let mut messages = Vec::new();
        let retry_at = match (&self.down, self.jobs.is_empty(), self.blocked.is_empty()) {
            (Some((_, retry_at)), ..) => Some(*retry_at),
            (None, false, _) => Some(Instant::now()),
            (None, true, false) => Some(self.blocked_until),
            (None, true, true) => None,
        };
        let received = self.incoming.recv_many(&mut messages, MAX_BATCH);
        match retry_at {
            None => {
                if received.await == 0 {
                    return false;
                }
            }
            Some(at) if at <= Instant::now() => {
                drop(received);
                while messages.len() < MAX_BATCH
                    && let Ok(message) = self.incoming.try_recv()
                {
                    messages.push(message);
                }
            }
            // `recv_many` loses nothing when it is dropped.
            Some(at) => {
                if let Ok(0) = timeout_at(at, received).await {
                    return false;
                }
            }
        }
        for message in messages {
            self.accept(message);
        }
        true
    }

    fn accept(&mut self, message: Message) {
        match message {
            Message::Command(command, reply) => {
                self.link.taken();
                self.push(Task::Command(command, Caller::Queued(reply)));
            }
            Message::Abandon(name, ticket) => self.push(Task::Abandon(name, ticket)),
            Message::Recheck(tickets) => {
                for ticket in tickets {
                    self.push(Task::Recheck(ticket));
                }
            }
            Message::Settle(names) => {
                for name in names {
                    self.push(Task::Settle(name));
                }
            }
            Message::Sweep(names, reply) => {
                self.link.taken();
                self.push(Task::Sweep(names, Caller::Queued(reply)));
            }
        }
    }

    fn push(&mut self, task: Task) {
        self.jobs.push_back(Job::new(task, &self.link));
    }

    /// Connects if necessary. If that fails, the callers of all commands are answered.
    async fn connect(&mut self) -> bool {
        if self
            .connection
            .as_ref()
            .is_some_and(|it| it.client.is_closed())
        {
            self.connection = None;
        }
        if self.connection.is_some() {
            return true;
        }
        if let Some((why, retry_at)) = &self.down
            && Instant::now() < *retry_at
        {
            let why = why.clone();
            self.fail_all(&why);
            return false;
        }
        match self.link.connector.connect(None).await {
            Ok(connection) => {
                if self.down.take().is_some() {
                    tracing::info!("connected to Postgres again");
                }
                self.pause = FIRST_PAUSE;
                self.connection = Some(connection);
                // Another server may have taken over.
                self.clock = None;
                self.link.poll.notify_one();
                true
            }
            Err(error) => {
                let why = format!("Postgres cannot be reached: {error}");
                if self.down.is_none() {
                    tracing::warn!(%error, "Postgres cannot be reached");
                }
                let pause = self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                self.down = Some((why.clone(), Instant::now() + pause));
                self.fail_all(&why);
                false
            }
        }
    }

    fn is_connected(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|it| !it.client.is_closed())
    }

    /// A line for each failure would fill a disk that may be full already.
    fn log_failure(&mut self, why: &str, is_unknown: bool) {
        let is_due = |at: &Instant| at.elapsed() >= LOG_EVERY;
        if self.logged_at.as_ref().is_none_or(is_due) {
            tracing::warn!(why, is_unknown, "a transaction has failed");
            self.logged_at = Some(Instant::now());
        }
    }

    fn fail_all(&mut self, why: &str) {
        let jobs = self.blocked.drain(..).chain(self.jobs.drain(..));
        self.jobs = jobs
            .filter_map(|job| job.fail(StoreError::NotDone(why.into())))
            .collect();
    }

    /// The next commands to run together. Those that concern a blocked key wait behind it.
    fn next_batch(&mut self) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut blocked: BTreeSet<LockName> = BTreeSet::new();
        for job in &self.blocked {
            blocked.extend(job.names.iter().cloned());
        }
        while jobs.len() < MAX_BATCH
            && let Some(job) = self.jobs.pop_front()
        {
            match job.names.iter().any(|name| blocked.contains(name)) {
                true => {
                    blocked.extend(job.names.iter().cloned());
                    self.blocked.push_back(job);
                }
                false => jobs.push(job),
            }
        }
        jobs
    }

    /// Runs a batch to its end: until it is committed, or has failed.
    async fn run_batch(&mut self, mut jobs: Vec<Job>) {
        let deadline = self.link.connector.deadline();
        loop {
            let ran = self.try_batch(jobs, false, deadline).await;
            let Err((failure, left)) = ran else { return };
            jobs = left;
            match failure {
                Failure::Conflict if Instant::now() < deadline => self.reset(deadline).await,
                Failure::Blocked => {
                    self.reset(deadline).await;
                    return self.set_blocked_apart(jobs, deadline).await;
                }
                // One of them may be the reason, so each is run alone.
                Failure::NotDone(why) if jobs.len() > 1 && self.is_connected() => {
                    self.log_failure(&why, false);
                    self.reset(deadline).await;
                    self.blocked.extend(jobs);
                    self.blocked_until = Instant::now();
                    return;
                }
                failure => return self.failed(jobs, failure, deadline).await,
            }
        }
    }

    /// Ends what may be left of a transaction that has failed.
    async fn reset(&mut self, deadline: Instant) {
        let Some(connection) = &self.connection else {
            return;
        };
        let rollback = connection.client.batch_execute("ROLLBACK");
        if !matches!(timeout_at(deadline, rollback).await, Ok(Ok(()))) {
            self.connection = None;
        }
    }

    /// A batch has failed. If the connection was lost before anything was done, it is repeated on another one.
    async fn failed(&mut self, jobs: Vec<Job>, failure: Failure, deadline: Instant) {
        let is_unknown = matches!(failure, Failure::Unknown(_));
        let was_lost = self
            .connection
            .as_ref()
            .is_none_or(|it| it.client.is_closed());
        if is_unknown || was_lost || Instant::now() >= deadline {
            self.connection = None;
        } else {
            self.reset(deadline).await;
        }
        let is_repeated =
            !is_unknown && was_lost && Instant::now() < deadline && self.down.is_none();
        let why = match &failure {
            Failure::NotDone(why) | Failure::Unknown(why) => why.clone(),
            Failure::Conflict | Failure::Blocked => String::new(),
        };
        if !is_repeated {
            self.log_failure(&why, is_unknown);
        }
        if is_unknown {
            // Calls of this process may have been woken by it.
            self.link
                .send(Message::Recheck(self.link.waiting.tickets()));
        }
        let mut repeated = Vec::new();
        let error = |failure: &Failure| match failure {
            Failure::Unknown(why) => StoreError::MaybeDone(why.as_str().into()),
            _ => StoreError::NotDone(why.as_str().into()),
        };
        for job in jobs {
            match is_repeated {
                true => repeated.push(job),
                false => repeated.extend(job.fail(error(&failure))),
            }
        }
        for job in repeated.into_iter().rev() {
            self.jobs.push_front(job);
        }
    }

    /// Runs jobs in one transaction. If it fails, they are returned.
    async fn try_batch(
        &mut self,
        mut jobs: Vec<Job>,
        is_brief: bool,
        deadline: Instant,
    ) -> Result<(), (Failure, Vec<Job>)> {
        loop {
            jobs.retain_mut(|job| match &mut job.task {
                Task::Command(_, Caller::Queued(reply)) => !reply.is_closed(),
                _ => true,
            });
            if jobs.is_empty() {
                return Ok(());
            }
            let names: BTreeSet<LockName> = names_of(jobs.iter()).collect();
            let creating = jobs.iter().filter(|job| job.creates());
            let created: BTreeSet<LockName> = names_of(creating).collect();
            let name_list: Vec<&str> = names.iter().map(LockName::as_str).collect();
            let created_list: Vec<&str> = created.iter().map(LockName::as_str).collect();
            let Some(connection) = &self.connection else {
                let failure = Failure::NotDone("the connection was lost".to_owned());
                return Err((failure, jobs));
            };
            let begun = Transaction::begin(
                connection,
                &self.statements,
                &mut self.clock,
                &created_list,
                &name_list,
                is_brief,
                deadline,
            );
            let mut transaction = match begun.await {
                Ok(transaction) => transaction,
                Err(failure) => return Err((failure, jobs)),
            };
            self.latest = settled_time(self.latest, transaction.moment.now);
            transaction.moment.now = self.latest;
            transaction.rows.add_missing(&names);
            let mut steps = Vec::with_capacity(jobs.len());
            let mut is_complete = true;
            for job in &mut jobs {
                let ran = run(
                    &self.link,
                    &self.link.runner,
                    &mut transaction,
                    self.clock.as_ref(),
                    job,
                );
                match ran {
                    Ok(done) => steps.push(done),
                    Err(missing) => {
                        is_complete = false;
                        job.names.extend(missing);
                    }
                }
            }
            if !is_complete {
                if let Err(failure) = transaction.roll_back().await {
                    return Err((failure, jobs));
                }
                let (left, refused): (Vec<Job>, Vec<Job>) = jobs
                    .into_iter()
                    .partition(|job| job.names.len() <= MAX_KEYS || job.is_internal());
                for job in refused {
                    let why = "the command concerns too many other keys";
                    job.fail(StoreError::NotDone(why.into()));
                }
                jobs = left;
                continue;
            }
            let visited = jobs.iter().filter_map(|job| match &job.task {
                Task::Sweep(names, _) => Some(names.as_slice()),
                _ => None,
            });
            let visited: Vec<LockName> = visited.flatten().cloned().collect();
            let news = steps.iter().flatten().flat_map(|step| &step.news);
            let news = packed(&self.link.schema, news);
            let now = transaction.moment.now;
            return match transaction.commit(&visited, &news).await {
                Ok(()) => {
                    self.committed(jobs, steps, now);
                    Ok(())
                }
                Err(failure) => Err((failure, jobs)),
            };
        }
    }

    fn committed(&mut self, jobs: Vec<Job>, steps: Vec<Vec<Step>>, now: Timestamp) {
        let Some(clock) = &self.clock else { return };
        let reading = clock.reading();
        if let Ok(mut shared) = self.link.reading.write() {
            *shared = Some(reading);
        }
        for (job, steps) in jobs.into_iter().zip(steps) {
            self.deliver(job, steps, now, reading);
        }
    }
}

/// Runs the steps of a job. If they need other keys, those are returned.
fn run(
    link: &Link,
    runner: &Runner,
    transaction: &mut Transaction<'_>,
    clock: Option<&ServerClock>,
    job: &mut Job,
) -> Result<Vec<Step>, Vec<LockName>> {
    let (rows, moment) = (&mut transaction.rows, &transaction.moment);
    let command = match &mut job.task {
        Task::Command(Command::Acquire(acquire), _) if link.is_abandoned(acquire.ticket) => {
            return Ok(Vec::new());
        }
        Task::Command(command, caller) => match caller.begin() {
            true => command.clone(),
            false => return Ok(Vec::new()),
        },
        Task::Abandon(name, ticket) => Command::Abandon {
            name: name.clone(),
            ticket: *ticket,
        },
        Task::Recheck(ticket) => {
            let Some((call, clock)) = link.waiting.get(*ticket).zip(clock) else {
                return Ok(Vec::new());
            };
            let reading = clock.reading();
            let left = call.deadline.saturating_duration_since(reading.at);
            call.rejoin(reading.now + left)
        }
        Task::Settle(name) => Command::Settle(name.clone()),
        Task::Sweep(names, caller) => {
            if !caller.begin() {
                return Ok(Vec::new());
            }
            let settled = names
                .iter()
                .map(|name| rows.step(&Command::Settle(name.clone()), moment, runner));
            return settled.collect();
        }
    };
    rows.step(&command, moment, runner).map(|step| vec![step])
}

/// The time of a step. It does not run backwards, unless the server's clock was set back by more than the slack, or another server has
/// taken over.
fn settled_time(latest: Timestamp, now: Timestamp) -> Timestamp {
    if now + CLOCK_SLACK >= latest {
        return now.max(latest);
    }
    tracing::warn!(
        by = ?latest.remaining(now),
        "the clock of Postgres was set back: leases that are held last longer by that time"
    );
    now
}
