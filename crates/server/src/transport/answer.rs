//! Responses over HTTP. Nearly every body is one buffer, which is passed to the connection without a copy.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use bytes::Bytes;
use forrst_protocol::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;

/// An HTTP response, before its body is tracked by its connection.
pub(super) type Answer = hyper::Response<AnswerBody>;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum AnswerBody {
    /// In one buffer.
    Whole(Bytes),
    /// Of the dashboard, or an upgrade.
    Axum(Body),
}

/// Most answers fit into this, and are written without growing their buffer.
const USUAL_SIZE: usize = 1024;

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Axum(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Axum(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Axum(body) => body.size_hint(),
        }
    }
}

/// An answer as JSON, between the `before` and `after` of its transport. The buffer has no spare capacity, because it is kept
/// until the client reads it, and is counted by its length.
pub(super) fn to_json(before: &str, response: &Response, after: &str) -> String {
    let mut text = String::with_capacity(USUAL_SIZE);
    text.push_str(before);
    response.write_json(&mut text);
    text.push_str(after);
    if text.len() > USUAL_SIZE {
        // Not `shrink_to_fit`: an allocator may keep the whole block.
        text = text.as_str().to_owned();
    }
    text
}

pub(super) fn forrst_answer(status: StatusCode, response: &Response) -> Answer {
    json_bytes(status, to_json("", response, "").into())
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    match serde_json::to_vec(body) {
        Ok(body) => json_bytes(status, body.into()),
        Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

pub(super) fn json_bytes(status: StatusCode, body: Bytes) -> Answer {
    let mut answer = empty(status);
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    *answer.body_mut() = AnswerBody::Whole(body);
    answer
}

pub(super) fn empty(status: StatusCode) -> Answer {
    let mut answer = Answer::new(AnswerBody::Whole(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

/// The answer to HEAD. Over HTTP/2, hyper does not remove the body.
pub(super) fn without_body(mut answer: Answer) -> Answer {
    if let Some(length) = answer.body().size_hint().exact() {
        answer
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    *answer.body_mut() = AnswerBody::Whole(Bytes::new());
    answer
}

/// Adds the `Allow` header.
pub(super) fn allow(mut answer: Answer, methods: &'static str) -> Answer {
    let methods = HeaderValue::from_static(methods);
    answer.headers_mut().insert(ALLOW, methods);
    answer
}

/// Adds the `WWW-Authenticate` header that a 401 must have.
pub(super) fn with_challenge(mut answer: Answer) -> Answer {
    if answer.status() == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        answer.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    }
    answer
}
