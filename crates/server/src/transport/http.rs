//! `POST /forrst`, `POST /rpc` and the upgrade of `/rpc` to a WebSocket. The credential is read from the head, and decides how
//! much of the body is read.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, WebSocketUpgrade};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::response::IntoResponse;
use bytes::Bytes;
use forrst_protocol::{ErrorCode, ErrorObject, MAX_PROBLEMS};
use hyper::Request;
use tokio::time::Instant;

use super::answer::{
    Answer, AnswerBody, allow, empty, forrst_answer, json, json_bytes, with_challenge,
};
use super::body::{Account, IncomingBody, Rejection, RequestBody};
use super::connection::{Authorised, Connection, UnderWay};
use super::rpc::{Frame, Rpc, Sender};
use super::websocket;
use crate::Server;
use crate::access::Credential;
use crate::core::{Counted, Origin};
use crate::extension;
use crate::limits::{Refusal, Room};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-forrst-request-id");
static DURATION: HeaderName = HeaderName::from_static("x-forrst-duration-ms");
static NODE: HeaderName = HeaderName::from_static("x-forrst-node");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// How much of a body is read without valid credentials, and for how long: enough for the id, which the refusal repeats.
const ANONYMOUS_BODY: usize = 8 * 1024;
const ANONYMOUS_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of an upgrade in the audit log.
const WEBSOCKET: &str = "GET /rpc";

/// `POST /forrst`.
pub(super) async fn forrst<B: RequestBody>(
    server: &Server,
    request: Request<B>,
    connection: Option<&Arc<Connection>>,
) -> (Answer, Option<UnderWay>) {
    let started = Instant::now();
    match read_post(server, request, connection).await {
        Ok(posted) => {
            let (answer, under_way) = answer_envelope(server, posted, started).await;
            (answer, Some(under_way))
        }
        Err(rejection) => {
            let mut answer = refusal_with(server, rejection.status, rejection.error, started);
            if rejection.status == StatusCode::METHOD_NOT_ALLOWED {
                answer = allow(answer, "POST");
            }
            (answer, None)
        }
    }
}

/// Answers a request of the protocol.
async fn answer_envelope(server: &Server, posted: Posted, started: Instant) -> (Answer, UnderWay) {
    let Posted {
        body,
        room,
        sender,
        authorised,
    } = posted;
    let under_way = UnderWay::new(room.clone(), authorised);
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
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let answer = with_headers(server, status, &response, started);
    (answer, under_way)
}

/// A response of the protocol, with the headers that go with it.
fn with_headers(
    server: &Server,
    status: StatusCode,
    response: &forrst_protocol::Response,
    started: Instant,
) -> Answer {
    let mut answer = forrst_answer(status, response);
    let headers = answer.headers_mut();
    if let Some(id) = response.id()
        && let Ok(id) = HeaderValue::from_bytes(id.as_str().as_bytes())
    {
        headers.insert(REQUEST_ID.clone(), id);
    }
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    headers.insert(DURATION.clone(), millis.into());
    if let Some(node) = &server.listeners.node {
        headers.insert(NODE.clone(), node.clone());
    }
    let errors = response
        .result()
        .err()
        .map(forrst_protocol::Errors::as_slice);
    with_retry_after(with_challenge(answer), errors.unwrap_or_default())
}

/// Adds the `Retry-After` header, in seconds, to an answer with the status of a temporary failure.
fn with_retry_after(mut answer: Answer, errors: &[ErrorObject]) -> Answer {
    if matches!(
        answer.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::LOCKED
    ) {
        let hints = errors.iter().filter_map(extension::retry_after);
        let seconds = extension::whole_seconds(hints.max().unwrap_or_default());
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}

/// The answer that refuses a client whose request is not read.
pub(super) fn refusal(server: &Server, why: ErrorObject) -> Answer {
    let status = why.code.http_status();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::UNAUTHORIZED);
    refusal_with(server, status, why, Instant::now())
}

/// As [`refusal`], with a status that is not that of the error.
pub(super) fn refusal_with(
    server: &Server,
    status: StatusCode,
    why: ErrorObject,
    started: Instant,
) -> Answer {
    let response = forrst_protocol::Response::failure(None, why).with_node(server.node());
    with_headers(server, status, &response, started)
}

/// `POST /rpc`, or a WebSocket.
pub(super) async fn rpc<B: RequestBody>(
    server: &Server,
    request: Request<B>,
    connection: Option<&Arc<Connection>>,
) -> (Answer, Option<UnderWay>) {
    if wants_websocket(&request) {
        let (parts, _) = request.into_parts();
        return (websocket(server, parts, connection).await, None);
    }
    let started = Instant::now();
    let mut posted = match read_post(server, request, connection).await {
        Ok(posted) => posted,
        Err(Rejection { status, error }) => {
            let mut answer = json(status, &Rpc::refusal(&error.message));
            if status == StatusCode::METHOD_NOT_ALLOWED {
                answer = allow(answer, "POST, GET");
            }
            return (with_retry_after(with_challenge(answer), &[error]), None);
        }
    };
    let frame = Frame::read(std::mem::take(&mut posted.body));
    let parsed = frame.parse();
    // The PHP library sends its requests here by default.
    if parsed.is_envelope() {
        posted.body = frame.into_text();
        let (answer, under_way) = answer_envelope(server, posted, started).await;
        return (answer, Some(under_way));
    }
    let Posted {
        room,
        mut sender,
        authorised,
        ..
    } = posted;
    sender.room = room.clone();
    let _permits = match connection {
        Some(connection) => connection.in_flight.take(frame.count()).await,
        None => None,
    };
    // Each call in the frame is refused in its own answer; the status is for clients that read only that.
    let status = match server.core.access.caller(&sender.credential) {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::UNAUTHORIZED,
    };
    match server.rpc().answer(&server.core, parsed, sender).await {
        Some(answer) => {
            let answer = with_challenge(json_bytes(status, answer.into()));
            (answer, Some(UnderWay::new(room, authorised)))
        }
        // Only notifications, which are never run.
        None if status == StatusCode::OK => (empty(StatusCode::NO_CONTENT), None),
        None => (with_challenge(empty(status)), None),
    }
}

