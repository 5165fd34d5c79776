//! Many calls over one unix socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forrst_client::{Client, Error, Retry};
use forrst_protocol::ErrorCode;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::host::{Host, Receipt, acquired, charging, ms, soon, until, wait_at_the_gate};

/// A relay before a unix socket, whose connections can be counted and broken.
struct Relay {
    folder: TempDir,
    connections: Arc<AtomicUsize>,
    broken: watch::Sender<()>,
    accepting: AbortHandle,
}

impl Relay {
    fn start(to: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("relay")).unwrap();
        let (connections, broken) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(()));
        let (count, is_broken) = (connections.clone(), broken.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let mut server = UnixStream::connect(&to).await.unwrap();
                let mut is_broken = is_broken.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = is_broken.changed() => {}
                    }
                });
            }
        });
        Self {
            folder,
            connections,
            broken,
            accepting: accepting.abort_handle(),
        }
    }

    /// A client that tries once.
    fn client(&self) -> Client {
        client_of(&self.folder, "relay")
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Each open connection has a receiver.
    fn open_connections(&self) -> usize {
        self.broken.receiver_count()
    }

    fn break_all(&self) {
        self.broken.send_replace(());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn client_of(folder: &TempDir, name: &str) -> Client {
    let url = format!("unix:{}", folder.path().join(name).display());
    let builder = Client::builder(url).retry(Retry::never());
    builder.build().unwrap()
}

#[tokio::test]
async fn slow_calls_do_not_delay_other_calls_on_the_same_connection() {
    let host = Host::start().await;
    let relay = Relay::start(host.socket());
    let client = relay.client();
    let slow: Vec<_> = (0..64).map(|_| wait_at_the_gate(&client)).collect();
    for _ in 0..64 {
        soon(charging(&client)).await.unwrap();
    }
    assert!(slow.iter().all(|call| !call.is_finished()));
    host.open_gate_for(64);
    for call in slow {
        soon(call).await.unwrap().unwrap();
    }
    assert_eq!(relay.connections(), 1);
}

#[tokio::test]
async fn a_wait_for_a_lock_ends_with_its_release() {
    let host = Host::start().await;
    let client = host.unix();
    let first = acquired(client.lock("k")).await;
    let second = tokio::spawn(client.lock("k").wait(ms(60_000)).acquire());
    host.until_waiting(1).await;
    soon(first.release()).await.unwrap();
    let second = soon(second).await.unwrap().unwrap();
    assert!(second.is_held());
}

#[tokio::test]
async fn a_lease_is_renewed() {
    let host = Host::start().await;
    let lease = acquired(host.unix().lock("k").ttl(ms(3_000))).await;
    let first_end = lease.held_until();
    until("it is renewed", || lease.held_until() > first_end).await;
}

#[tokio::test]
async fn a_stopped_server_is_unreachable_until_it_is_started_again() {
    let host = Host::start().await;
    let client = host.unix();
    soon(client.ping()).await.unwrap();
    host.stop().await;
    let call = charging(&client).retry(Retry::never());
    let error = soon(call).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    let host = host.start_again().await;
    soon(charging(&client)).await.unwrap();
    assert_eq!(host.charges(), 1);
}

#[tokio::test]
async fn calls_under_way_when_the_connection_breaks_may_have_run() {
    let host = Host::start().await;
    let relay = Relay::start(host.socket());
    let client = relay.client();
    let calls = [(); 10].map(|()| wait_at_the_gate(&client));
    soon(client.ping()).await.unwrap();
    relay.break_all();
    for call in calls {
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Interrupted(_)), "{error}");
    }
    soon(client.ping()).await.unwrap();
    assert_eq!(relay.connections(), 2);
}

#[tokio::test]
async fn the_connection_is_closed_when_the_client_is_dropped() {
    let host = Host::start().await;
    let relay = Relay::start(host.socket());
    let client = relay.client();
    soon(client.ping()).await.unwrap();
    assert_eq!(relay.open_connections(), 1);
    drop(client);
    until("it is closed", || relay.open_connections() == 0).await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_rejected() {
    let host = Host::start().await;
    let client = host.unix();
    let huge = json!({"user": "x".repeat(2 * 1024 * 1024), "amount": 1});
    let call = client.call::<_, Receipt>("payments.charge", huge);
    let error = soon(call).await.unwrap_err();
    assert_eq!(error.code(), Some(&ErrorCode::InvalidRequest), "{error}");
    assert!(!error.may_have_run());
    soon(client.ping()).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    let client = client_of(&folder, "socket");
    let call = tokio::spawn(async move { client.ping().await });
    let (mut stream, _) = soon(listener.accept()).await.unwrap();
    soon(stream.read_u32()).await.unwrap();
    stream.write_u32(64 * 1024 * 1024 + 1).await.unwrap();
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Interrupted(_)), "{error}");
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[tokio::test]
async fn an_error_names_the_socket_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for name in ["nothing", "file"] {
        let error = soon(client_of(&folder, name).ping()).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[tokio::test]
async fn a_path_that_is_not_absolute_is_refused() {
    let error = Client::connect("unix:run/forrst.sock").await.unwrap_err();
    assert!(matches!(error, Error::Configuration(_)), "{error}");
    assert!(
        error.to_string().contains("unix:run/forrst.sock"),
        "{error}"
    );
}
