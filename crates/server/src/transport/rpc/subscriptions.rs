//! Subscriptions over a WebSocket: `forrst.watch` sends the state of a lock at first, and whenever its leases change.
//!
//! jsonrpsee keeps the subscriptions: their ids, their number, and who may end them. What it wants to send goes to the session of the
//! connection, which writes it when the client reads. A subscription repeats the system function `watch` for its client, so its
//! rights, its limits and its results are those of the function by construction.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forrst_lock::Revision;
use forrst_protocol::{ErrorCode, ErrorObject};
use futures_util::stream::{self, Stream, StreamExt};
use jsonrpsee::core::id_providers::RandomIntegerIdProvider;
use jsonrpsee::core::{SubscriptionError, server::SubscriptionCloseResponse};
use jsonrpsee::types::error::{
    INTERNAL_ERROR_CODE, INVALID_PARAMS_CODE, TOO_MANY_SUBSCRIPTIONS_CODE,
};
use jsonrpsee::types::{ErrorObjectOwned, Id, Params, SubscriptionId};
use jsonrpsee::{
    BoundedSubscriptions, ConnectionId, Extensions, MethodCallback, MethodSink,
    PendingSubscriptionSink, RpcModule, SubscriptionState,
};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{EntryContext, error, invalid, only_element, refusal, refusal_code};
use crate::core::{Counted, Origin};
use crate::error::internal_error;
use crate::extension;

const WATCH: &str = "forrst.watch";
const UNWATCH: &str = "forrst.unwatch";
const FUNCTION: &str = "urn:cline:forrst:ext:atomic-lock:fn:watch";

/// How many subscriptions a connection may have.
const MAX_SUBSCRIPTIONS: u32 = 100;

/// How many messages of all subscriptions of a connection wait until the client reads; then the subscriptions wait, too, and send the
/// newest state afterwards.
const MAX_UNWRITTEN: usize = 16;

/// Before each call, so that a lock that changes all the time does not keep both sides busy.
const PAUSE: Duration = Duration::from_millis(10);

/// Before a call is repeated that the server could not answer.
const RETRY: Duration = Duration::from_secs(1);

/// The subscriptions of one connection.
#[derive(Debug, Clone)]
pub(in super::super) struct Subscriptions {
    connection: ConnectionId,
    sink: MethodSink,
    limit: BoundedSubscriptions,
}

impl Subscriptions {
    /// For a new connection, with the messages that it has to send. When they are dropped, the subscriptions end.
    pub(super) fn new() -> (Self, impl Stream<Item = String> + Send + use<>) {
        static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
        let (sender, mut messages) = mpsc::channel(MAX_UNWRITTEN);
        let subscriptions = Self {
            connection: ConnectionId(CONNECTIONS.fetch_add(1, Ordering::Relaxed)),
            sink: MethodSink::new(sender),
            limit: BoundedSubscriptions::new(MAX_SUBSCRIPTIONS),
        };
        let messages = stream::poll_fn(move |cx| messages.poll_recv(cx));
        (
            subscriptions,
            messages.map(|message| Box::<str>::from(message).into()),
        )
    }
}

pub(super) fn register(module: &mut RpcModule<()>) {
    let registered = module.register_subscription(
        WATCH,
        WATCH,
        UNWATCH,
        async |params: Params<'static>, pending, _, extensions: Extensions| {
            watch(&params, pending, &extensions).await
        },
    );
    registered.expect("there is no other method of that name");
}

