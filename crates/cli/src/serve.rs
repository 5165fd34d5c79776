//! `forrst serve`: opens the store, starts the server, and shuts it down in order on a signal.

mod authentication;
mod descriptors;
mod log;
mod signals;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_server::{Audit, Server};
use forrst_stores::{Durability, OpenOptions, url_without_secrets};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::authentication::Authentication;
use self::log::Log;
use self::signals::ServerSignals;
use crate::demo;
use crate::error::CommandError;
use crate::options::{DurabilityLevel, Settings};

/// How long a server that ends at once waits for the log to write its last line.
const LAST_LINE_TIME: Duration = Duration::from_millis(50);

/// Serves until a signal ends it.
pub(crate) fn run(settings: Settings) -> Result<(), CommandError> {
    #[cfg(feature = "otlp")]
    let traces = crate::traces::Traces::start()?;
    let log = Log::start(settings.log_format);
    let lines = log.layer(settings.log_format, settings.log_level);
    let subscriber = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "otlp")]
    let subscriber = subscriber.with(traces.layer());
    subscriber.init();
    log_panics();
    let runtime = Runtime::new().map_err(|error| format!("cannot start: {error}"))?;
    let outcome = runtime.block_on(serve(settings, &log));
    // Tasks that are still running may keep the store open, which has to be closed in order.
    runtime.shutdown_timeout(Duration::from_secs(1));
    log.finish();
    outcome
}

async fn serve(mut settings: Settings, log: &Log) -> Result<(), CommandError> {
    descriptors::make_room(&mut settings.limits);
    let authentication = Authentication::load(&settings)?;
    let can_reload = authentication.can_reload() || settings.audit_log.is_some();
    let mut signals = ServerSignals::listen(can_reload)?;
    let store = tokio::select! {
        store = open_store(&settings) => store?,
        // PID 1 of a container is not ended by a signal that it does not handle.
        name = signals.until_end(|| authentication.reload()) => {
            tracing::info!(signal = name, "ending before the store is open");
            return Ok(());
        }
    };
    let server = build(&settings, &authentication, log, store)?;
    let listener = TcpListener::bind(&settings.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?;
    authentication.check_address(&listener, settings.is_insecure)?;
    let mut serving = JoinSet::new();
    if let Some(path) = &settings.unix {
        let serve = server.bind_unix(path).await;
        let failed = |error| format!("cannot listen on {}: {error}", path.display());
        serving.spawn(serve.map_err(failed)?);
    }
    print_banner(&server, &settings, &listener);

    let http = server.clone();
    serving.spawn(async move { http.serve_on(listener).await });
    let name = signals.until_end(|| reload(&authentication, &server)).await;
    tracing::info!(signal = name, drain = ?settings.drain_timeout, "shutting down");
    tokio::select! {
        () = server.shut_down(settings.drain_timeout) => {}
        name = signals.until_end(|| ()) => {
            tracing::warn!(signal = name, "ending at once");
            // The log is written by another thread.
            tokio::time::sleep(LAST_LINE_TIME).await;
            std::process::exit(i32::from(crate::exit::INTERRUPTED));
        }
    }
    serving.join_all().await;
    tracing::info!("bye");
    Ok(())
}

async fn open_store(settings: &Settings) -> Result<Arc<dyn LockStore>, CommandError> {
    let mut options = OpenOptions::default();
    options.durability = match settings.durability {
        DurabilityLevel::Full => Durability::Full,
        DurabilityLevel::Process => Durability::Process,
    };
    options.release_memory = settings.release_memory;
    options.store_timeout = settings.store_timeout;
    options.store_wait = settings.store_wait;
    options.postgres = settings.postgres.clone();
    options.redis = settings.redis.clone();
    let store = forrst_stores::open(&settings.store, &options).await;
    store.map_err(|error| match CommandError::local(error.to_string()) {
        failed if error.is_worth_waiting() => {
            failed.hint("--store-wait 30s waits for a store that is not up yet")
        }
        failed => failed,
    })
}

fn build(
    settings: &Settings,
    authentication: &Authentication,
    log: &Log,
    store: Arc<dyn LockStore>,
) -> Result<Server, String> {
    let mut builder = Server::builder()
        .store(store)
        .limits(settings.limits.clone())
        .lock_config(settings.locks.clone())
        .access(authentication.access.clone())
        .log_lines_dropped(log.dropped());
    if let Some(tls) = &authentication.tls {
        builder = builder.tls(tls.clone());
    }
    for host in &settings.allowed_hosts {
        builder = builder.allow_host(host);
    }
    if let Some(path) = &settings.audit_log {
        let audit = Audit::open(path);
        let failed = |error| format!("cannot write the audit log {}: {error}", path.display());
        builder = builder.audit(audit.map_err(failed)?);
    }
    if let Some(node) = &settings.node {
        builder = builder.node(node);
    }
    if settings.demo {
        builder = demo::register(builder);
    }
    builder.build().map_err(|error| error.to_string())
}

/// Reads keys and certificates again, and opens the audit log again.
fn reload(authentication: &Authentication, server: &Server) {
    authentication.reload();
    if let Err(error) = server.audit().reopen() {
        tracing::error!(%error, "cannot open the audit log again");
    }
}

/// Prints the addresses, the store, the functions, and a command to try.
fn print_banner(server: &Server, settings: &Settings, listener: &TcpListener) {
    let address = listener
        .local_addr()
        .map_or_else(|_| settings.listen.clone(), |address| address.to_string());
    let capabilities = server.locks().store().capabilities();
    let lasts = match settings.durability {
        _ if capabilities.shared => "shared with every server that uses it",
        _ if !capabilities.durable => "locks are lost when the server ends",
        DurabilityLevel::Full => "durable",
        DurabilityLevel::Process => "durable, except after a loss of power",
    };
    let unix = settings.unix.as_ref();
    let unix = unix.map(|path| format!("\n  unix       {}", path.display()));
    let functions = match server.functions() {
        functions if functions.is_empty() => {
            "only the system functions (--demo adds some to try)".to_owned()
        }
        functions => functions.join(", "),
    };
    let banner = format!(
        "forrst {version} · {node}
  http       {scheme}://{address}/forrst   (JSON-RPC and WebSocket: /rpc){unix}
  dashboard  {scheme}://{address}/   (metrics for Prometheus: /metrics)
  store      {store} ({lasts})
  functions  {functions}

Try it:

  curl -s {scheme}://{address}/forrst{key} -H 'content-type: application/json' -d '{example}'

",
        version = env!("CARGO_PKG_VERSION"),
        scheme = if settings.tls.is_some() {
            "https"
        } else {
            "http"
        },
        key = if settings.auth_file.is_some() {
            " -H \"x-api-key: $FORRST_API_KEY\""
        } else {
            ""
        },
        node = server.node(),
        unix = unix.unwrap_or_default(),
        store = url_without_secrets(&settings.store),
        example = example(settings.demo),
    );
    // A failure does not matter: as in `forrst serve | head -1`, there may be no reader.
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

/// Panics are logged like other errors. The caller of the function gets an answer all the same.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(location, message, "a function panicked");
    }));
}
