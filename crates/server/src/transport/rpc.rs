//! JSON-RPC 2.0: `forrst.call` carries a Forrst request, `rpc.discover` describes the server.
//!
//! jsonrpsee has the methods. The frame is looked at before, because jsonrpsee takes a request whose id it cannot read for a
//! notification, and its caller would wait for ever; and the entries of a batch run side by side.

use std::sync::Arc;

use forrst_protocol::{ErrorCode, ErrorObject};
use futures_util::future::join_all;
use jsonrpsee::core::server::Methods;
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::types::error::{
    INVALID_PARAMS_CODE, INVALID_REQUEST_CODE, OVERSIZED_REQUEST_CODE, PARSE_ERROR_CODE,
};
use jsonrpsee::{Extensions, RpcModule};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::openrpc;
use crate::access::Credential;
use crate::core::{Core, Origin};
use crate::limits::Refusal;

/// How many entries a batch may have.
const MAX_BATCH: usize = 100;

/// What `rpc.discover`, which has no Forrst answer, says to strangers.
const UNAUTHORIZED_CODE: i32 = -32001;
/// And to those who ask too often.
const RATE_LIMITED_CODE: i32 = -32002;

pub(super) struct Rpc {
    methods: Methods,
    core: Arc<Core>,
}

/// What the HTTP request that a frame came with says about who sent it.
#[derive(Clone, Default)]
pub(super) struct Sender {
    pub(super) traceparent: Option<String>,
    pub(super) credential: Credential,
    pub(super) from: Option<Arc<str>>,
    /// Why the whole frame is refused, if it is.
    pub(super) refusal: Option<ErrorObject>,
}

impl Rpc {
    pub(super) fn new(core: Arc<Core>) -> Self {
        let document = to_raw_value(&openrpc::document(&core));
        let document = document.expect("the document is plain JSON");
        let mut module = RpcModule::new(core.clone());
        let distinct = "the two methods have different names";
        module
            .register_async_method("forrst.call", async |params, core, extensions| {
                call(params.as_str(), &core, &extensions).await
            })
            .expect(distinct);
        // Functions cannot be added any more: one document is enough.
        module
            .register_method("rpc.discover", move |_, core, extensions| {
                let sender = extensions.get::<Sender>().cloned().unwrap_or_default();
                let caller =
                    core.let_in("rpc.discover", &sender.credential, sender.from.as_deref());
                match caller.and_then(|caller| core.admit(caller)) {
                    Ok(_) => Ok(document.clone()),
                    Err(why) => {
                        let code = match why.code {
                            ErrorCode::RateLimited => RATE_LIMITED_CODE,
                            _ => UNAUTHORIZED_CODE,
                        };
                        let message = why.message.clone();
                        Err(ErrorObjectOwned::owned(code, message, Some(why)))
                    }
                }
            })
            .expect(distinct);
        Self {
            methods: module.into(),
            core,
        }
    }

    /// How many requests a frame has.
    pub(super) fn count(frame: &[u8]) -> usize {
        if !frame.trim_ascii_start().starts_with(b"[") {
            return 1;
        }
        let entries = serde_json::from_slice::<Vec<IgnoredAny>>(frame);
        entries.map_or(1, |entries| entries.len().clamp(1, MAX_BATCH))
    }

    /// Answers a frame; none when it has only notifications, which are not run.
    pub(super) async fn answer(&self, frame: &[u8], sender: Sender) -> Option<String> {
        let mut methods = self.methods.clone();
        methods.extensions_mut().insert(sender);
        let Ok(text) = std::str::from_utf8(frame) else {
            return Some(error(
                &Value::Null,
                PARSE_ERROR_CODE,
                "Parse error: the frame is not UTF-8",
            ));
        };
        let frame: &RawValue = match serde_json::from_str(text) {
            Ok(frame) => frame,
            Err(why) => {
                return Some(error(
                    &Value::Null,
                    PARSE_ERROR_CODE,
                    &format!("Parse error: {why}"),
                ));
            }
        };
        if !frame.get().starts_with('[') {
            return answer_one(&methods, frame.get()).await;
        }
        let entries: Vec<&RawValue> = serde_json::from_str(frame.get()).unwrap_or_default();
        if entries.is_empty() {
            return Some(invalid(&Value::Null, "a batch must not be empty"));
        }
        // All of them are under way at once.
        let most = MAX_BATCH.min(self.core.limits.max_in_flight.max(1));
        if entries.len() > most {
            self.core.metrics.refused(Refusal::Batch);
            let message = format!("a batch may have at most {most} entries");
            return Some(error(&Value::Null, OVERSIZED_REQUEST_CODE, &message));
        }
        let answers = join_all(
            entries
                .iter()
                .map(|entry| answer_one(&methods, entry.get())),
        )
        .await;
        let answers: Vec<String> = answers.into_iter().flatten().collect();
        (!answers.is_empty()).then(|| format!("[{}]", answers.join(",")))
    }

