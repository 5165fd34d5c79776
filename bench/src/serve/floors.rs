//! Minimal servers that parse the same JSON and answer with JSON, and do nothing else: an upper bound for our server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;

use axum::Json;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jsonrpsee::RpcModule;
use jsonrpsee::server::ServerBuilder;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

/// Roughly the answer of our server: the protocol, the id and the result.
fn answer(mut request: Value) -> Value {
    json!({
        "protocol": request["protocol"].take(),
        "id": request["id"].take(),
        "result": request["call"]["arguments"].take(),
    })
}

async fn bind() -> Result<(TcpListener, SocketAddr), String> {
    let failed = |error| format!("cannot listen: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

pub(super) async fn hyper() -> Result<SocketAddr, String> {
    let (listener, address) = bind().await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let connection = auto::Builder::new(TokioExecutor::new());
                let service = service_fn(echo);
                let serve = connection.serve_connection(TokioIo::new(stream), service);
                // A client that disconnects is an error here.
                let _ = serve.await;
            });
        }
    });
    Ok(address)
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let parsed = request.into_body().collect().await.ok();
    let parsed = parsed.and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    let mut response = Response::new(Full::default());
    match parsed {
        Some(request) => *response.body_mut() = answer(request).to_string().into(),
        None => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

pub(super) async fn axum() -> Result<SocketAddr, String> {
    let (listener, address) = bind().await?;
    let echo = |Json(request): Json<Value>| async { Json(answer(request)) };
    let router = axum::Router::new().route("/forrst", axum::routing::post(echo));
    tokio::spawn(async move {
        use axum::serve::ListenerExt;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router).await
    });
    Ok(address)
}

pub(super) async fn jsonrpsee() -> Result<SocketAddr, String> {
    let failed = |error: &dyn std::fmt::Display| format!("jsonrpsee: {error}");
    let server = ServerBuilder::new().build("127.0.0.1:0").await;
    let server = server.map_err(|error| failed(&error))?;
    let address = server.local_addr().map_err(|error| failed(&error))?;
    let mut module = RpcModule::new(());
    let echo = module.register_method("forrst.call", |params, (), _| {
        answer(params.parse().unwrap_or_default())
    });
    echo.map_err(|error| failed(&error))?;
    let handle = server.start(module);
    tokio::spawn(handle.stopped());
    Ok(address)
}

/// Length-prefixed frames, on TCP and on a unix socket.
pub(super) async fn frames(path: &Path) -> Result<SocketAddr, String> {
    let unix = UnixListener::bind(path).map_err(|error| format!("cannot listen: {error}"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = unix.accept().await {
            tokio::spawn(echo_frames(stream));
        }
    });
    let (listener, address) = bind().await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(echo_frames(stream));
        }
    });
    Ok(address)
}

/// Reads what has arrived, and answers all of it in one write.
async fn echo_frames(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Option<()> {
    let (mut input, mut output) = (BytesMut::with_capacity(64 * 1024), Vec::new());
    loop {
        let read = stream.read_buf(&mut input).await.ok()?;
        (read > 0).then_some(())?;
        while let Some(length) = input.first_chunk::<4>() {
            let end = 4 + usize::try_from(u32::from_be_bytes(*length)).ok()?;
            let Some(request) = input.get(4..end) else {
                break;
            };
            let start = output.len();
            output.extend([0; 4]);
            let answer = answer(serde_json::from_slice(request).ok()?);
            serde_json::to_writer(&mut output, &answer).ok()?;
            let length = u32::try_from(output.len() - start - 4).ok()?;
            output[start..start + 4].copy_from_slice(&length.to_be_bytes());
            input.advance(end);
        }
        stream.write_all(&output).await.ok()?;
        output.clear();
    }
}
