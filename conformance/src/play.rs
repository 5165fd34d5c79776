//! Plays the steps of one vector over one transport.
//!
//! Steps run in order and share the variables that they capture; the first step that fails ends the vector.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::check::{Checked, Sent, check};
use crate::mismatch::{Mismatch, shortened, shown};
use crate::rules::Id;
use crate::template::{self, TemplateError, Variables};
use crate::transport::{Answer, Exchange, ExchangeError, Servers, Wire};
use crate::vector::{Action, Capture, Count, Expect, Message, Profile, Step, Transport, Vector};

/// The pause before a step with `until_ms` is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How long a WebSocket has to stay silent to count as one that does not answer.
const SILENCE: Duration = Duration::from_millis(500);

/// Why a vector failed.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// Which step, counted from 1.
    pub step: usize,
    /// What the step is for, where the vector says so.
    pub about: Option<String>,
    /// What was sent.
    pub request: String,
    /// What the vector expects, as written in its file.
    pub expected: Value,
    /// What was received.
    pub answer: String,
    /// The differences between the two.
    pub mismatches: Vec<Mismatch>,
}

/// How a vector is played.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) transport: Transport,
    /// Which rules hold for every answer.
    pub(crate) profile: Profile,
    /// How long to wait for each answer.
    pub(crate) patience: Duration,
}

/// Plays a vector to its end, or to the first step that fails.
pub(crate) async fn play(vector: &Vector, servers: &Servers, how: How) -> Result<(), Failure> {
    let mut player = Player {
        client: Client {
            servers: servers.restarted(),
            how,
        },
        variables: Variables::from([("unique".to_owned(), Value::from(unique()))]),
        started: HashMap::new(),
    };
    for (index, step) in vector.steps.iter().enumerate() {
        player.step(step).await.map_err(|failure| Failure {
            step: index + 1,
            about: step.about.clone(),
            request: failure.request,
            expected: failure.expected,
            answer: failure.answer,
            mismatches: failure.mismatches,
        })?;
    }
    Ok(())
}

/// Twelve random characters, so that runs on a shared server do not use the same keys.
fn unique() -> String {
    let mut random = fastrand::Rng::new();
    let characters = std::iter::repeat_with(|| match random.u8(0..36) {
        digit @ 0..10 => char::from(b'0' + digit),
        letter => char::from(b'a' + letter - 10),
    });
    characters.take(12).collect()
}

/// Why a step failed.
#[derive(Debug, Default)]
struct StepFailure {
    request: String,
    expected: Value,
    answer: String,
    mismatches: Vec<Mismatch>,
}

struct Player {
    client: Client,
    variables: Variables,
    started: HashMap<String, Started>,
}

struct Started {
    outgoing: Outgoing,
    exchange: Exchange,
}

impl Player {
    async fn step(&mut self, step: &Step) -> Result<(), StepFailure> {
        match &step.action {
            Action::Sleep(time) => {
                sleep(*time).await;
                Ok(())
            }
            Action::Send {
                message,
                expect,
                capture,
                until,
            } => self.send(message, expect, capture, *until).await,
            Action::Start { name, message } => self.start(name, message).await,
            Action::Await {
                name,
                expect,
                capture,
            } => self.finish(name, expect, capture).await,
            Action::HangUp { name } => {
                if let Some(started) = self.started.remove(name) {
                    started.exchange.close().await;
                }
                Ok(())
            }
            Action::Together {
                sends,
                times,
                counts,
            } => self.together(sends, *times, counts).await,
        }
    }

