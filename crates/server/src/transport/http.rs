//! `POST /forrst`, `/rpc`, `GET /health`, `/ready` and `/metrics`, as a router that can stand in any axum application.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State, WebSocketUpgrade};
use axum::http::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, ORIGIN, UPGRADE, WWW_AUTHENTICATE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use forrst_protocol::{ErrorCode, ErrorObject, MAX_PROBLEMS};
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::connection::{Authorised, Connection, UnderWay};
use super::host_check::HostCheck;
use super::rpc::{Frame, Rpc, Sender};
use super::websocket;
use crate::Server;
use crate::access::Credential;
use crate::core::{Counted, Origin};
use crate::limits::{self, Budgets, Pool, Room, TakenBytes};
use crate::system::Health;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-forrst-request-id");
static DURATION: HeaderName = HeaderName::from_static("x-forrst-duration-ms");
static NODE: HeaderName = HeaderName::from_static("x-forrst-node");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What is read of a body without valid credentials, and for how long: enough for the id that the refusal names.
const ANONYMOUS_BODY: usize = 8 * 1024;
const ANONYMOUS_PATIENCE: Duration = Duration::from_secs(5);

/// How much, and for how long, is read of a body that is too large, so that its sender gets to see the refusal.
const MOST_DRAINED: usize = 16 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(2);

/// As the audit log calls it.
const WEBSOCKET: &str = "GET /rpc";

/// Prometheus gives a scrape ten seconds.
const COUNTS_PATIENCE: Duration = Duration::from_secs(2);

/// What the handlers share.
#[derive(Clone)]
struct App {
    server: Server,
    rpc: Arc<Rpc>,
}

impl Server {
    /// The server's routes, to be served or to be mounted into an application.
    ///
    /// They are `/forrst`, `/rpc`, `/health`, `/ready` and `/metrics`. Limits on connections and silent clients are
    /// [`serve`](Self::serve)'s; an application that mounts the routes has its own. Where the application listens is not
    /// known here, so the routes answer for `localhost`, loopback addresses, and the hosts of
    /// [`allow_host`](crate::ServerBuilder::allow_host), as on a loopback address.
    pub fn router(&self) -> Router {
        HostCheck::of_router(&self.listeners.allowed_hosts).around(self.routes(), self)
    }

    /// The routes without the check of their host.
    pub(super) fn routes(&self) -> Router {
        let app = App {
            server: self.clone(),
            rpc: Arc::new(Rpc::new(self.core.clone())),
        };
        Router::new()
            .route("/forrst", any(forrst))
            .route("/rpc", any(rpc))
            .route("/health", any(health))
            .route("/ready", any(ready))
            .route("/metrics", any(metrics))
            .with_state(app)
    }
}

async fn forrst(State(app): State<App>, request: Request) -> Response {
    let started = Instant::now();
    let server = &app.server;
    let mut under_way = None;
    let answer = match read_post(server, request).await {
        Ok(Posted {
            body,
            room,
            sender,
            authorised,
        }) => {
            under_way = Some(UnderWay::new(room.clone(), authorised));
            let origin = Origin {
                received: started,
                traceparent: sender.traceparent,
                credential: sender.credential,
                from: sender.from,
                refusal: sender.refusal,
                room,
                max_errors: MAX_PROBLEMS,
                counted: Counted::NotYet,
            };
            let response = server.core.answer(body, origin).await;
            let status = StatusCode::from_u16(response.http_status());
            (
                status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                response,
            )
        }
        Err(refusal) => {
            let response = forrst_protocol::Response::failure(None, refusal.error);
            (refusal.status, response.with_node(server.node()))
        }
    };
    let (status, response) = answer;
    let mut reply = json(status, &response);
    if let Some(under_way) = under_way {
        reply.extensions_mut().insert(under_way);
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let only_post = HeaderValue::from_static("POST");
        reply.headers_mut().insert(ALLOW, only_post);
    }
    let headers = reply.headers_mut();
    if let Some(id) = response.id()
        && let Ok(id) = HeaderValue::from_bytes(id.as_str().as_bytes())
    {
        headers.insert(REQUEST_ID.clone(), id);
    }
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    headers.insert(DURATION.clone(), millis.into());
    if let Ok(node) = HeaderValue::from_str(server.node()) {
        headers.insert(NODE.clone(), node);
    }
    ask_for_key(reply)
}

