//! A server in this process on all transports, with functions that tests can observe.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forrst_client::{Acquire, Call, Client, Error, Lease, LockInfo, Retry};
use forrst_protocol::ErrorCode;
use forrst_server::schemars::{self, JsonSchema};
use forrst_server::{Context, FunctionError, Limits, Server};
use forrst_stores::MemoryStore;
pub(crate) use forrst_testkit::asynchronous::{soon, until};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Charge {
    pub(crate) user: String,
    pub(crate) amount: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Receipt {
    pub(crate) charged: u64,
    pub(crate) fence: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Sleep {
    ms: u64,
}

type Any = Map<String, Value>;

/// A server with `payments.charge`, `test.gate`, `test.wait` (until it is cancelled), `test.sleep`, `test.decline` and `test.context`.
pub(crate) struct Host {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
    charges: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    /// Where its unix socket is.
    folder: TempDir,
    serving: JoinSet<()>,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        Self::start_in(address, tempfile::tempdir().unwrap(), Limits::default()).await
    }

    pub(crate) async fn start_with(limits: Limits) -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        Self::start_in(address, tempfile::tempdir().unwrap(), limits).await
    }

    /// Another server at the address of one that was stopped.
    pub(crate) async fn start_again(self) -> Self {
        self.serving.join_all().await;
        Self::start_in(self.address, self.folder, Limits::default()).await
    }

    async fn start_in(address: SocketAddr, folder: TempDir, limits: Limits) -> Self {
        let charges = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let (count, at_gate) = (charges.clone(), gate.clone());
        let server = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .node("node-test")
            .limits(limits)
            .function(
                "payments.charge",
                "1.0.0",
                move |context: Context, charge: Charge| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let fence = context.lease().map(|lease| lease.fence().to_string());
                    async move {
                        Ok(Receipt {
                            charged: charge.amount,
                            fence,
                        })
                    }
                },
            )
            .function("test.gate", "1.0.0", move |_, _: Any| {
                let gate = at_gate.clone();
                async move {
                    gate.acquire().await?.forget();
                    Ok(json!({}))
                }
            })
            .function("test.wait", "1.0.0", async |context: Context, _: Any| {
                context.cancelled().await;
                Ok(json!({}))
            })
            .function("test.sleep", "1.0.0", async |_, Sleep { ms }: Sleep| {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(json!({"slept": ms}))
            })
            .function("test.decline", "1.0.0", async |_, _: Any| {
                let declined = FunctionError::application("PAYMENTS_DECLINED", "No money left");
                Err::<Value, _>(declined.with_detail("limit", 100).at_argument(["amount"]))
            })
            .function("test.busy", "1.0.0", async |_, _: Any| {
                Err::<Value, _>(FunctionError::new(ErrorCode::Unavailable, "Not now"))
            })
            .function("test.context", "1.0.0", async |context: Context, _: Any| {
                let remaining = context.remaining().map(|left| left.as_secs_f64());
                let sent = context
                    .caller_context()
                    .map(|context| context.get().to_owned());
                Ok(json!({"remaining": remaining, "context": sent}))
            })
            .build()
            .unwrap();
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(server.bind_unix(&socket_in(&folder)).await.unwrap());
        serving.spawn({
            let server = server.clone();
            async move { server.serve_on(listener).await }
        });
        Self {
            server,
            address,
            charges,
            gate,
            folder,
            serving,
        }
    }

    pub(crate) fn http(&self) -> Client {
        Client::builder(format!("http://{}", self.address))
            .build()
            .unwrap()
    }

    pub(crate) fn websocket(&self) -> Client {
        Client::builder(format!("ws://{}", self.address))
            .build()
            .unwrap()
    }

    pub(crate) fn unix(&self) -> Client {
        Client::builder(self.unix_url()).build().unwrap()
    }

    pub(crate) fn unix_url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket_in(&self.folder)
    }

    /// One client for each transport.
    pub(crate) fn clients(&self) -> [Client; 3] {
        [self.http(), self.websocket(), self.unix()]
    }

    /// How often `payments.charge` has run.
    pub(crate) fn charges(&self) -> usize {
        self.charges.load(Ordering::SeqCst)
    }

    pub(crate) fn open_gate(&self) {
        self.open_gate_for(1);
    }

    pub(crate) fn open_gate_for(&self, calls: usize) {
        self.gate.add_permits(calls);
    }

    pub(crate) async fn until_waiting(&self, count: usize) {
        until(&format!("{count} wait"), || {
            self.server.locks().waiting() == count
        })
        .await;
    }

    pub(crate) async fn until_watched(&self, count: usize) {
        until(&format!("{count} keys are watched"), || {
            self.server.locks().watched_keys() == count
        })
        .await;
    }

    pub(crate) async fn until_free(&self, full_key: &str) {
        self.until_held_is(false, full_key).await;
    }

    pub(crate) async fn until_held(&self, full_key: &str) {
        self.until_held_is(true, full_key).await;
    }

    async fn until_held_is(&self, held: bool, full_key: &str) {
        let locks = self.http().locks();
        soon(async {
            while locks.status(full_key).await.unwrap().is_held() != held {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Who holds the lock, by a client that connects to the server directly.
    pub(crate) async fn status(&self, full_key: &str) -> Option<LockInfo> {
        self.http().locks().status(full_key).await.unwrap().held()
    }

    /// Ends the server and all its connections.
    pub(crate) async fn stop(&self) {
        self.server.shut_down(Duration::ZERO).await;
    }
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}

pub(crate) fn charge() -> Charge {
    Charge {
        user: "user_123".to_owned(),
        amount: 100,
    }
}

/// A call of `payments.charge`, to be made.
pub(crate) fn charging(client: &Client) -> Call<Receipt> {
    client.call("payments.charge", charge())
}

/// A call that lasts until the gate is opened for it.
pub(crate) fn wait_at_the_gate(client: &Client) -> JoinHandle<Result<Value, Error>> {
    tokio::spawn(client.call("test.gate", json!({})).into_future())
}

pub(crate) async fn acquired(acquire: Acquire) -> Lease {
    soon(acquire.acquire()).await.unwrap()
}

/// Every pause between two tries takes between half of this time and all of it.
pub(crate) fn pauses_of(time: Duration) -> Retry {
    Retry::default().first_pause(time).longest_pause(time)
}

pub(crate) fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A port that nobody listens on.
pub(crate) async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}