/// Answers a request to subscribe or unsubscribe; `None` if it is sent like the notifications.
pub(super) async fn answer(
    callback: &MethodCallback,
    id: &RawValue,
    params: Option<&RawValue>,
    entry: EntryContext,
) -> Option<String> {
    // At once: the session waits for it, and does not send what subscriptions want to send.
    if let Some(why) = &entry.sender.refusal {
        return Some(refusal(id.get(), why));
    }
    let Some(own) = entry.sender.subscriptions.clone() else {
        let why = "a subscription needs a WebSocket, and cannot be in a batch";
        return Some(invalid(
            id.get(),
            &format!("{why}: call {FUNCTION} instead"),
        ));
    };
    let request: Id<'_> = serde_json::from_str(id.get()).ok()?;
    let params = params.map(RawValue::get);
    match callback {
        MethodCallback::Subscription(subscribe) => {
            let Some(permit) = own.limit.acquire() else {
                let most = own.limit.max();
                let why = format!("a connection may have at most {most} subscriptions");
                return Some(error(id.get(), TOO_MANY_SUBSCRIPTIONS_CODE, &why));
            };
            let state = SubscriptionState {
                conn_id: own.connection,
                id_provider: &RandomIntegerIdProvider,
                subscription_permit: permit,
            };
            let mut extensions = Extensions::new();
            extensions.insert(entry);
            subscribe(request, Params::new(params), own.sink, state, extensions).await;
            None
        }
        MethodCallback::Unsubscription(unsubscribe) => {
            // jsonrpsee would write a warning to the log.
            if !params.is_some_and(is_subscription_id) {
                let why = "Invalid params: send the id of the subscription as the only element";
                return Some(error(id.get(), INVALID_PARAMS_CODE, why));
            }
            let (params, extensions) = (Params::new(params), Extensions::new());
            let answer = unsubscribe(request, params, own.connection, usize::MAX, extensions);
            Some(Box::<str>::from(answer.into_json()).into())
        }
        _ => None,
    }
}

fn is_subscription_id(params: &str) -> bool {
    serde_json::from_str::<[SubscriptionId<'_>; 1]>(params).is_ok()
}

/// The parameters of `forrst.watch`: those of the function without `wait`.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object with `key`, and perhaps `owner` and `since`"
)]
struct WatchParams {
    /// Checked by the function.
    key: Value,
    #[serde(default)]
    owner: Option<Value>,
    #[serde(default)]
    since: Option<String>,
}

impl WatchParams {
    fn read(params: &Params<'_>) -> Result<Self, String> {
        let object = match params.as_str() {
            Some(array) if array.trim_ascii_start().starts_with('[') => only_element(array),
            params => params,
        };
        let object =
            object.ok_or("send the arguments of `watch`, by name or as the only element")?;
        let read: Self = serde_json::from_str(object).map_err(|why| why.to_string())?;
        if read
            .since
            .as_deref()
            .is_some_and(|since| Revision::parse(since).is_none())
        {
            return Err("`since` must be the `revision` of an earlier answer".to_owned());
        }
        Ok(read)
    }
}

