//! `forrst serve`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use forrst_server::{Limits, Server};
use forrst_stores::{Durability, OpenOptions};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

use crate::demo;
use crate::options::{DurabilityLevel, LogFormat, Settings};

/// Serves until a signal ends it.
pub(crate) fn run(settings: Settings) -> Result<(), String> {
    start_log(settings.log_format);
    let runtime = Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    let outcome = runtime.block_on(serve(settings));
    // The last task to end may be the one that keeps the store open: it is to be closed in order.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn serve(settings: Settings) -> Result<(), String> {
    let server = build(&settings)?;
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(&settings.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?;
    let mut serving = JoinSet::new();
    if let Some(path) = &settings.unix {
        let serve = server.bind_unix(path).await;
        let failed = |error| format!("cannot listen on {}: {error}", path.display());
        serving.spawn(serve.map_err(failed)?);
    }
    print_banner(&server, &settings, &listener);

    let http = server.clone();
    serving.spawn(async move { http.serve_on(listener).await });
    let name = signals.next().await;
    tracing::info!(signal = name, drain = ?settings.drain_timeout, "shutting down");
    tokio::select! {
        () = server.shut_down(settings.drain_timeout) => {}
        name = signals.next() => {
            tracing::warn!(signal = name, "ending at once");
            std::process::exit(130);
        }
    }
    serving.join_all().await;
    tracing::info!("bye");
    Ok(())
}

fn build(settings: &Settings) -> Result<Server, String> {
    let mut options = OpenOptions::default();
    options.durability = match settings.durability {
        DurabilityLevel::Full => Durability::Full,
        DurabilityLevel::Process => Durability::Process,
    };
    let store = forrst_stores::open(&settings.store, &options);
    let store = store.map_err(|error| error.to_string())?;
    let limits = Limits {
        max_ttl: settings.max_ttl,
        max_block: settings.max_block,
        max_body: settings.max_body,
        max_connections: settings.max_connections,
        ..Limits::default()
    };
    let mut builder = Server::builder().store(store).limits(limits);
    if let Some(node) = &settings.node {
        builder = builder.node(node);
    }
    if settings.demo {
        builder = demo::register(builder);
    }
    builder.build().map_err(|error| error.to_string())
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot mind signals: {error}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// What somebody who has just started the server wants to know.
fn print_banner(server: &Server, settings: &Settings, listener: &TcpListener) {
    let address = listener
        .local_addr()
        .map_or_else(|_| settings.listen.clone(), |address| address.to_string());
    let is_durable = server.locks().store().capabilities().durable;
    let lasts = match settings.durability {
        _ if !is_durable => "locks end with the server",
        DurabilityLevel::Full => "durable",
        DurabilityLevel::Process => "durable, but not across a loss of power",
    };
    let unix = settings.unix.as_ref();
    let unix = unix.map(|path| format!("\n  unix   {}", path.display()));
    let functions = match server.functions() {
        functions if functions.is_empty() => {
            "only those for locks, health and discovery (--demo adds some)".to_owned()
        }
        functions => functions.join(", "),
    };
    let banner = format!(
        "forrst {version} · {node}
  http   http://{address}/forrst   (JSON-RPC and WebSocket: /rpc){unix}
  store  {store} ({lasts})
  functions  {functions}

Try it:

  curl -s http://{address}/forrst -H 'content-type: application/json' -d '{example}'

",
        version = env!("CARGO_PKG_VERSION"),
        node = server.node(),
        unix = unix.unwrap_or_default(),
        store = settings.store,
        example = example(settings.demo),
    );
    // Nobody may be reading; the server is none the worse for it.
    let _ = std::io::stdout().write_all(banner.as_bytes());
    let _ = std::io::stdout().flush();
}

fn example(demo: bool) -> &'static str {
    if demo {
        r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_001","call":{"function":"payments.charge","arguments":{"user_id":"user_123","amount":100}},"extensions":[{"urn":"urn:forrst:ext:atomicLock","options":{"key":"user:123","ttl":{"value":30,"unit":"second"}}}]}"#
    } else {
        r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_001","call":{"function":"urn:cline:forrst:ext:atomic-lock:fn:acquire","arguments":{"key":"user:123","ttl":{"value":30,"unit":"second"}}}}"#
    }
}

/// Log lines go to stderr; `RUST_LOG` chooses which. A panic is a log line, too: its caller has an answer.
fn start_log(format: LogFormat) {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(place, message, "a function panicked");
    }));
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A log that cannot be written must not end the server: it would be told on stderr, which is the log.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().init(),
    }
}
