//! The bodies of HTTP requests: how much is read of one, for how long, and where its bytes are counted.

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
use crate::limits::{self, Budgets, Payer, SMALLEST_REQUEST, TakenBytes};

/// How much, and for how long, is read of a body that is too large, so that its sender gets to see the refusal.
const MOST_DRAINED: usize = 16 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(2);

/// A body that can be read here.
pub(super) trait RequestBody: HttpBody<Data = Bytes> + Unpin + Send + 'static {}

impl<B: HttpBody<Data = Bytes> + Unpin + Send + 'static> RequestBody for B {}

/// A request that is wrong before its body was inspected.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) error: ErrorObject,
}

impl Refusal {
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
    announced: Option<usize>,
    /// The client asks first whether to send it, so it has not begun.
    waits: bool,
}

impl<B: RequestBody> IncomingBody<B> {
    pub(super) fn new(headers: &HeaderMap, body: B) -> Self {
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

    pub(super) async fn read(
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
        let mut read = pin!(collect(self.body, max_body, taken, account));
        // Most bodies have arrived with their heads, and need no timer.
        let read = match poll!(read.as_mut()) {
            Poll::Ready(read) => Ok(read),
            Poll::Pending => timeout(patience, read).await,
        };
        match read {
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
pub(super) struct Account<'a> {
    pub(super) budgets: &'a Budgets,
    pub(super) payer: Payer,
}

impl Account<'_> {
    fn take(&self, bytes: usize) -> Result<TakenBytes, Refusal> {
        let bytes = bytes.max(SMALLEST_REQUEST);
        let taken = self.budgets.take(&self.payer, bytes);
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

/// Reads what a client sends that does not read the answer before all is sent, and keeps none of it.
pub(super) async fn drain(mut body: impl RequestBody) {
    let mut left = MOST_DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
