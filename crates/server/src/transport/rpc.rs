//! JSON-RPC 2.0: `forrst.call` carries a Forrst request, `forrst.watch` is a subscription to a lock, `rpc.discover` describes the
//! server.
//!
//! `forrst.call` goes directly to the core; jsonrpsee handles the other methods. Frames are parsed before jsonrpsee sees them,
//! because it treats a request with an invalid id as a notification, and its client would wait forever; and because the entries
//! of a batch run concurrently. Every entry is counted against its caller's rate before anything else.

mod subscriptions;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forrst_protocol::{ErrorCode, ErrorObject, MAX_PROBLEMS};
use futures_util::future::join_all;
use futures_util::stream::Stream;
use jsonrpsee::core::server::Methods;
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::types::error::{
    INTERNAL_ERROR_CODE, INVALID_PARAMS_CODE, INVALID_REQUEST_CODE, OVERSIZED_REQUEST_CODE,
    PARSE_ERROR_CODE,
};
use jsonrpsee::{MethodCallback, RpcModule};
use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::subscriptions::Subscriptions;
use super::answer::to_json;
use super::openrpc;
use crate::Server;
use crate::access::{Caller, Credential, PeerName};
use crate::borrowed::{Text, present};
use crate::core::{Core, Counted, Origin, one_frame};
use crate::limits::{Refusal, Room};

/// How many entries a batch may have.
const MAX_BATCH: usize = 100;

const CALL: &str = "forrst.call";

const INVALID_PARAMS: &str =
    "Invalid params: send the Forrst request, by name or as the only element";

/// For unauthenticated clients, in answers that have no Forrst response.
const UNAUTHORIZED_CODE: i32 = -32001;
/// For callers over their rate, likewise.
const RATE_LIMITED_CODE: i32 = -32002;

/// The methods that jsonrpsee answers: all but `forrst.call`.
#[derive(Debug)]
pub(crate) struct Rpc {
    methods: Methods,
}

/// The client that sent a frame, as its HTTP request identifies it.
#[derive(Clone, Default)]
pub(super) struct Sender {
    pub(super) traceparent: Option<String>,
    pub(super) credential: Credential,
    pub(super) from: Option<Arc<str>>,
    /// Why the whole frame is refused, if it is.
    pub(super) refusal: Option<ErrorObject>,
    /// For the frame and its answers.
    pub(super) room: Room,
    /// The certificate of the connection, whatever the credential is.
    pub(super) peer: Option<PeerName>,
    /// Of its WebSocket; `None` where it cannot subscribe.
    pub(super) subscriptions: Option<Subscriptions>,
}

impl Sender {
    /// Returns when the sender's credential or certificate is revoked.
    pub(super) async fn revoked(&self, core: &Core) {
        let distrusted = async {
            match &self.peer {
                Some(peer) => peer.distrusted.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = core.access.revoked(&self.credential) => {}
            () = distrusted => {}
        }
    }
}

/// What a method needs to know about the request that calls it.
#[derive(Clone)]
struct EntryContext {
    core: Arc<Core>,
    sender: Sender,
    counted: Counted,
    /// How many errors its answer may list.
    max_errors: usize,
}

/// A message: one request, or a batch that is split into its entries.
pub(super) struct Frame {
    text: Bytes,
    shape: Shape,
}

enum Shape {
    NotUtf8,
    /// It starts like a batch, but is not JSON, for this reason.
    NotJson(String),
    /// Not a batch. Whether it is JSON is found out when it is parsed.
    Single,
    Batch(Batch),
}

/// The positions of the entries of a batch, and their number; at most [`MAX_BATCH`] positions are kept.
#[derive(Default)]
struct Batch {
    entries: Vec<Range<usize>>,
    count: usize,
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Frame {
    pub(super) fn read(text: Bytes) -> Self {
        let shape = match std::str::from_utf8(&text) {
            Err(_) => Shape::NotUtf8,
            Ok(text) if !text.trim_ascii_start().starts_with('[') => Shape::Single,
            Ok(text) => match Batch::read(text) {
                Ok(batch) => Shape::Batch(batch),
                Err(why) => Shape::NotJson(why.to_string()),
            },
        };
        Self { text, shape }
    }

    /// The number of requests in it.
    pub(super) fn count(&self) -> usize {
        match &self.shape {
            Shape::Batch(batch) => batch.count.clamp(1, MAX_BATCH),
            _ => 1,
        }
    }

    /// Parses it, unless it is a batch, whose entries are parsed one by one.
    pub(super) fn parse(&self) -> ParsedFrame<'_> {
        let single = match self.shape {
            Shape::Single => Some(Members::check(self.part(0..self.text.len()))),
            _ => None,
        };
        ParsedFrame {
            frame: self,
            single,
        }
    }