/// A subscription, from its request to its end.
async fn watch(
    params: &Params<'static>,
    pending: PendingSubscriptionSink,
    extensions: &Extensions,
) -> SubscriptionCloseResponse {
    let watched = WatchParams::read(params).map_err(|why| {
        let why = format!("Invalid params: {why}");
        ErrorObjectOwned::owned(INVALID_PARAMS_CODE, why, None::<()>)
    });
    let begun = match (watched, extensions.get::<EntryContext>()) {
        (Ok(watched), Some(entry)) => {
            Watch::begin(watched, entry.clone(), &pending.subscription_id()).await
        }
        (Err(why), _) => Err(why),
        (_, None) => Err(ErrorObjectOwned::owned(
            INTERNAL_ERROR_CODE,
            "the call has no context",
            None::<()>,
        )),
    };
    let (mut watch, mut update) = match begun {
        Ok(begun) => begun,
        Err(why) => {
            pending.reject(why).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let Ok(sink) = pending.accept().await else {
        return SubscriptionCloseResponse::None;
    };
    let core = watch.entry.core.clone();
    loop {
        if let Some(state) = update.take()
            && sink.send(state).await.is_err()
        {
            return SubscriptionCloseResponse::None;
        }
        update = tokio::select! {
            biased;
            () = sink.closed() => return SubscriptionCloseResponse::None,
            // The client learns it from the close of its connection.
            () = core.draining.cancelled() => return SubscriptionCloseResponse::None,
            next = watch.next() => match next {
                Ok(state) => Some(state),
                Err(why) => {
                    let why = to_raw_value(&why).unwrap_or_default();
                    let error = SubscriptionError::from_json(why);
                    return SubscriptionCloseResponse::NotifErr(error);
                }
            },
        };
    }
}

/// The calls of the function for one subscription.
struct Watch {
    entry: EntryContext,
    /// Of its calls.
    id: String,
    key: Value,
    owner: Option<Value>,
    /// The revision of the newest state.
    since: Option<String>,
}

#[derive(Deserialize)]
struct Revised {
    revision: String,
}

impl Watch {
    /// Checks that the caller may watch the lock. Returns its state, unless the client knows it.
    async fn begin(
        watched: WatchParams,
        mut entry: EntryContext,
        id: &SubscriptionId<'_>,
    ) -> Result<(Self, Option<Box<RawValue>>), ErrorObjectOwned> {
        // The subscription would keep itself alive.
        entry.sender.subscriptions = None;
        let WatchParams { key, owner, since } = watched;
        let id = match id {
            SubscriptionId::Num(number) => format!("subscription-{number}"),
            SubscriptionId::Str(text) => format!("subscription-{text}"),
        };
        let mut watch = Self {
            entry,
            id,
            key,
            owner,
            since: None,
        };
        let counted = std::mem::take(&mut watch.entry.counted);
        let state = watch.call(counted).await.map_err(|why| {
            let code = match why.code {
                ErrorCode::RateLimited | ErrorCode::Unauthorized | ErrorCode::Forbidden => {
                    refusal_code(&why)
                }
                ErrorCode::InvalidArguments => INVALID_PARAMS_CODE,
                _ => INTERNAL_ERROR_CODE,
            };
            ErrorObjectOwned::owned(code, why.message.clone(), Some(why))
        })?;
        let is_known = since.is_some() && watch.since == since;
        Ok((watch, state.filter(|_| !is_known)))
    }

    /// The state of the lock after the next change.
    ///
    /// # Errors
    ///
    /// Why the caller may no longer watch it.
    async fn next(&mut self) -> Result<Box<RawValue>, ErrorObject> {
        loop {
            // Also after an answer that is not new: the task has to notice that its subscription is over.
            sleep(PAUSE).await;
            match self.call(Counted::NotYet).await {
                Ok(Some(state)) => return Ok(state),
                Ok(None) => {}
                Err(why) => match why.code {
                    ErrorCode::RateLimited | ErrorCode::Unavailable => {
                        let named = extension::retry_after(&why).unwrap_or_default();
                        sleep(RETRY.max(named)).await;
                    }
                    _ => return Err(why),
                },
            }
        }
    }

    /// Calls the function once. Returns the state of the lock if it is new.
    async fn call(&mut self, counted: Counted) -> Result<Option<Box<RawValue>>, ErrorObject> {
        let mut arguments = json!({"key": self.key});
        for (name, value) in [
            ("owner", self.owner.clone()),
            ("since", self.since.clone().map(Value::String)),
        ] {
            if let Some(value) = value {
                arguments[name] = value;
            }
        }
        let request = json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": self.id,
            "call": {"function": FUNCTION, "arguments": arguments},
        });
        let EntryContext {
            core,
            sender,
            max_errors,
            ..
        } = &self.entry;
        let origin = Origin {
            received: Instant::now(),
            credential: sender.credential.clone(),
            traceparent: sender.traceparent.clone(),
            from: sender.from.clone(),
            refusal: None,
            room: sender.room.clone(),
            max_errors: *max_errors,
            counted,
        };
        let response = core.answer(request.to_string(), origin).await;
        let result = response.into_result();
        // It takes room until there is another one.
        let length = result.as_ref().map_or(0, |state| state.get().len());
        sender.room.answered(length);
        let state = result.map_err(|errors| {
            let first = errors.as_slice().first();
            first.cloned().unwrap_or_else(internal_error)
        })?;
        let Revised { revision } =
            serde_json::from_str(state.get()).map_err(|_| internal_error())?;
        let is_new = self.since.as_ref() != Some(&revision);
        self.since = Some(revision);
        Ok(is_new.then_some(state))
    }
}
