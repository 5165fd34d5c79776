//! A vector: one test case. The types here are the parsed form of a file, in which patterns and templates are valid.

mod file;
mod step;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pattern::{Pattern, PatternError};
use crate::template::{Template, TemplateError};

/// How requests are sent to the server.
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
    /// All transports.
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

/// What a vector asks of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Only what the published specification of atomicLock asks of any server.
    Core,
    /// What this contract adds to it.
    #[default]
    Extended,
}

/// One test case.
#[derive(Debug)]
pub struct Vector {
    /// Its folder: a section of the contract.
    pub group: String,
    /// The name of its file without `.json`, which says what it tests; for a case of a table, that and its own name: `table/case`.
    pub name: String,
    /// The line of the contract, or the other text, that it comes from.
    pub source: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// The transports that it runs over.
    pub transports: Vec<Transport>,
    /// Whether it uses fixed names, so that no other vector may run at the same time.
    pub alone: bool,
    /// Which servers it is for.
    pub profile: Profile,
    pub(crate) steps: Vec<Step>,
}

/// Why a file is not a vector.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// It is not JSON of the right shape.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The file as a whole is inconsistent: for example, its name differs from its `name`.
    #[error("{0}")]
    Vector(String),
    /// A case of a table is invalid.
    #[error("case `{name}`: {reason}")]
    Case {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: Box<VectorError>,
    },
    /// A step is invalid.
    #[error("step {number}: {reason}")]
    Step {
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        reason: StepError,
    },
}

/// Why a step is invalid.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// It has an unknown field, or one of the wrong type.
    #[error(transparent)]
    Json(serde_json::Error),
    /// Its fields do not go together, or one is missing.
    #[error("{0}")]
    Shape(&'static str),
    /// A step is started twice, or awaited or disconnected without having been started.
    #[error("{0}")]
    Started(String),
    /// Its `expect` has an unknown field, or one of the wrong type.
    #[error("`expect`: {0}")]
    Expect(serde_json::Error),
    /// A pattern in its `expect` is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A `${…}` in its request is invalid.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Its `body_base64` is not valid Base64.
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
}

impl Vector {
    /// Reads the file `group/name.json`: one vector, or one for each of its cases.
    pub fn parse(group: &str, name: &str, text: &str) -> Result<Vec<Self>, VectorError> {
        file::vectors(group, name, text)
    }

    /// `group/name`, or `group/table/case`.
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
        /// Send again until the expectation holds, for at most this long.
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

/// Variables by name, each with the JSON pointer of its value in the answer.
pub(crate) type Capture = BTreeMap<String, String>;

/// What is sent.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// A Forrst request, over any transport.
    Envelope(Value),
    /// The text of a Forrst request, sent verbatim.
    EnvelopeText(Template),
    /// An HTTP request, sent verbatim.
    Http(HttpMessage),
    /// A JSON-RPC frame.
    Frame(Value),
    /// The text of a JSON-RPC frame, sent verbatim.
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
    /// As written in the file, for reports.
    pub(crate) as_written: Value,
}

/// How many of several answers must match.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    pub(crate) body: Pattern,
    pub(crate) exactly: usize,
}