/// A 401 has to say how to do better.
fn ask_for_key(mut reply: Response) -> Response {
    if reply.status() == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        reply.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    }
    reply
}

/// For somebody who may not come in, or not here, and has not made a request of the protocol.
fn refusal(server: &Server, why: ErrorObject) -> Response {
    let status = why.code.http_status();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::UNAUTHORIZED);
    let response = forrst_protocol::Response::failure(None, why);
    ask_for_key(json(status, &response.with_node(server.node())))
}

async fn rpc(State(app): State<App>, request: Request) -> Response {
    if wants_websocket(&request) {
        let (mut parts, _) = request.into_parts();
        let sender = sender(&parts);
        let from = sender.from.as_deref();
        if !is_same_origin(&parts.headers) {
            let message = "WebSockets are not for pages of other origins";
            app.server.core.metrics.refused(limits::Refusal::Origin);
            let why = ErrorObject::new(ErrorCode::Forbidden, message);
            app.server.core.denied(WEBSOCKET, None, from, &why);
            return json(StatusCode::FORBIDDEN, &Rpc::refusal(message));
        }
        if let Err(why) = app.server.core.let_in(WEBSOCKET, &sender.credential, from) {
            return refusal(&app.server, why);
        }
        let connection = connection(&parts).cloned();
        return match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
            Ok(upgrade) => websocket::accept(upgrade, app.server, app.rpc, sender, connection),
            Err(refusal) => refusal.into_response(),
        };
    }
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    match read_post(&app.server, request).await {
        Ok(Posted {
            body,
            room,
            mut sender,
            authorised,
        }) => {
            sender.room = room.clone();
            let frame = Frame::read(body);
            let _permits = match connection {
                Some(connection) => connection.in_flight.take(frame.count()).await,
                None => None,
            };
            // Each call in the frame is told that it is refused; the status is for those who look no further.
            let status = match app.server.core.access.caller(&sender.credential) {
                Ok(_) => StatusCode::OK,
                Err(_) => StatusCode::UNAUTHORIZED,
            };
            match app.rpc.answer(&frame, sender).await {
                Some(answer) => {
                    let mut reply = ask_for_key(json_bytes(status, answer.into()));
                    let under_way = UnderWay::new(room, authorised);
                    reply.extensions_mut().insert(under_way);
                    reply
                }
                // Notifications are not run, whoever sends them.
                None if status == StatusCode::OK => StatusCode::NO_CONTENT.into_response(),
                None => ask_for_key(status.into_response()),
            }
        }
        Err(refusal) => {
            let mut reply = json(refusal.status, &Rpc::refusal(&refusal.error.message));
            if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
                let allowed = HeaderValue::from_static("POST, GET");
                reply.headers_mut().insert(ALLOW, allowed);
            }
            ask_for_key(reply)
        }
    }
}

/// An offer of any other protocol is to be ignored.
fn wants_websocket(request: &Request) -> bool {
    let offers = request.headers().get_all(UPGRADE).iter();
    let mut offers = offers
        .filter_map(|offer| offer.to_str().ok())
        .flat_map(|o| o.split(','));
    offers.any(|offer| offer.trim().eq_ignore_ascii_case("websocket"))
        || (request.method() == Method::CONNECT && request.version() == Version::HTTP_2)
}

/// A page in a browser may open a WebSocket to anywhere, also to a server on its own machine that trusts everybody there.
/// It always says where it is from; other clients do not.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else {
        return true;
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    matches!((origin, host), (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host))
}

/// The process is there and answers.
async fn health(method: Method) -> Response {
    if !is_read_only(&method) {
        return only_get();
    }
    json(StatusCode::OK, &serde_json::json!({"status": "healthy"}))
}

