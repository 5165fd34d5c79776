//! Parses the steps of a vector. Every mistake in a step is found here, before anything is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Action, Capture, Count, Expect, HttpBody, HttpMessage, Message, Step, StepError, VectorError,
};
use crate::pattern::Pattern;
use crate::template::{self, Template};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFile {
    about: Option<String>,
    call: Option<Value>,
    context: Option<Value>,
    extensions: Option<Value>,
    request: Option<Value>,
    text: Option<String>,
    http: Option<HttpFile>,
    rpc: Option<Value>,
    rpc_text: Option<String>,
    start: Option<String>,
    r#await: Option<String>,
    hang_up: Option<String>,
    sleep_ms: Option<u64>,
    together: Option<Vec<StepFile>>,
    times: Option<usize>,
    counts: Option<Vec<CountFile>>,
    until_ms: Option<u64>,
    expect: Option<Value>,
    capture: Option<Capture>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpFile {
    #[serde(default = "post")]
    method: String,
    #[serde(default = "forrst")]
    path: String,
    headers: Option<BTreeMap<String, String>>,
    body: Option<String>,
    body_base64: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectFile {
    status: Option<u16>,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
    body: Option<Value>,
    #[serde(default)]
    nothing: bool,
    at_least_ms: Option<u64>,
    at_most_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CountFile {
    body: Value,
    exactly: usize,
}

fn post() -> String {
    "POST".to_owned()
}

fn forrst() -> String {
    "/forrst".to_owned()
}

pub(super) fn steps(files: Vec<Value>) -> Result<Vec<Step>, VectorError> {
    let mut in_flight = BTreeSet::new();
    let mut steps = Vec::new();
    for (index, file) in files.into_iter().enumerate() {
        let number = index + 1;
        let step = serde_json::from_value(file)
            .map_err(StepError::Json)
            .and_then(|file| step(file, number))
            .and_then(|step| {
                track(&step.action, &mut in_flight)?;
                Ok(step)
            })
            .map_err(|reason| VectorError::Step { number, reason })?;
        steps.push(step);
    }
    if steps.is_empty() {
        return Err(VectorError::Vector("there are no steps".to_owned()));
    }
    match in_flight.pop_first() {
        None => Ok(steps),
        Some(name) => Err(VectorError::Vector(format!(
            "`{name}` is started, but there is no `await` or `hang_up` for it"
        ))),
    }
}

/// A started step has to be awaited or disconnected, and only a started step can be.
fn track(action: &Action, in_flight: &mut BTreeSet<String>) -> Result<(), StepError> {
    match action {
        Action::Start { name, .. } if !in_flight.insert(name.clone()) => {
            Err(StepError::Started(format!("`{name}` is started twice")))
        }
        Action::Await { name, .. } | Action::HangUp { name } if !in_flight.remove(name) => {
            Err(StepError::Started(format!("`{name}` has not been started")))
        }
        _ => Ok(()),
    }
}

fn step(mut file: StepFile, number: usize) -> Result<Step, StepError> {
    let about = file.about.take();
    let action = match message(&mut file, number)? {
        Some(message) => sending_action(message, &mut file)?,
        None => other_action(&mut file, number)?,
    };
    if file.has_unused_fields() {
        return Err(StepError::Shape("its fields do not go together"));
    }
    Ok(Step { about, action })
}

fn sending_action(message: Message, file: &mut StepFile) -> Result<Action, StepError> {
    if let Some(name) = file.start.take() {
        return Ok(Action::Start { name, message });
    }
    Ok(Action::Send {
        message,
        expect: expectation(file)?,
        capture: file.capture.take().unwrap_or_default(),
        until: file.until_ms.take().map(Duration::from_millis),
    })
}

fn other_action(file: &mut StepFile, number: usize) -> Result<Action, StepError> {
    if let Some(name) = file.r#await.take() {
        return Ok(Action::Await {
            name,
            expect: expectation(file)?,
            capture: file.capture.take().unwrap_or_default(),
        });
    }
    if let Some(name) = file.hang_up.take() {
        return Ok(Action::HangUp { name });
    }
    if let Some(ms) = file.sleep_ms.take() {
        return Ok(Action::Sleep(Duration::from_millis(ms)));
    }
    if let Some(steps) = file.together.take() {
        return Ok(Action::Together {
            sends: steps
                .into_iter()
                .map(|step| together(step, number))
                .collect::<Result<_, StepError>>()?,
            times: file.times.take().unwrap_or(1),
            counts: counts(file.counts.take().unwrap_or_default())?,
        });
    }
    Err(StepError::Shape("it has no action"))
}

fn together(file: StepFile, number: usize) -> Result<(Message, Expect), StepError> {
    match step(file, number)?.action {
        Action::Send {
            message,
            expect,
            capture,
            until: None,
        } if capture.is_empty() => Ok((message, expect)),
        _ => Err(StepError::Shape("steps of `together` only send and expect")),
    }
}

fn message(file: &mut StepFile, number: usize) -> Result<Option<Message>, StepError> {
    let mut found = Vec::new();
    if let Some(call) = file.call.take() {
        found.push(Message::Envelope(envelope(&call, file, number)));
    }
    if let Some(request) = file.request.take() {
        found.push(Message::Envelope(request));
    }
    if let Some(text) = file.text.take() {
        found.push(Message::EnvelopeText(Template::parse(&text)?));
    }
    if let Some(http) = file.http.take() {
        found.push(Message::Http(http_message(http)?));
    }
    if let Some(frame) = file.rpc.take() {
        found.push(Message::Frame(frame));
    }
    if let Some(text) = file.rpc_text.take() {
        found.push(Message::FrameText(Template::parse(&text)?));
    }
    if let Some(Message::Envelope(value) | Message::Frame(value)) = found.first() {
        template::check(value)?;
    }
    let message = found.pop();
    if found.is_empty() {
        Ok(message)
    } else {
        Err(StepError::Shape("it sends more than one message"))
    }
}

/// The default envelope around a call.
fn envelope(call: &Value, file: &mut StepFile, number: usize) -> Value {
    let mut envelope = json!({
        "protocol": { "name": "forrst", "version": "0.1.0" },
        "id": format!("${{unique}}-{number}"),
        "call": call,
    });
    if let Some(context) = file.context.take() {
        envelope["context"] = context;
    }
    if let Some(extensions) = file.extensions.take() {
        envelope["extensions"] = extensions;
    }
    envelope
}

fn http_message(file: HttpFile) -> Result<HttpMessage, StepError> {
    let headers = file
        .headers
        .unwrap_or_else(|| BTreeMap::from([("content-type".into(), "application/json".into())]))
        .into_iter()
        .map(|(name, value)| Ok((name, Template::parse(&value)?)))
        .collect::<Result<_, StepError>>()?;
    let body = match (file.body, file.body_base64) {
        (Some(_), Some(_)) => return Err(StepError::Shape("it has both `body` and `body_base64`")),
        (None, Some(encoded)) => HttpBody::Bytes(STANDARD.decode(encoded)?),
        (body, None) => HttpBody::Text(Template::parse(&body.unwrap_or_default())?),
    };
    Ok(HttpMessage {
        method: file.method,
        path: file.path,
        headers,
        body,
    })
}

fn expectation(file: &mut StepFile) -> Result<Expect, StepError> {
    let as_written = file
        .expect
        .take()
        .ok_or(StepError::Shape("it has no `expect`; write at least `{}`"))?;
    let file: ExpectFile = serde_json::from_value(as_written.clone()).map_err(StepError::Expect)?;
    if file.nothing && file.body.is_some() {
        return Err(StepError::Shape("it expects both a body and no answer"));
    }
    Ok(Expect {
        status: file.status,
        headers: file
            .headers
            .iter()
            .map(|(name, value)| Ok((name.to_ascii_lowercase(), Pattern::parse(value)?)))
            .collect::<Result<_, StepError>>()?,
        body: file.body.as_ref().map(Pattern::parse).transpose()?,
        nothing: file.nothing,
        at_least: file.at_least_ms.map(Duration::from_millis),
        at_most: file.at_most_ms.map(Duration::from_millis),
        as_written,
    })
}

fn counts(files: Vec<CountFile>) -> Result<Vec<Count>, StepError> {
    files
        .into_iter()
        .map(|file| {
            Ok(Count {
                body: Pattern::parse(&file.body)?,
                exactly: file.exactly,
            })
        })
        .collect()
}

impl StepFile {
    /// Whether fields are left that the step's action does not use.
    fn has_unused_fields(&self) -> bool {
        let Self {
            about: _,
            call,
            context,
            extensions,
            request,
            text,
            http,
            rpc,
            rpc_text,
            start,
            r#await,
            hang_up,
            sleep_ms,
            together,
            times,
            counts,
            until_ms,
            expect,
            capture,
        } = self;
        let values = [call, context, extensions, request, rpc, expect];
        let texts = [text, rpc_text, start, r#await, hang_up];
        values.iter().any(|value| value.is_some())
            || texts.iter().any(|text| text.is_some())
            || http.is_some()
            || sleep_ms.is_some()
            || until_ms.is_some()
            || together.is_some()
            || times.is_some()
            || counts.is_some()
            || capture.is_some()
    }
}