async fn websocket(
    server: &Server,
    mut parts: Parts,
    connection: Option<&Arc<Connection>>,
) -> Answer {
    let sender = sender(&parts.headers, connection);
    let from = sender.from.as_deref();
    if !is_same_origin(&parts.headers) {
        let message = "WebSockets are not for pages of other origins";
        server.core.metrics.refused(Refusal::Origin);
        let why = ErrorObject::new(ErrorCode::Forbidden, message);
        server.core.denied(WEBSOCKET, None, from, &why);
        return json(StatusCode::FORBIDDEN, &Rpc::refusal(message));
    }
    if let Err(why) = server
        .core
        .authenticate_or_record(WEBSOCKET, &sender.credential, from)
    {
        return refusal(server, why);
    }
    let answer = match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
        Ok(upgrade) => websocket::accept(upgrade, server.clone(), sender, connection.cloned()),
        Err(rejection) => rejection.into_response(),
    };
    answer.map(AnswerBody::Axum)
}

/// Whether the request asks for a WebSocket. Offers of any other protocol are ignored.
fn wants_websocket<B>(request: &Request<B>) -> bool {
    let offers = request.headers().get_all(UPGRADE).iter();
    let mut offers = offers
        .filter_map(|offer| offer.to_str().ok())
        .flat_map(|o| o.split(','));
    offers.any(|offer| offer.trim().eq_ignore_ascii_case("websocket"))
        || (request.method() == Method::CONNECT && request.version() == Version::HTTP_2)
}

/// A web page may open a WebSocket to any server, including one on the user's machine that trusts every local client. Browsers
/// always send the `Origin` of the page; other clients do not.
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

/// A POST of JSON that has arrived.
struct Posted {
    body: Bytes,
    room: Room,
    sender: Sender,
    /// Held until the answer is taken, so that the connection stays open; `None` without valid credentials.
    authorised: Option<Authorised>,
}

/// Reads a POST of JSON.
async fn read_post<B: RequestBody>(
    server: &Server,
    request: Request<B>,
    connection: Option<&Arc<Connection>>,
) -> Result<Posted, Rejection> {
    if request.method() != Method::POST {
        let message = format!("Use POST, not {}", request.method());
        return Err(Rejection::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        return Err(Rejection::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Send `Content-Type: application/json`",
        ));
    }
    let sender = sender(&parts.headers, connection);
    let incoming = IncomingBody::new(&parts.headers, body);
    let path = parts.uri;
    // A body can take long to arrive, and the heads of a thousand such requests would be kept.
    drop(parts.headers);
    let caller = server.core.access.caller(&sender.credential);
    let from = sender.from.as_deref().unwrap_or_default();
    let payer = caller.as_ref().ok().map(|caller| {
        let name = caller.name().map(forrst_lock::Caller::as_str);
        name.unwrap_or(from)
    });
    let budgets = &server.listeners.budgets;
    let account = Account {
        budgets,
        payer: match connection {
            Some(connection) => connection.payer(budgets, payer),
            None => budgets.payer(None, payer),
        },
    };
    let Err(why) = &caller else {
        let limits = &server.core.limits;
        // From here on, because a body may take longer than the idle timeout.
        let authorised = connection.map(Connection::authorised);
        let read = incoming.read(server, limits.max_body, limits.body_timeout, &account);
        let (body, bytes) = read.await?;
        if let Some(connection) = connection {
            connection.request_arrived(&body).await;
        }
        return Ok(Posted {
            body,
            room: Room::new(bytes),
            sender,
            authorised,
        });
    };
    let counted = server.core.count_unauthenticated(sender.from.as_deref());
    counted.map_err(|error| Rejection {
        status: StatusCode::TOO_MANY_REQUESTS,
        error,
    })?;
    // Without valid credentials, a client learns nothing about its body. The id in it is read if that is cheap.
    let permit = connection.map(|connection| connection.anonymous());
    let body = match permit {
        Some(None) => {
            server.core.metrics.refused(Refusal::Anonymous);
            None
        }
        _ => {
            let max_body = server.core.limits.max_body.min(ANONYMOUS_BODY);
            let time_limit = server.core.limits.body_timeout.min(ANONYMOUS_BODY_TIMEOUT);
            incoming
                .read(server, max_body, time_limit, &account)
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
            server.core.metrics.refused(Refusal::Unauthorized);
            server.core.denied(&what, None, sender.from.as_deref(), why);
            Err(Rejection {
                status: StatusCode::UNAUTHORIZED,
                error: why.clone(),
            })
        }
    }
}

pub(super) fn sender(headers: &HeaderMap, connection: Option<&Arc<Connection>>) -> Sender {
    let peer = connection.and_then(|connection| connection.peer.as_ref());
    Sender {
        traceparent: traceparent(headers),
        credential: Credential::read(headers, peer),
        from: connection.map(|connection| connection.from.clone()),
        peer: peer.cloned(),
        refusal: None,
        room: Room::default(),
        subscriptions: None,
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
