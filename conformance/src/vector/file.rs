//! Parses the file of a vector, or of a table of cases.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::step::steps;
use super::table::Case;
use super::{Action, Expect, Message, Profile, Step, Transport, Vector, VectorError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorFile {
    name: String,
    source: String,
    about: String,
    transports: Option<Vec<Transport>>,
    #[serde(default)]
    alone: bool,
    #[serde(default)]
    profile: Profile,
    steps: Vec<Value>,
    cases: Option<Vec<Case>>,
}

pub(super) fn vectors(group: &str, name: &str, text: &str) -> Result<Vec<Vector>, VectorError> {
    let mut file: VectorFile = serde_json::from_str(text)?;
    if file.name != name {
        let reason = format!("`name` is {:?}, but the file is called {name:?}", file.name);
        return Err(VectorError::Vector(reason));
    }
    let Some(cases) = file.cases.take() else {
        return Ok(vec![vector(group, &file, None)?]);
    };
    let mut names = BTreeSet::new();
    let vector = |case: &Case| {
        if !names.insert(case.name.clone()) {
            return Err(VectorError::Vector("its name is repeated".to_owned()));
        }
        vector(group, &file, Some(case))
    };
    let in_case = |(case, vector): (&Case, Result<Vector, VectorError>)| {
        vector.map_err(|reason| VectorError::Case {
            name: case.name.clone(),
            reason: Box::new(reason),
        })
    };
    let vectors: Vec<_> = cases.iter().map(vector).collect();
    if vectors.is_empty() {
        return Err(VectorError::Vector("there are no cases".to_owned()));
    }
    cases.iter().zip(vectors).map(in_case).collect()
}

fn vector(group: &str, file: &VectorFile, case: Option<&Case>) -> Result<Vector, VectorError> {
    let written = match case {
        None => file.steps.clone(),
        Some(case) => case.steps(&file.steps).map_err(VectorError::Vector)?,
    };
    let steps = steps(written)?;
    let possible = possible_transports(&steps);
    let transports = file.transports.clone();
    let transports = transports.unwrap_or_else(|| possible.clone());
    if transports.is_empty()
        || !transports
            .iter()
            .all(|transport| possible.contains(transport))
    {
        let reason = format!("`transports` must be some of {possible:?}, because of its steps");
        return Err(VectorError::Vector(reason));
    }
    if file.profile == Profile::Core && steps.iter().any(|step| step.action.expects_http()) {
        let reason = "a vector of the profile `core` cannot expect a status or headers: the specification has none";
        return Err(VectorError::Vector(reason.to_owned()));
    }
    let name = case.map_or_else(
        || file.name.clone(),
        |case| format!("{}/{}", file.name, case.name),
    );
    let source = case.and_then(|case| case.source.as_ref());
    Ok(Vector {
        group: group.to_owned(),
        name,
        source: source.unwrap_or(&file.source).clone(),
        about: case.map_or(&file.about, |case| &case.about).clone(),
        transports,
        alone: file.alone,
        profile: file.profile,
        steps,
    })
}

fn possible_transports(steps: &[Step]) -> Vec<Transport> {
    let mut possible = Transport::ALL.to_vec();
    for message in steps.iter().flat_map(|step| step.action.messages()) {
        possible.retain(|transport| match message {
            Message::Envelope(_) | Message::EnvelopeText(_) => true,
            Message::Http(_) => *transport == Transport::Http,
            Message::Frame(_) | Message::FrameText(_) => *transport != Transport::Http,
        });
    }
    possible
}

impl Action {
    fn expects_http(&self) -> bool {
        let is_http = |expect: &Expect| expect.status.is_some() || !expect.headers.is_empty();
        match self {
            Self::Send { expect, .. } | Self::Await { expect, .. } => is_http(expect),
            Self::Together { sends, .. } => sends.iter().any(|(_, expect)| is_http(expect)),
            Self::Start { .. } | Self::HangUp { .. } | Self::Sleep(_) => false,
        }
    }

    fn messages(&self) -> Vec<&Message> {
        match self {
            Self::Send { message, .. } | Self::Start { message, .. } => vec![message],
            Self::Together { sends, .. } => sends.iter().map(|(message, _)| message).collect(),
            Self::Await { .. } | Self::HangUp { .. } | Self::Sleep(_) => Vec::new(),
        }
    }
}