    /// The message as it was received.
    pub(super) fn into_text(self) -> Bytes {
        self.text
    }

    fn part(&self, range: Range<usize>) -> &str {
        let bytes = self.text.get(range).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// A frame, and its entry if it has one.
pub(super) struct ParsedFrame<'a> {
    frame: &'a Frame,
    single: Option<Checked<'a>>,
}

impl ParsedFrame<'_> {
    /// Whether it is not JSON-RPC, but a bare request of the protocol. Only a frame that is not valid is scanned again for that.
    pub(super) fn is_envelope(&self) -> bool {
        matches!(self.single, Some(Err(_))) && forrst_protocol::is_envelope(&self.frame.text)
    }
}

impl Batch {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        struct Entries<'a>(&'a str);

        impl<'de> Visitor<'de> for Entries<'_> {
            type Value = Batch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Batch, A::Error> {
                let mut batch = Batch::default();
                while batch.count < MAX_BATCH
                    && let Some(entry) = array.next_element::<&'de RawValue>()?
                {
                    let start = entry.get().as_ptr().addr() - self.0.as_ptr().addr();
                    batch.entries.push(start..start + entry.get().len());
                    batch.count += 1;
                }
                while array.next_element::<IgnoredAny>()?.is_some() {
                    batch.count += 1;
                }
                Ok(batch)
            }
        }

        let mut json = serde_json::Deserializer::from_str(text);
        let batch = json.deserialize_seq(Entries(text))?;
        json.end()?;
        Ok(batch)
    }
}

impl Server {
    /// The methods of `/rpc`.
    pub(super) fn rpc(&self) -> &Rpc {
        self.listeners.rpc.get_or_init(|| Rpc::new(&self.core))
    }
}

impl Rpc {
    fn new(core: &Arc<Core>) -> Self {
        let document = to_raw_value(&openrpc::document(core));
        let document = document.expect("the document is plain JSON");
        // The core comes with each call. If the methods held it, the two would keep each other alive.
        let mut module = RpcModule::new(());
        // Built once: functions cannot be added any more.
        module
            .register_method("rpc.discover", move |_, (), extensions| {
                let Some(entry) = extensions.get::<EntryContext>() else {
                    let why = "the call has no context";
                    return Err(ErrorObjectOwned::owned(
                        INTERNAL_ERROR_CODE,
                        why,
                        None::<()>,
                    ));
                };
                let EntryContext {
                    core,
                    sender,
                    counted,
                    ..
                } = entry.clone();
                let caller = core.authenticate(&sender.credential).inspect_err(|why| {
                    core.denied("rpc.discover", None, sender.from.as_deref(), why);
                });
                let admitted = caller.and_then(|caller| core.admit(caller, counted));
                let length = document.get().len();
                match admitted.and_then(|_| core.expect_answer(&sender.room, length)) {
                    Ok(()) => Ok(document.clone()),
                    Err(why) => Err(refused(why)),
                }
            })
            .expect("there is no other method");
        subscriptions::register(&mut module);
        Self {
            methods: module.into(),
        }
    }

    /// The subscriptions of a new connection, and the messages that they want to send.
    pub(super) fn subscriptions() -> (Subscriptions, impl Stream<Item = String> + Send + use<>) {
        Subscriptions::new()
    }