/// Requests can be served: the store is reachable, and the server is not about to end.
async fn ready(State(app): State<App>, method: Method) -> Response {
    if !is_read_only(&method) {
        return only_get();
    }
    if app.server.is_shutting_down() {
        let body = serde_json::json!({"status": "unhealthy", "message": "shutting down"});
        return json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let core = &app.server.core;
    let (health, store) = core.store_health.of(core.locks.store()).await;
    let status = match health {
        Health::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        Health::Healthy | Health::Degraded => StatusCode::OK,
    };
    json(
        status,
        &serde_json::json!({"status": health.as_str(), "store": store}),
    )
}

/// What was counted, for Prometheus.
async fn metrics(State(app): State<App>, request: Request) -> Response {
    if !is_read_only(request.method()) {
        return only_get();
    }
    let (parts, _) = request.into_parts();
    let sender = sender(&parts);
    let from = sender.from.as_deref();
    let allowed = app
        .server
        .core
        .let_look("GET /metrics", &sender.credential, from);
    if let Err(why) = allowed {
        return refusal(&app.server, why);
    }
    let _authorised = connection(&parts).map(Connection::authorised);
    // The store can take its time, and a thousand heads would wait with it.
    drop(parts);
    let locks = app.server.locks();
    // A store that does not answer must not keep the rest from being read.
    let counts = timeout(COUNTS_PATIENCE, locks.store().counts()).await;
    let counts = counts.ok().and_then(Result::ok);
    let text = app.server.core.metrics.render(counts, locks.waiting());
    ([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], text).into_response()
}

fn is_read_only(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn only_get() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")]).into_response()
}

/// A request that is wrong before anyone has looked into its body.
struct Refusal {
    status: StatusCode,
    error: ErrorObject,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            error: ErrorObject::new(ErrorCode::InvalidRequest, message),
        }
    }
}

/// A POST of JSON that has arrived.
struct Posted {
    body: Bytes,
    room: Room,
    sender: Sender,
    /// Held until the answer is taken, so that the connection may stay; `None` without valid credentials.
    authorised: Option<Authorised>,
}

/// Reads a POST of JSON.
async fn read_post(server: &Server, request: Request) -> Result<Posted, Refusal> {
    if request.method() != Method::POST {
        let message = format!("Use POST, not {}", request.method());
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Send `Content-Type: application/json`",
        ));
    }
    let sender = sender(&parts);
    let connection = connection(&parts).cloned();
    let incoming = IncomingBody::new(&parts.headers, body);
    let path = parts.uri;
    // A body can take its time, and a thousand heads would wait with it.
    drop(parts.headers);
    let caller = server.core.access.caller(&sender.credential);
    let from = sender.from.as_deref().unwrap_or_default();
    let payer = caller.as_ref().ok().map(|caller| {
        let name = caller.name().map(forrst_lock::Caller::as_str);
        name.unwrap_or(from)
    });
    let account = Account {
        budgets: &server.listeners.budgets,
        connection: connection.as_ref().map(|connection| &connection.bytes),
        caller: payer,
    };
    let Err(why) = &caller else {
        let limits = &server.core.limits;
        // From now on, because a body may take longer than a connection may be idle.
        let authorised = connection.as_ref().map(Connection::authorised);
        let read = incoming.read(server, limits.max_body, limits.body_timeout, &account);
        let (body, bytes) = read.await?;
        return Ok(Posted {
            body,
            room: Room::new(bytes),
            sender,
            authorised,
        });
    };
    let counted = server.core.count_unauthenticated(sender.from.as_deref());
    counted.map_err(|error| Refusal {
        status: StatusCode::TOO_MANY_REQUESTS,
        error,
    })?;
    // Without valid credentials, a client learns that and nothing about its body. The id in it is read where that is cheap.
    let permit = connection.as_ref().map(|connection| connection.anonymous());
    let body = match permit {
        Some(None) => {
            server.core.metrics.refused(limits::Refusal::Anonymous);
            None
        }
        _ => {
            let max_body = server.core.limits.max_body.min(ANONYMOUS_BODY);
            let patience = server.core.limits.body_timeout.min(ANONYMOUS_PATIENCE);
            incoming
                .read(server, max_body, patience, &account)
                .await
                .ok()
        }
    };
    match body {
        Some((body, bytes)) => Ok(Posted {
            body,
            room: Room::new(bytes),
            sender,
            authorised: None,
        }),
        None => {
            let what = format!("POST {}", path.path());
            server.core.metrics.refused(limits::Refusal::Unauthorized);
            server.core.denied(&what, None, sender.from.as_deref(), why);
            Err(Refusal {
                status: StatusCode::UNAUTHORIZED,
                error: why.clone(),
            })
        }
    }
}

