//! A vector: one case, as its file has it.

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pattern::{Pattern, PatternError};
use crate::template::{Template, TemplateError};

/// A way to reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// `POST /forrst`.
    Http,
    /// JSON-RPC 2.0, `POST /rpc`.
    Rpc,
    /// JSON-RPC 2.0 over a WebSocket on `/rpc`.
    Ws,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Http, Self::Rpc, Self::Ws];

    /// Its name in vectors and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Rpc => "rpc",
            Self::Ws => "ws",
        }
    }
}

/// One case.
#[derive(Debug)]
pub struct Vector {
    /// The folder it lies in: a section of the contract.
    pub group: String,
    /// Its file's name without `.json`, which says the reason it is there.
    pub name: String,
    /// Which line of the contract, or which text, it comes from.
    pub source: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// The transports it makes sense for.
    pub transports: Vec<Transport>,
    /// Whether it uses names that others use too, so that nothing else may run beside it.
    pub alone: bool,
    pub(crate) steps: Vec<Step>,
}

/// Why a file is no vector.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// It is no JSON of the right shape.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It says one thing in its name and another in its content, or the like.
    #[error("{0}")]
    Vector(String),
    /// A step makes no sense.
    #[error("step {number}: {reason}")]
    Step {
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        reason: StepError,
    },
}

/// Why a step makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// It says what cannot be said together, or leaves out what is needed.
    #[error("{0}")]
    Shape(&'static str),
    /// It waits for or hangs up what is not under way, or never does so.
    #[error("{0}")]
    Started(String),
    /// Its `expect` has a field that means nothing, or one of the wrong type.
    #[error("`expect`: {0}")]
    Expect(serde_json::Error),
    /// A pattern of its expectation is none.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A `${…}` in its request means nothing.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Its `body_base64` is none.
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
}

impl Vector {
    /// Reads the file `group/name.json`.
    pub fn parse(group: &str, name: &str, text: &str) -> Result<Self, VectorError> {
        file::vector(group, name, text)
    }

    /// `group/name`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) about: Option<String>,
    pub(crate) action: Action,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    Send {
        message: Message,
        expect: Expect,
        capture: Capture,
        /// Send again until the expectation holds, for at most so long.
        until: Option<Duration>,
    },
    Start {
        name: String,
        message: Message,
    },
    Await {
        name: String,
        expect: Expect,
        capture: Capture,
    },
    HangUp {
        name: String,
    },
    Sleep(Duration),
    Together {
        sends: Vec<(Message, Expect)>,
        times: usize,
        counts: Vec<Count>,
    },
}

/// Variables by name, each with the JSON pointer to where its value stands in the answer.
pub(crate) type Capture = BTreeMap<String, String>;

/// What is sent.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// A Forrst request, over whichever transport.
    Envelope(Value),
    /// The same, letter by letter.
    EnvelopeText(Template),
    /// An HTTP request as it stands.
    Http(HttpMessage),
    /// A JSON-RPC frame as it stands.
    Frame(Value),
    /// The same, letter by letter.
    FrameText(Template),
}

#[derive(Debug, Clone)]
pub(crate) struct HttpMessage {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, Template>,
    pub(crate) body: HttpBody,
}

#[derive(Debug, Clone)]
pub(crate) enum HttpBody {
    Text(Template),
    Bytes(Vec<u8>),
}

/// What an answer must be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expect {
    pub(crate) status: Option<u16>,
    pub(crate) headers: Vec<(String, Pattern)>,
    pub(crate) body: Option<Pattern>,
    /// No answer at all.
    pub(crate) nothing: bool,
    pub(crate) at_least: Option<Duration>,
    pub(crate) at_most: Option<Duration>,
    /// As it stands in the file, for reports.
    pub(crate) as_written: Value,
}

/// How many answers of several must match.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    pub(crate) body: Pattern,
    pub(crate) exactly: usize,
}