    /// Answers a frame; `None` if it has only notifications, which are not run, or if its answer is sent by a subscription.
    pub(super) async fn answer(
        &self,
        core: &Arc<Core>,
        parsed: ParsedFrame<'_>,
        sender: Sender,
    ) -> Option<String> {
        let caller = core.access.caller(&sender.credential);
        let ParsedFrame { frame, single } = parsed;
        if let Some(checked) = single {
            let entry = EntryContext {
                core: core.clone(),
                counted: count(core, caller.as_ref().ok()),
                sender,
                max_errors: MAX_PROBLEMS,
            };
            let text = frame.part(0..frame.text.len());
            return self.answer_one(text, checked, entry).await;
        }
        let batch = match &frame.shape {
            Shape::Batch(batch) => batch,
            Shape::Single | Shape::NotUtf8 | Shape::NotJson(_) => {
                if let Counted::Refused(why) = count(core, caller.as_ref().ok()) {
                    return Some(refusal(NO_ID, &why));
                }
                let why = match &frame.shape {
                    Shape::NotJson(why) => why,
                    _ => "the frame is not UTF-8",
                };
                return Some(not_json(why));
            }
        };
        // All entries are under way at once.
        let most = MAX_BATCH.min(core.limits.max_in_flight.max(1));
        if batch.count == 0 || batch.count > most {
            // The entries that were read count against the rate.
            for _ in 0..frame.count() {
                if let Counted::Refused(why) = count(core, caller.as_ref().ok()) {
                    return Some(refusal(NO_ID, &why));
                }
            }
            if batch.count == 0 {
                return Some(invalid(NO_ID, "a batch must not be empty"));
            }
            core.metrics.refused(Refusal::Batch);
            let message = format!("a batch may have at most {most} entries");
            return Some(error(NO_ID, OVERSIZED_REQUEST_CODE, &message));
        }
        if caller.is_err() {
            // The frame itself was counted when it arrived.
            for _ in 1..batch.count {
                if let Err(why) = core.count_unauthenticated(sender.from.as_deref()) {
                    return Some(refusal(NO_ID, &why));
                }
            }
        }
        let answers = batch.entries.iter().map(|range| {
            let entry = EntryContext {
                core: core.clone(),
                sender: Sender {
                    subscriptions: None,
                    ..sender.clone()
                },
                counted: count(core, caller.as_ref().ok()),
                max_errors: (MAX_PROBLEMS / batch.count).max(1),
            };
            let text = frame.part(range.clone());
            self.answer_one(text, Members::check(text), entry)
        });
        let answers = one_frame(join_all(answers)).await;
        let length: usize = answers
            .iter()
            .flatten()
            .map(|answer| answer.len() + 1)
            .sum();
        let mut frame = String::with_capacity(length + 1);
        for answer in answers.into_iter().flatten() {
            frame.push(if frame.is_empty() { '[' } else { ',' });
            frame.push_str(&answer);
        }
        (!frame.is_empty()).then(|| frame + "]")
    }

    /// Answers one request, given as its text and what it was parsed to.
    async fn answer_one(
        &self,
        text: &str,
        checked: Checked<'_>,
        entry: EntryContext,
    ) -> Option<String> {
        let (id, method, params) = match checked {
            Ok(ParsedEntry::Request { id, method, params }) => (id, method, params),
            Ok(ParsedEntry::Notification) => return None,
            Err((id, why)) => {
                return Some(match entry.counted {
                    Counted::Refused(why) => refusal(id, &why),
                    _ => match serde_json::from_str::<IgnoredAny>(text) {
                        Ok(_) => invalid(id, why),
                        Err(why) => not_json(&why.to_string()),
                    },
                });
            }
        };
        if method == CALL {
            return Some(call(id, params, entry).await);
        }
        if let Counted::Refused(why) = entry.counted {
            return Some(refusal(id.get(), &why));
        }
        if let Some(
            callback @ (MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_)),
        ) = self.methods.method(&method)
        {
            return subscriptions::answer(callback, id, params, entry).await;
        }
        let mut methods = self.methods.clone();
        methods.extensions_mut().insert(entry);
        match methods.raw_json_request(text, 1).await {
            Ok((answer, _)) => Some(Box::<str>::from(answer).into()),
            Err(why) => Some(invalid(NO_ID, &why.to_string())),
        }
    }

    /// The answer to an HTTP request that is refused before its body is read as a frame.
    pub(super) fn refusal(message: &str) -> Value {
        json!({
            "jsonrpc": "2.0",
            "id": null,
            "error": {"code": INVALID_REQUEST_CODE, "message": message},
        })
    }
}

/// The id of an answer to a request without a valid id.
const NO_ID: &str = "null";

enum ParsedEntry<'a> {
    Request {
        /// As it was written.
        id: &'a RawValue,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Notification,
}

/// A parsed entry; or the id for the answer, which is null if it cannot be read, and what is wrong.
type Checked<'a> = Result<ParsedEntry<'a>, (&'a str, &'static str)>;

