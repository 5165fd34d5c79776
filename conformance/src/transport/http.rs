//! One HTTP/1.1 request over its own connection. It is the vector's, plus `Host` and the API key.

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::AUTHORIZATION;
use hyper_util::rt::TokioIo;

use super::wire::HttpRequest;
use super::{Answer, ExchangeError, Server, Stream};

pub(super) async fn exchange(
    stream: Box<dyn Stream>,
    server: Server,
    request: HttpRequest,
) -> Result<Answer, ExchangeError> {
    let mut builder = Request::builder()
        .method(request.method.as_str())
        .uri(format!("{}{}", server.base_path, request.path))
        .header("host", &server.authority);
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    let is_authorization =
        |(name, _): &(String, String)| name.eq_ignore_ascii_case("authorization");
    if let Some(key) = &server.api_key
        && !request.headers.iter().any(is_authorization)
    {
        builder = builder.header(
            AUTHORIZATION,
            key.header().map_err(hyper::http::Error::from)?,
        );
    }
    let request = builder.body(Full::new(Bytes::from(request.body)))?;

    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let headers = head.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        Ok(Answer {
            status: Some(head.status.as_u16()),
            headers: headers.collect(),
            body: body.collect().await?.to_bytes().to_vec(),
            ..Answer::default()
        })
    };
    tokio::pin!(answer, connection);
    // If the server closes the connection, what it sent before that can still be read.
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}