fn connection(parts: &Parts) -> Option<&Arc<Connection>> {
    parts.extensions.get()
}

fn sender(parts: &Parts) -> Sender {
    let connection = connection(parts);
    let peer = connection.and_then(|connection| connection.peer.as_ref());
    Sender {
        traceparent: traceparent(&parts.headers),
        credential: Credential::read(&parts.headers, peer),
        from: connection.map(|connection| connection.from.clone()),
        peer: peer.cloned(),
        refusal: None,
        room: Room::default(),
    }
}

/// A body that has not been read yet, and what its head says about it.
struct IncomingBody {
    body: Body,
    announced: Option<usize>,
    /// The client asks first whether to send it, so it has not begun.
    waits: bool,
}

impl IncomingBody {
    fn new(headers: &HeaderMap, body: Body) -> Self {
        let announced = headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        let waits = headers.contains_key(EXPECT);
        Self {
            body,
            announced,
            waits,
        }
    }

    async fn read(
        self,
        server: &Server,
        max_body: usize,
        patience: Duration,
        account: &Account<'_>,
    ) -> Result<(Bytes, TakenBytes), Refusal> {
        let metrics = &server.core.metrics;
        let too_large = || {
            let message = format!("The body is larger than {max_body} bytes");
            metrics.refused(limits::Refusal::Body);
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let taken = match self.announced {
            Some(length) if length > max_body => Err(too_large()),
            Some(length) => account.take(length),
            None => Ok(TakenBytes::default()),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(refusal) => {
                // A client that is still sending does not read, and would lose the answer with the connection.
                if !self.waits {
                    let _ = timeout(LINGER.min(patience), drain(self.body)).await;
                }
                return Err(refusal);
            }
        };
        let read = collect(self.body, max_body, taken, account);
        match timeout(patience, read).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(BodyError::TooLarge)) => Err(too_large()),
            Ok(Err(BodyError::Refused(refusal))) => Err(refusal),
            Ok(Err(BodyError::Broken)) => {
                Err(Refusal::new(StatusCode::BAD_REQUEST, "The body broke off"))
            }
            Err(_) => {
                metrics.refused(limits::Refusal::BodyTime);
                let message = "The body did not arrive in time";
                Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

/// Where the bytes of a request are taken from.
struct Account<'a> {
    budgets: &'a Budgets,
    connection: Option<&'a Arc<Pool>>,
    /// `None` without valid credentials.
    caller: Option<&'a str>,
}

impl Account<'_> {
    fn take(&self, bytes: usize) -> Result<TakenBytes, Refusal> {
        let taken = self.budgets.take(self.connection, self.caller, bytes);
        taken.map_err(|error| {
            let status = StatusCode::from_u16(error.code.http_status());
            Refusal {
                status: status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
                error,
            }
        })
    }
}

enum BodyError {
    TooLarge,
    Broken,
    Refused(Refusal),
}

/// Reads a body to its end. One whose length was not announced takes its bytes as they arrive.
async fn collect(
    mut body: Body,
    max_body: usize,
    mut taken: TakenBytes,
    account: &Account<'_>,
) -> Result<(Bytes, TakenBytes), BodyError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyError::Broken)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = first.len().max(rest.len()) + data.len();
        if length > max_body {
            return Err(BodyError::TooLarge);
        }
        if length > taken.len() {
            drop(taken);
            taken = account.take(length).map_err(BodyError::Refused)?;
        }
        // Most bodies are one frame, which need not be copied.
        if first.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(taken.len().min(max_body));
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    let body = if rest.is_empty() {
        first
    } else {
        rest.freeze()
    };
    Ok((body, taken))
}

/// Reads what somebody sends who does not look at the answer before all is sent, and keeps none of it.
pub(super) async fn drain(mut body: Body) {
    let mut left = MOST_DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = value.and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

fn traceparent(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(&TRACEPARENT)?;
    Some(value.to_str().ok()?.to_owned())
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(mut body) => {
            // What a client does not read is kept, and must not be twice as large as it counts.
            body.shrink_to_fit();
            json_bytes(status, body.into())
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn json_bytes(status: StatusCode, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}
