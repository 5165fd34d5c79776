//! JSON-RPC 2.0 frames.

use forrst_protocol::Request;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Serialize)]
struct Outgoing<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: &'a Request<'a>,
}

/// The frame that carries a request.
pub(super) fn write(id: u64, request: &Request<'_>) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Outgoing {
        jsonrpc: "2.0",
        id,
        method: "forrst.call",
        params: request,
    })
}

/// A frame that came in.
#[derive(Deserialize)]
pub(super) struct Incoming<'a> {
    /// Which request it answers; none when the server could not read that.
    pub(super) id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<FrameError>,
}

#[derive(Deserialize)]
struct FrameError {
    code: i64,
    message: String,
}

impl<'a> Incoming<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The Forrst answer, or what the server did not like about the frame.
    pub(super) fn into_answer(self) -> Result<Box<RawValue>, String> {
        match (self.result, self.error) {
            (Some(result), None) => Ok(result.to_owned()),
            (_, Some(error)) => Err(format!("JSON-RPC error {}: {}", error.code, error.message)),
            (None, None) => Err("a JSON-RPC frame without result and error".to_owned()),
        }
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
    fn answers_are_results_or_errors_of_the_frame() {
        let answer = |text| Incoming::read(text).unwrap().into_answer();
        let good = answer(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#).unwrap();
        assert_eq!(good.get(), r#"{"a":1}"#);
        let bad = answer(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}"#);
        assert_eq!(bad.unwrap_err(), "JSON-RPC error -32600: no");
        assert!(answer(r#"{"jsonrpc":"2.0","id":1}"#).is_err());
        assert!(Incoming::read("[]").is_err());
    }
}
