//! A message as it is sent: variables are filled in, and the envelope is in the frame of its transport.

use serde_json::{Value, json};

use crate::template::{self, TemplateError, Variables};
use crate::vector::{HttpBody, HttpMessage, Message, Transport};

/// A message with all variables filled in.
#[derive(Debug, Clone)]
pub(crate) enum Wire {
    Http(HttpRequest),
    Ws(String),
}

#[derive(Debug, Clone)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// The id of the JSON-RPC frames in which the runner sends envelopes.
pub(crate) const FRAME_ID: u64 = 1;

impl Wire {
    pub(crate) fn from_message(
        message: &Message,
        transport: Transport,
        variables: &Variables,
    ) -> Result<Self, TemplateError> {
        Ok(match message {
            Message::Envelope(value) => {
                Self::envelope(&template::fill(value, variables)?.to_string(), transport)
            }
            Message::EnvelopeText(text) => Self::envelope(&text.fill_text(variables)?, transport),
            Message::Frame(value) => {
                Self::frame(template::fill(value, variables)?.to_string(), transport)
            }
            Message::FrameText(text) => Self::frame(text.fill_text(variables)?, transport),
            Message::Http(message) => Self::Http(HttpRequest::from_message(message, variables)?),
        })
    }

    /// The text is put into the frame verbatim, so that invalid JSON reaches the server.
    fn envelope(text: &str, transport: Transport) -> Self {
        if transport == Transport::Http {
            return Self::Http(HttpRequest::json("/forrst", text.to_owned()));
        }
        let method = json!("forrst.call");
        let frame =
            format!(r#"{{"jsonrpc":"2.0","id":{FRAME_ID},"method":{method},"params":{text}}}"#);
        Self::frame(frame, transport)
    }

    fn frame(text: String, transport: Transport) -> Self {
        if transport == Transport::Ws {
            Self::Ws(text)
        } else {
            Self::Http(HttpRequest::json("/rpc", text))
        }
    }

    /// Whether it calls the demo function that has state. This searches the bytes, because the message need not be valid JSON.
    pub(crate) fn calls_the_counter(&self) -> bool {
        let text = match self {
            Self::Ws(text) => text.as_bytes(),
            Self::Http(request) => &request.body,
        };
        let call = br#""function":"demo.counter""#;
        text.windows(call.len()).any(|window| window == call)
    }

    /// The message as it is printed in reports.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Ws(text) => format!("WebSocket /rpc {text}"),
            Self::Http(request) => format!(
                "{} {} {}",
                request.method,
                request.path,
                String::from_utf8_lossy(&request.body)
            ),
        }
    }
}

impl HttpRequest {
    fn json(path: &str, text: String) -> Self {
        Self {
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: text.into_bytes(),
        }
    }

    fn from_message(message: &HttpMessage, variables: &Variables) -> Result<Self, TemplateError> {
        Ok(Self {
            method: message.method.clone(),
            path: message.path.clone(),
            headers: message
                .headers
                .iter()
                .map(|(name, value)| Ok((name.clone(), value.fill_text(variables)?)))
                .collect::<Result<_, TemplateError>>()?,
            body: match &message.body {
                HttpBody::Bytes(bytes) => bytes.clone(),
                HttpBody::Text(text) => text.fill_text(variables)?.into_bytes(),
            },
        })
    }
}

/// The Forrst response in the answer to a frame of the runner.
pub(crate) fn unframed(frame: &Value) -> Option<&Value> {
    let members = frame.as_object()?;
    let is_answer = members.get("jsonrpc")? == "2.0"
        && *members.get("id")? == FRAME_ID
        && !members.contains_key("error");
    members.get("result").filter(|_| is_answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Template;

    fn shown(message: &Message, transport: Transport) -> String {
        let variables = Variables::from([("x".to_owned(), json!("y"))]);
        Wire::from_message(message, transport, &variables)
            .unwrap()
            .shown()
    }

    #[test]
    fn an_envelope_goes_bare_over_http_and_framed_over_json_rpc() {
        let message = Message::Envelope(json!({"id": "${x}"}));
        assert_eq!(
            shown(&message, Transport::Http),
            r#"POST /forrst {"id":"y"}"#
        );
        let frame = r#"{"jsonrpc":"2.0","id":1,"method":"forrst.call","params":{"id":"y"}}"#;
        assert_eq!(
            shown(&message, Transport::Rpc),
            format!("POST /rpc {frame}")
        );
        assert_eq!(
            shown(&message, Transport::Ws),
            format!("WebSocket /rpc {frame}")
        );
    }

    #[test]
    fn text_stays_as_it_is_written() {
        let message = Message::EnvelopeText(Template::parse(r#"{"a": 1, "a": 2}"#).unwrap());
        assert!(shown(&message, Transport::Ws).ends_with(r#""params":{"a": 1, "a": 2}}"#));
    }

    #[test]
    fn only_the_answer_to_our_frame_is_unframed() {
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": null});
        assert_eq!(unframed(&answer), Some(&Value::Null));
        for other in [
            json!({"jsonrpc": "2.0", "id": 2, "result": null}),
            json!({"id": 1, "result": null}),
            json!({"jsonrpc": "2.0", "id": 1, "error": {}}),
            json!({"jsonrpc": "2.0", "id": 1, "result": 1, "error": {}}),
            json!([]),
        ] {
            assert_eq!(unframed(&other), None, "{other}");
        }
    }
}
