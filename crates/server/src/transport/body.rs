//! The bodies of HTTP requests. A body is read up to a size and for a limited time, and its bytes are taken from the budget
//! before they are read.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use forrst_protocol::{ErrorCode, ErrorObject};
use futures_util::poll;
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;
use tokio::time::timeout;

use crate::Server;
use crate::limits::{Budgets, Payer, Refusal, SMALLEST_REQUEST, TakenBytes};

/// How much of a body that is too large is read and dropped, and for how long, so that its sender gets to read the refusal.
const MAX_DRAINED: usize = 16 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(2);

/// The bodies that can be read: those of hyper and of axum.
pub(super) trait RequestBody: HttpBody<Data = Bytes> + Unpin + Send + 'static {}

impl<B: HttpBody<Data = Bytes> + Unpin + Send + 'static> RequestBody for B {}

/// Why a request is refused before its body is parsed.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    pub(super) error: ErrorObject,
}

impl Rejection {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            error: ErrorObject::new(ErrorCode::InvalidRequest, message),
        }
    }
}

/// A body that has not been read yet, and what its head says about it.
pub(super) struct IncomingBody<B> {
    body: B,
    content_length: Option<usize>,
    /// The client waits for `100 Continue`, so it has not sent anything yet.
    expects_continue: bool,
}

impl<B: RequestBody> IncomingBody<B> {
    pub(super) fn new(headers: &HeaderMap, body: B) -> Self {
        let content_length = headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        let expects_continue = headers.contains_key(EXPECT);
        Self {
            body,
            content_length,
            expects_continue,
        }
    }

    pub(super) async fn read(
        self,
        server: &Server,
        max_body: usize,
        time_limit: Duration,
        account: &Account<'_>,
    ) -> Result<(Bytes, TakenBytes), Rejection> {
        let metrics = &server.core.metrics;
        let too_large = || {
            let message = format!("The body is larger than {max_body} bytes");
            metrics.refused(Refusal::Body);
            Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let taken = match self.content_length {
            Some(length) if length > max_body => Err(too_large()),
            Some(length) => account.take(length),
            None => Ok(TakenBytes::default()),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(rejection) => {
                // A client that is still sending does not read, and would lose the answer with the connection.
                if !self.expects_continue {
                    let _ = timeout(LINGER.min(time_limit), drain(self.body)).await;
                }
                return Err(rejection);
            }
        };
        let mut read = pin!(collect(self.body, max_body, taken, account));
        // Most bodies arrive together with their heads, and need no timer.
        let read = match poll!(read.as_mut()) {
            Poll::Ready(read) => Ok(read),
            Poll::Pending => timeout(time_limit, read).await,
        };
        match read {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(BodyError::TooLarge)) => Err(too_large()),
            Ok(Err(BodyError::Rejected(rejection))) => Err(rejection),
            Ok(Err(BodyError::Broken)) => Err(Rejection::new(
                StatusCode::BAD_REQUEST,
                "The body is incomplete",
            )),
            Err(_) => {
                metrics.refused(Refusal::BodyTime);
                let message = "The body did not arrive in time";
                Err(Rejection::new(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

/// The pools that the bytes of a request are taken from.
pub(super) struct Account<'a> {
    pub(super) budgets: &'a Budgets,
    pub(super) payer: Payer,
}

impl Account<'_> {
    fn take(&self, bytes: usize) -> Result<TakenBytes, Rejection> {
        let bytes = bytes.max(SMALLEST_REQUEST);
        let taken = self.budgets.take(&self.payer, bytes);
        taken.map_err(|error| {
            let status = StatusCode::from_u16(error.code.http_status());
            Rejection {
                status: status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
                error,
            }
        })
    }
}

enum BodyError {
    TooLarge,
    Broken,
    Rejected(Rejection),
}

/// Reads a body to its end. One without a `Content-Length` takes its bytes as they arrive.
async fn collect(
    mut body: impl RequestBody,
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
            taken = account.take(length).map_err(BodyError::Rejected)?;
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

/// Reads and drops the rest of a body, because a client may not read the answer before it has sent everything.
pub(super) async fn drain(mut body: impl RequestBody) {
    let mut left = MAX_DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
