//! The server is killed under load, again and again: acknowledged changes survive, and others are made completely or not at all.

use std::env;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::time::sleep;

use crate::crash::connection::Connection;
use crate::crash::history::History;
use crate::crash::lease::Span;
use crate::crash::load::{Caller, Moment, Round};
use crate::crash::operation::{Action, Operation, Outcome};
use crate::crash::server::{Server, StoreFolder};
use forrst_testkit::{Lock, list};

const CALLERS: usize = 32;
const LOCKS: usize = 40;
const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_has_kept_what_it_acknowledged() {
    let crashes = from_environment("FORRST_CRASHES").unwrap_or(30);
    Run::new("full").crash(crashes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_has_kept_what_it_acknowledged_with_durability_process() {
    let crashes =
        from_environment("FORRST_CRASHES").map_or(10, |crashes: usize| crashes.div_ceil(3));
    Run::new("process").crash(crashes).await;
}

fn from_environment<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

struct Run {
    seed: u64,
    random: Rng,
    folder: StoreFolder,
    history: History,
    callers: Vec<Caller>,
    /// How many leases were checked after a crash.
    checked: usize,
    waited_for: usize,
    repeated: usize,
}

impl Run {
    fn new(durability: &'static str) -> Self {
        let seed = from_environment("FORRST_SEED").unwrap_or_else(|| fastrand::u64(..));
        println!("FORRST_SEED={seed} (durability {durability})");
        let mut random = Rng::with_seed(seed);
        let locks = (0..LOCKS).map(|number| Lock {
            key: format!("key {number}"),
            is_global: number % 2 == 0,
        });
        let callers = (0..CALLERS).map(|number| Caller::new(number, random.fork()));
        let callers = callers.collect();
        Self {
            seed,
            random,
            folder: StoreFolder::new(durability),
            history: History::new(locks.collect()),
            callers,
            checked: 0,
            waited_for: 0,
            repeated: 0,
        }
    }

    async fn crash(mut self, crashes: usize) {
        let began = Instant::now();
        for _ in 0..crashes {
            let server = self.start().await;
            self.check(&server).await;
            self.load_and_kill(server).await;
        }
        let server = self.start().await;
        self.check(&server).await;
        println!(
            "{crashes} crashes, {} starts, {} acknowledged operations, {} leases checked, of which {} were waited for; \
             {} found whose answer was lost; {} releases repeated; {:.1} s, FORRST_SEED={}",
            self.history.starts,
            self.history.acknowledged,
            self.checked,
            self.waited_for,
            self.history.adopted,
            self.repeated,
            began.elapsed().as_secs_f64(),
            self.seed,
        );
        assert!(self.checked > 0 && self.history.acknowledged > 0);
    }

    /// Starts a server, sometimes after others that were killed while they started.
    async fn start(&mut self) -> Server {
        while self.random.u8(..100) < 30 {
            self.history.starts += 1;
            let mut process = self.folder.command().spawn().unwrap();
            sleep(Duration::from_millis(self.random.u64(..80))).await;
            process.kill().await.unwrap();
        }
        self.history.starts += 1;
        self.folder.start().await
    }

    async fn load_and_kill(&mut self, server: Server) {
        let at = Instant::now() + Duration::from_millis(self.random.u64(20..400));
        let at_an_answer = self.random.bool();
        // It is killed at the next such answer after that time, or at that time.
        let patience = Duration::from_millis(if at_an_answer { 200 } else { 0 });
        let round = Arc::new(Round {
            start: self.history.starts,
            address: server.address,
            locks: self.history.locks.clone(),
            is_closing: self.random.u8(..100) < 25,
            moment: Moment::ALL[self.random.usize(..Moment::ALL.len())],
            killer: server.killer(if at_an_answer { at } else { at + NEVER }),
        });
        let callers = std::mem::take(&mut self.callers).into_iter();
        let tasks: Vec<_> = callers
            .map(|mut caller| {
                let round = round.clone();
                tokio::spawn(async move {
                    let done = caller.run(&round).await;
                    (caller, done)
                })
            })
            .collect();
        let gone = server.kill_at(at + patience).await;
        let killed = round.killer.sent().unwrap_or(at);
        let mut operations = Vec::new();
        for task in tasks {
            let (caller, done) = task.await.unwrap();
            self.callers.push(caller);
            // A caller that could not connect has done nothing.
            let Ok(done) = done else { continue };
            let lives = "a connection broke while the server lived";
            assert!(done.broke >= killed, "{lives}:\n{}", self.folder.log());
            operations.extend(done.operations);
        }
        for operation in &mut operations {
            if operation.outcome == Outcome::Unanswered {
                operation.span.to = gone;
            }
        }
        let added = self.history.add(operations);
        self.expect(added);
    }

    /// Checks after a crash that the locks are as the history allows.
    async fn check(&mut self, server: &Server) {
        let mut connection = server.connect().await;
        let listed = connection.call(&list()).await.unwrap();
        let names: Vec<String> = self.history.locks.iter().map(Lock::full_key).collect();
        for name in listed.listed() {
            assert!(
                names.iter().any(|known| known == name),
                "{name} was never requested"
            );
        }
        for lock in 0..LOCKS {
            let is_free = self.check_status(&mut connection, lock).await;
            if is_free {
                self.repeat_the_release(&mut connection, lock).await;
            } else {
                self.checked += 1;
            }
        }
        self.wait_for_the_next_to_end(&mut connection).await;
        self.history.set_baseline();
    }

    /// Checks the status of a lock against its history. Whether it is free.
    async fn check_status(&mut self, connection: &mut Connection, lock: usize) -> bool {
        let from = Instant::now();
        let request = self.history.locks[lock].status();
        let answer = connection.call(&request).await.unwrap();
        let to = Instant::now();
        let outcome = match answer.holder() {
            None => Outcome::Free,
            Some(shown) => Outcome::Held {
                shown,
                acquired_at: answer.acquired_at(),
            },
        };
        let is_free = outcome == Outcome::Free;
        let observed = self.history.observe(Operation {
            caller: CALLERS,
            start: self.history.starts,
            lock,
            owner: "the test".to_owned(),
            action: Action::Status,
            span: Span { from, to },
            outcome,
        });
        if let Some(found) = self.expect(observed) {
            self.callers[found.caller].learn(&found);
        }
        is_free
    }

    /// Repeats a release that was acknowledged. It does not succeed again; that it was a release is lost with the crash.
    async fn repeat_the_release(&mut self, connection: &mut Connection, lock: usize) {
        let Some((release, fence)) = self.history.last_release(lock) else {
            return;
        };
        let again = self.history.locks[lock].release(&release.owner, fence);
        let answer = connection.call(&again).await.unwrap();
        let forgotten = [Some("LOCK_NOT_FOUND"), Some("LOCK_OWNERSHIP_MISMATCH")];
        assert!(forgotten.contains(&answer.code()), "{again}: {answer:?}");
        self.repeated += 1;
    }

    /// Checks that a few leases that expire soon are held until then, and no longer.
    async fn wait_for_the_next_to_end(&mut self, connection: &mut Connection) {
        let soon = Instant::now() + Duration::from_millis(300);
        let is_next = |history: &History, lock: &usize| {
            let last = history.leases(*lock).ok().and_then(|mut all| all.pop());
            last.is_some_and(|lease| (Instant::now()..soon).contains(&lease.ends().to))
        };
        let next = (0..LOCKS).filter(|lock| is_next(&self.history, lock));
        for lock in next.take(3).collect::<Vec<_>>() {
            while !self.check_status(connection, lock).await {
                sleep(Duration::from_millis(10)).await;
            }
            self.waited_for += 1;
        }
    }

    fn expect<T>(&self, checked: Result<T, String>) -> T {
        checked.unwrap_or_else(|what| {
            panic!(
                "FORRST_SEED={}\n{what}\nThe log:\n{}",
                self.seed,
                self.folder.log()
            )
        })
    }
}
