//! `POST /forrst` over pooled HTTP connections.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use forrst_protocol::{Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use url::Url;

use super::{ConnectOptions, MAX_ANSWER_BYTES, not_forrst};
use crate::Error;

/// Shorter than servers keep idle connections, so that no request is sent on a connection that is about to be closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
}

impl Http {
    pub(super) fn new(url: &Url, options: ConnectOptions) -> Result<Self, Error> {
        let uri = url.as_str().parse::<Uri>();
        let uri = uri.map_err(|why| Error::Configuration(why.into()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = options.authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(options.connect_timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(options.tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Ok(Self {
            client,
            uri,
            headers,
        })
    }

    /// Redirects are not followed: the API key would go to another server, and a POST might become a GET.
    pub(super) async fn send(&self, request: &Request<'_>) -> Result<Response, Error> {
        let body = serde_json::to_vec(request).map_err(|why| Error::InvalidRequest(why.into()))?;
        let mut post = hyper::Request::new(Full::from(body));
        *post.method_mut() = Method::POST;
        *post.uri_mut() = self.uri.clone();
        *post.headers_mut() = self.headers.clone();
        let sent = self.client.request(post).await;
        let answer = sent.map_err(|why| match why.is_connect() {
            true => Error::Unreachable(WithCauses::boxed(why)),
            false => Error::Interrupted(WithCauses::boxed(why)),
        })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
        let body = body
            .await
            .map_err(|why| match why.is::<LengthLimitError>() {
                true => {
                    let why = format!("the answer is larger than {MAX_ANSWER_BYTES} bytes");
                    Error::Protocol(why.into())
                }
                false => Error::Interrupted(WithCauses::boxed(why)),
            })?;
        let body = body.to_bytes();
        Response::parse(&body).map_err(|why| not_forrst(status, &why.to_string()))
    }
}

/// An error with the texts of its causes: that of hyper itself says only that there was an error.
#[derive(Debug)]
struct WithCauses(Box<dyn StdError + Send + Sync>);

impl WithCauses {
    fn boxed(why: impl Into<Box<dyn StdError + Send + Sync>>) -> crate::Cause {
        Box::new(Self(why.into()))
    }
}

impl fmt::Display for WithCauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cause: &dyn StdError = &*self.0;
        write!(f, "{cause}")?;
        while let Some(below) = cause.source() {
            write!(f, ": {below}")?;
            cause = below;
        }
        Ok(())
    }
}

impl StdError for WithCauses {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}