    /// What is said about a request that never became a frame.
    pub(super) fn refusal(message: &str) -> Value {
        json!({
            "jsonrpc": "2.0",
            "id": null,
            "error": {"code": INVALID_REQUEST_CODE, "message": message},
        })
    }
}

async fn answer_one(methods: &Methods, frame: &str) -> Option<String> {
    match Frame::check(frame) {
        Err((id, why)) => Some(invalid(&id, why)),
        Ok(Kind::Notification) => None,
        Ok(Kind::Request) => match methods.raw_json_request(frame, 1).await {
            Ok((answer, _)) => Some(Box::<str>::from(answer).into()),
            Err(why) => Some(invalid(&Value::Null, &why.to_string())),
        },
    }
}

enum Kind {
    Request,
    Notification,
}

/// The members of a JSON-RPC request. Serde refuses one that stands twice.
#[derive(Deserialize)]
struct Frame<'a> {
    jsonrpc: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    method: Option<Value>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Tells a null from a member that is missing.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Frame<'_> {
    /// What kind of frame it is, or what is wrong with it and the id to say so to: null when there is none to be read.
    fn check(frame: &str) -> Result<Kind, (Value, &'static str)> {
        if !frame.starts_with('{') {
            return Err((Value::Null, "a request must be an object"));
        }
        let Ok(frame) = serde_json::from_str::<Frame<'_>>(frame) else {
            let why = "its members cannot be read, or one stands there twice";
            return Err((Value::Null, why));
        };
        let kind = match &frame.id {
            None => Kind::Notification,
            Some(Value::String(_) | Value::Null) => Kind::Request,
            Some(Value::Number(number)) if number.is_u64() => Kind::Request,
            Some(_) => {
                let why = "`id` must be a string, null, or a whole number from 0 to 2^64-1";
                return Err((Value::Null, why));
            }
        };
        let is_structured = |params: &RawValue| params.get().starts_with(['{', '[']);
        let why = if frame.jsonrpc != Some(Value::from("2.0")) {
            "`jsonrpc` must be \"2.0\""
        } else if !frame.method.is_some_and(|method| method.is_string()) {
            "`method` must be a string"
        } else if !frame.params.is_none_or(is_structured) {
            "`params` must be an object or an array"
        } else {
            return Ok(kind);
        };
        Err((frame.id.unwrap_or_default(), why))
    }
}

async fn call(
    params: Option<&str>,
    core: &Arc<Core>,
    extensions: &Extensions,
) -> Result<Box<RawValue>, ErrorObjectOwned> {
    let invalid = |message: &str| ErrorObjectOwned::owned(INVALID_PARAMS_CODE, message, None::<()>);
    let expected = "Invalid params: send the Forrst request, by name or as the only element";
    let request: &str = match params {
        Some(params) if params.trim_start().starts_with('[') => {
            let elements: Vec<&RawValue> =
                serde_json::from_str(params).map_err(|_| invalid(expected))?;
            match elements[..] {
                [request] => request.get(),
                _ => return Err(invalid(expected)),
            }
        }
        Some(params) => params,
        None => return Err(invalid(expected)),
    };
    let sender = extensions.get::<Sender>().cloned().unwrap_or_default();
    let origin = Origin {
        received: Instant::now(),
        credential: sender.credential,
        traceparent: sender.traceparent,
        from: sender.from,
        refusal: sender.refusal,
    };
    let response = core.answer(request.as_bytes(), origin).await;
    to_raw_value(&response).map_err(|_| invalid("the answer cannot be written as JSON"))
}

fn invalid(id: &Value, why: &str) -> String {
    error(id, INVALID_REQUEST_CODE, &format!("Invalid request: {why}"))
}

fn error(id: &Value, code: i32, message: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}).to_string()
}