    async fn send(
        &mut self,
        message: &Message,
        expect: &Expect,
        capture: &Capture,
        until: Option<Duration>,
    ) -> Result<(), StepFailure> {
        let deadline = until.map(|until| Instant::now() + until);
        // Servers that share a store do not see a change at the same moment, so each of them has to confirm it.
        let mut confirmations_left = until.map_or(1, |_| self.client.servers.count());
        loop {
            let outgoing = self.client.outgoing(message, &self.variables);
            let result = self.client.send(outgoing, expect, &self.variables).await;
            let may_retry = deadline.is_some_and(|deadline| Instant::now() < deadline);
            match result {
                Ok(_) if confirmations_left > 1 => confirmations_left -= 1,
                Ok(body) => return self.capture(capture, body.as_ref()),
                Err(_) if may_retry => {
                    confirmations_left = self.client.servers.count();
                    sleep(RETRY_PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn start(&mut self, name: &str, message: &Message) -> Result<(), StepFailure> {
        let outgoing = self
            .client
            .outgoing(message, &self.variables)
            .map_err(StepFailure::from)?;
        let exchange = self
            .client
            .open(&outgoing)
            .await
            .map_err(|error| outgoing.failed(&Expect::default(), &error))?;
        let started = Started { outgoing, exchange };
        self.started.insert(name.to_owned(), started);
        Ok(())
    }

    async fn finish(
        &mut self,
        name: &str,
        expect: &Expect,
        capture: &Capture,
    ) -> Result<(), StepFailure> {
        // `Vector::parse` has checked that the step was started.
        let Some(Started { outgoing, exchange }) = self.started.remove(name) else {
            return Ok(());
        };
        let body = self
            .client
            .receive(&outgoing, exchange, expect, &self.variables)
            .await?;
        self.capture(capture, body.as_ref())
    }

    async fn together(
        &mut self,
        sends: &[(Message, Expect)],
        times: usize,
        counts: &[Count],
    ) -> Result<(), StepFailure> {
        let mut tasks = JoinSet::new();
        for index in 0..times {
            let mut variables = self.variables.clone();
            variables.insert("index".to_owned(), Value::from(index));
            for (message, expect) in sends {
                let outgoing = self.client.outgoing(message, &variables);
                let (client, expect, variables) =
                    (self.client.clone(), expect.clone(), variables.clone());
                tasks.spawn(async move { client.send(outgoing, &expect, &variables).await });
            }
        }
        let mut bodies = Vec::new();
        while let Some(result) = tasks.join_next().await {
            bodies.push(result.unwrap_or_else(|error| Err(StepFailure::from(error)))?);
        }
        self.count(&bodies, counts)
    }

    fn count(&self, bodies: &[Option<Value>], counts: &[Count]) -> Result<(), StepFailure> {
        let mismatches: Vec<Mismatch> = counts
            .iter()
            .filter_map(|Count { body, exactly }| {
                let matching = bodies
                    .iter()
                    .filter(|found| body.mismatches(found.as_ref(), &self.variables).is_empty())
                    .count();
                (matching != *exactly).then(|| {
                    let expected = format!("{exactly} answers {body}");
                    Mismatch::new("counts", expected, matching.to_string())
                })
            })
            .collect();
        if mismatches.is_empty() {
            return Ok(());
        }
        let answers: Vec<String> = bodies.iter().map(|body| shown(body.as_ref())).collect();
        Err(StepFailure {
            answer: shortened(&answers.join("\n")),
            mismatches,
            ..StepFailure::default()
        })
    }

    fn capture(&mut self, capture: &Capture, body: Option<&Value>) -> Result<(), StepFailure> {
        for (name, pointer) in capture {
            let found = body.and_then(|body| body.pointer(pointer));
            let Some(value) = found else {
                return Err(StepFailure {
                    answer: shown(body),
                    mismatches: vec![Mismatch::new(pointer, "something to capture", "nothing")],
                    ..StepFailure::default()
                });
            };
            self.variables.insert(name.clone(), value.clone());
        }
        Ok(())
    }
}

/// A message with its variables filled in, and what is needed to check its answer.
#[derive(Debug, Clone)]
struct Outgoing {
    message: Message,
    wire: Wire,
    id: Id,
}

impl Outgoing {
    fn failed(&self, expect: &Expect, error: &ExchangeError) -> StepFailure {
        StepFailure {
            request: shortened(&self.wire.shown()),
            expected: expect.as_written.clone(),
            answer: error.to_string(),
            mismatches: vec![Mismatch::new("", "an answer", error.to_string())],
        }
    }
}

/// Sends messages to the servers over one transport, and checks the answers.
#[derive(Debug, Clone)]
struct Client {
    servers: Servers,
    how: How,
}

impl Client {
    fn outgoing(
        &self,
        message: &Message,
        variables: &Variables,
    ) -> Result<Outgoing, TemplateError> {
        Ok(Outgoing {
            message: message.clone(),
            wire: Wire::from_message(message, self.how.transport, variables)?,
            id: match message {
                Message::Envelope(envelope) => {
                    Id::expected_for(&template::fill(envelope, variables)?)
                }
                _ => Id::Unknown,
            },
        })
    }

    async fn open(&self, outgoing: &Outgoing) -> Result<Exchange, ExchangeError> {
        let opening = self.servers.open(outgoing.wire.clone());
        let in_time = tokio::time::timeout(self.how.patience, opening).await;
        in_time.unwrap_or(Err(ExchangeError::TimedOut(self.how.patience)))
    }

    async fn send(
        &self,
        outgoing: Result<Outgoing, TemplateError>,
        expect: &Expect,
        variables: &Variables,
    ) -> Result<Option<Value>, StepFailure> {
        let outgoing = outgoing?;
        let exchange = self
            .open(&outgoing)
            .await
            .map_err(|error| outgoing.failed(expect, &error))?;
        self.receive(&outgoing, exchange, expect, variables).await
    }

    async fn receive(
        &self,
        outgoing: &Outgoing,
        exchange: Exchange,
        expect: &Expect,
        variables: &Variables,
    ) -> Result<Option<Value>, StepFailure> {
        let expects_silence = expect.nothing && self.how.transport == Transport::Ws;
        let patience = if expects_silence {
            SILENCE
        } else {
            self.how.patience
        };
        let answer = match exchange.answer(patience).await {
            Err(ExchangeError::TimedOut(_)) if expects_silence => Answer::default(),
            answer => answer.map_err(|error| outgoing.failed(expect, &error))?,
        };
        let sent = Sent {
            message: &outgoing.message,
            transport: self.how.transport,
            profile: self.how.profile,
            id: outgoing.id.clone(),
        };
        let Checked { body, mismatches } = check(&sent, expect, &answer, variables);
        if mismatches.is_empty() {
            return Ok(body);
        }
        Err(StepFailure {
            request: shortened(&outgoing.wire.shown()),
            expected: expect.as_written.clone(),
            answer: describe(&answer),
            mismatches,
        })
    }
}

fn describe(answer: &Answer) -> String {
    let body = String::from_utf8_lossy(&answer.body);
    match answer.status {
        Some(status) => format!("HTTP {status} {}", shortened(&body)),
        None => shortened(&body),
    }
}

impl From<TemplateError> for StepFailure {
    fn from(error: TemplateError) -> Self {
        Self {
            mismatches: vec![Mismatch::new(
                "",
                "a request that can be sent",
                error.to_string(),
            )],
            ..Self::default()
        }
    }
}

impl From<tokio::task::JoinError> for StepFailure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self {
            mismatches: vec![Mismatch::new("", "an answer", error.to_string())],
            ..Self::default()
        }
    }
}
