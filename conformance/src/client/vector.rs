//! A vector for clients, as it is written in its file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::reply::{Reply, ReplyFile};
use crate::pattern::{Pattern, PatternError};

/// What a client is told to do, how the server behaves meanwhile, and what has to come of it.
#[derive(Debug, Clone)]
pub struct ClientVector {
    /// The name of its file, which says what is tested.
    pub name: String,
    /// The statement of `docs/protocol.md` that it comes from.
    pub source: String,
    /// What it shows, in one sentence.
    pub about: String,
    /// The features that not every client has.
    pub needs: Vec<String>,
    /// The settings of the client.
    pub client: Map<String, Value>,
    /// What the client is told to do, step by step.
    pub actions: Vec<Value>,
    pub(super) outcome: Pattern,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) starts_down: Option<Duration>,
    pub(super) closes_connections: u32,
    pub(super) quiet: Duration,
}

/// Requests to one function, and the reply to each.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    /// The short name of the function.
    pub(super) on: String,
    pub(super) at_least: u32,
    pub(super) at_most: Option<u32>,
    pub(super) request: Pattern,
    /// Variable names, each with the pointer of its value in the view of the request.
    pub(super) capture: BTreeMap<String, String>,
    pub(super) reply: Reply,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorFile {
    name: String,
    source: String,
    about: String,
    #[serde(default)]
    needs: Vec<String>,
    #[serde(default)]
    client: Map<String, Value>,
    r#do: Vec<Value>,
    server: Vec<ExchangeFile>,
    outcome: Vec<Value>,
    starts_down_ms: Option<u64>,
    #[serde(default)]
    closes_connections: u32,
    #[serde(default)]
    quiet_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExchangeFile {
    on: String,
    times: Option<Times>,
    request: Option<Value>,
    #[serde(default)]
    capture: BTreeMap<String, String>,
    reply: ReplyFile,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Times {
    Exactly(u32),
    Between(u32, Option<u32>),
}

/// What is wrong with a vector.
#[derive(Debug, thiserror::Error)]
pub(super) enum Reason {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error("{0}")]
    Shape(String),
}

impl ClientVector {
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, Reason> {
        let file: VectorFile = serde_json::from_str(text)?;
        if file.name != name {
            return Err(Reason::Shape(format!("`name` is {:?}", file.name)));
        }
        if file.r#do.len() != file.outcome.len() {
            let why = "`outcome` needs one entry for each entry of `do`";
            return Err(Reason::Shape(why.to_owned()));
        }
        Ok(Self {
            name: file.name,
            source: file.source,
            about: file.about,
            needs: file.needs,
            client: file.client,
            actions: file.r#do,
            outcome: Pattern::parse(&Value::Array(file.outcome))?,
            exchanges: file
                .server
                .into_iter()
                .map(exchange)
                .collect::<Result<_, _>>()?,
            starts_down: file.starts_down_ms.map(Duration::from_millis),
            closes_connections: file.closes_connections,
            quiet: Duration::from_millis(file.quiet_ms),
        })
    }
}

fn exchange(file: ExchangeFile) -> Result<Exchange, Reason> {
    let (at_least, at_most) = match file.times {
        None => (1, Some(1)),
        Some(Times::Exactly(times)) => (times, Some(times)),
        Some(Times::Between(least, most)) => (least, most),
    };
    Ok(Exchange {
        on: file.on,
        at_least,
        at_most,
        request: Pattern::parse(&file.request.unwrap_or(Value::Object(Map::new())))?,
        capture: file.capture,
        reply: Reply::try_from(file.reply).map_err(Reason::Shape)?,
    })
}