/// The members of a JSON-RPC request, as they were written. Serde refuses one that is repeated.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text: Text<'_> = serde_json::from_str(raw.get()).ok()?;
    Some(text.0)
}

impl<'a> Members<'a> {
    /// Parses one entry.
    fn check(frame: &'a str) -> Checked<'a> {
        let frame = frame.trim_ascii();
        if !frame.starts_with('{') {
            return Err((NO_ID, "a request must be an object"));
        }
        let Ok(frame) = serde_json::from_str::<Members<'a>>(frame) else {
            let why = "its members cannot be read, or one is repeated";
            return Err((NO_ID, why));
        };
        let is_id = |id: &RawValue| {
            let number = id.get().parse::<u64>();
            id.get() == NO_ID || number.is_ok() || text(id).is_some()
        };
        if !frame.id.is_none_or(is_id) {
            let why = "`id` must be a string, null, or a whole number from 0 to 2^64-1";
            return Err((NO_ID, why));
        }
        let is_structured = |params: &RawValue| params.get().starts_with(['{', '[']);
        let id = frame.id.map(RawValue::get);
        let why = if frame.jsonrpc.and_then(text).as_deref() != Some("2.0") {
            "`jsonrpc` must be \"2.0\""
        } else if !frame.params.is_none_or(is_structured) {
            "`params` must be an object or an array"
        } else {
            match (frame.method.and_then(text), frame.id) {
                (Some(method), Some(id)) => {
                    let params = frame.params;
                    return Ok(ParsedEntry::Request { id, method, params });
                }
                (Some(_), None) => return Ok(ParsedEntry::Notification),
                (None, _) => "`method` must be a string",
            }
        };
        Err((id.unwrap_or(NO_ID), why))
    }
}

/// `forrst.call`.
async fn call(id: &RawValue, params: Option<&RawValue>, entry: EntryContext) -> String {
    let EntryContext {
        core,
        sender,
        counted,
        max_errors,
    } = entry;
    let params = params.map(RawValue::get);
    let request = match params {
        Some(params) if params.starts_with('[') => only_element(params),
        params => params,
    };
    let Some(request) = request else {
        return match counted {
            Counted::Refused(why) => refusal(id.get(), &why),
            _ => error(id.get(), INVALID_PARAMS_CODE, INVALID_PARAMS),
        };
    };
    let origin = Origin {
        received: Instant::now(),
        credential: sender.credential,
        traceparent: sender.traceparent,
        from: sender.from,
        refusal: sender.refusal,
        room: sender.room,
        max_errors,
        counted,
    };
    let response = core.answer(request.as_bytes(), origin).await;
    let before = format!(r#"{{"jsonrpc":"2.0","id":{},"result":"#, id.get());
    to_json(&before, &response, "}")
}

/// The element of an array that has exactly one.
fn only_element(array: &str) -> Option<&str> {
    let [element]: [&RawValue; 1] = serde_json::from_str(array).ok()?;
    Some(element.get())
}

/// Counts a request of a caller. Unauthenticated clients are counted elsewhere.
fn count(core: &Core, caller: Option<&Caller>) -> Counted {
    caller.map_or(Counted::NotYet, |caller| core.count(caller))
}

/// A refusal as the error of a jsonrpsee method.
fn refused(why: ErrorObject) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(refusal_code(&why), why.message.clone(), Some(why))
}

/// A refusal as a whole answer.
fn refusal(id: &str, why: &ErrorObject) -> String {
    let code = refusal_code(why);
    let error = json!({"code": code, "message": why.message, "data": why});
    with_error(id, &error)
}

fn refusal_code(why: &ErrorObject) -> i32 {
    match why.code {
        ErrorCode::RateLimited => RATE_LIMITED_CODE,
        _ => UNAUTHORIZED_CODE,
    }
}

fn not_json(why: &str) -> String {
    error(NO_ID, PARSE_ERROR_CODE, &format!("Parse error: {why}"))
}

fn invalid(id: &str, why: &str) -> String {
    error(id, INVALID_REQUEST_CODE, &format!("Invalid request: {why}"))
}

fn error(id: &str, code: i32, message: &str) -> String {
    with_error(id, &json!({"code": code, "message": message}))
}

/// `id` is JSON, as the client wrote it.
fn with_error(id: &str, error: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}
