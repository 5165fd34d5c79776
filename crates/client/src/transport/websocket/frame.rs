//! JSON-RPC 2.0 frames, each of which carries one request or answer.

use forrst_protocol::{Request, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;
use crate::transport::wire::{self, Answer};

#[derive(Serialize)]
struct RequestFrame<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: &'a Request<'a>,
}

/// The frame that carries a request.
pub(super) fn write(id: u64, request: &Request<'_>) -> Result<String, serde_json::Error> {
    serde_json::to_string(&RequestFrame {
        jsonrpc: "2.0",
        id,
        method: "forrst.call",
        params: request,
    })
}

/// Reads a frame of the server.
pub(super) fn read(text: &str) -> wire::Incoming {
    match serde_json::from_str::<AnswerFrame<'_>>(text) {
        Ok(frame) => wire::Incoming::Answer {
            number: frame.id,
            answer: frame.into_answer(),
        },
        Err(error) => {
            tracing::warn!(%error, "a server sent something that is not JSON-RPC");
            wire::Incoming::Other
        }
    }
}

#[derive(Deserialize)]
struct AnswerFrame<'a> {
    /// Which request it answers; `None` when the server could not read that.
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<FrameError>,
}

#[derive(Deserialize)]
struct FrameError {
    code: i64,
    message: String,
}

impl AnswerFrame<'_> {
    /// The Forrst answer, or the error of the frame.
    fn into_answer(self) -> Answer {
        let error = match (self.result, self.error) {
            (Some(result), None) => {
                let answer = Response::parse(result.get().as_bytes());
                return answer.map_err(|why| Error::Protocol(why.into()));
            }
            (_, Some(error)) => format!("JSON-RPC error {}: {}", error.code, error.message),
            (None, None) => "the JSON-RPC frame has neither a result nor an error".to_owned(),
        };
        Err(Error::Protocol(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_params_of_a_call() {
        let request = Request::new("r".parse().unwrap(), "a.b".parse().unwrap());
        assert_eq!(
            write(7, &request).unwrap(),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"method":"forrst.call","params":{"protocol":{"name":"forrst","#,
                r#""version":"0.1.0"},"id":"r","call":{"function":"a.b","arguments":{}}}}"#
            )
        );
    }

    #[test]
    fn a_frame_has_an_answer_or_an_error() {
        let answer = |text: &str| match read(text) {
            wire::Incoming::Answer { number, answer } => (number, answer),
            wire::Incoming::Other => panic!("{text} is an answer"),
        };
        let good = r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"r","result":{"a":1}}"#;
        let (number, good) = answer(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{good}}}"#));
        assert_eq!(number, Some(1));
        assert_eq!(good.unwrap().result().unwrap().get(), r#"{"a":1}"#);
        for (text, says) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}"#,
                "JSON-RPC error -32600: no",
            ),
            (r#"{"jsonrpc":"2.0","id":1}"#, "neither a result"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "protocol"),
        ] {
            let (number, bad) = answer(text);
            assert_eq!(number, Some(1));
            let error = bad.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(matches!(read("[]"), wire::Incoming::Other));
    }
}
