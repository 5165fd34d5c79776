//! A TCP proxy that stands between client and server, and can be told to misbehave.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_client::{Client, ClientBuilder, Error, Retry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::host::{Host, soon};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Pass,
    /// The server's answers never arrive, and the connection breaks instead, so many times.
    LoseAnswers(usize),
    /// Answers come so much later.
    Delay(Duration),
    /// Nothing passes in any direction, and nobody is told.
    Hole,
    /// Connections are closed as soon as they are made, and those that are open now.
    Cut,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    cut: watch::Sender<u64>,
    wants_callers: watch::Sender<bool>,
    listens: watch::Receiver<bool>,
    connections: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
}

impl Proxy {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wants_callers = watch::Sender::new(true);
        let (listening, listens) = watch::channel(true);
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            mode: Arc::new(Mutex::new(Mode::Pass)),
            cut: watch::Sender::new(0),
            wants_callers: wants_callers.clone(),
            listens,
            connections: Arc::default(),
            lost: Arc::default(),
        };
        let (mode, cut) = (proxy.mode.clone(), proxy.cut.clone());
        let (connections, lost) = (proxy.connections.clone(), proxy.lost.clone());
        let address = proxy.address;
        tokio::spawn(async move {
            let mut wanted = wants_callers.subscribe();
            let mut listener = Some(listener);
            loop {
                let callers = match listener.take() {
                    Some(listener) => listener,
                    None => TcpListener::bind(address).await.unwrap(),
                };
                listening.send_replace(true);
                let serve = async {
                    while let Ok((client, _)) = callers.accept().await {
                        if *mode.lock().unwrap() == Mode::Cut {
                            continue;
                        }
                        connections.fetch_add(1, Ordering::SeqCst);
                        let (mode, lost) = (mode.clone(), lost.clone());
                        let mut is_cut = cut.subscribe();
                        tokio::spawn(async move {
                            tokio::select! {
                                () = connect(client, target, &mode, &lost) => {}
                                _ = is_cut.changed() => {}
                            }
                        });
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = wanted.wait_for(|wanted| !wanted) => {}
                }
                drop(callers);
                listening.send_replace(false);
                wanted.wait_for(|wanted| *wanted).await.unwrap();
            }
        });
        proxy
    }

    pub(crate) fn http(&self) -> ClientBuilder {
        Client::builder(format!("http://{}", self.address))
    }

    pub(crate) fn websocket(&self) -> ClientBuilder {
        Client::builder(format!("ws://{}", self.address))
    }

    pub(crate) fn pass(&self) {
        self.set(Mode::Pass);
    }

    pub(crate) fn lose_answers(&self, count: usize) {
        self.set(Mode::LoseAnswers(count));
    }

    pub(crate) fn delay(&self, time: Duration) {
        self.set(Mode::Delay(time));
    }

    pub(crate) fn swallow(&self) {
        self.set(Mode::Hole);
    }

    pub(crate) fn cut(&self) {
        self.set(Mode::Cut);
        self.cut.send_modify(|count| *count += 1);
    }

    /// Nobody is let in from now on, and nobody listens.
    pub(crate) async fn refuse(&self) {
        self.wants_callers.send_replace(false);
        let mut listens = self.listens.clone();
        listens.wait_for(|listens| !listens).await.unwrap();
    }

    /// As before.
    pub(crate) async fn let_in(&self) {
        self.wants_callers.send_replace(true);
        let mut listens = self.listens.clone();
        listens.wait_for(|listens| *listens).await.unwrap();
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// How many answers were lost.
    pub(crate) fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

pub(crate) async fn host_behind_proxy() -> (Host, Proxy) {
    let host = Host::start().await;
    let proxy = Proxy::to(host.address).await;
    (host, proxy)
}

/// With a client that has reached the host through the proxy, by `http` or `ws`.
pub(crate) async fn connected_by(scheme: &str) -> (Host, Proxy, Client) {
    let (host, proxy) = host_behind_proxy().await;
    let url = format!("{scheme}://{}", proxy.address);
    let client = soon(Client::connect(&url)).await.unwrap();
    (host, proxy, client)
}

async fn connect(client: TcpStream, target: SocketAddr, mode: &Mutex<Mode>, lost: &AtomicUsize) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
            swallowed(mode).await;
            if to_server.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
    };
    let answers = async {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
            swallowed(mode).await;
            if loses(mode) {
                lost.fetch_add(1, Ordering::SeqCst);
                break;
            }
            let delay = match *mode.lock().unwrap() {
                Mode::Delay(time) => time,
                _ => Duration::ZERO,
            };
            tokio::time::sleep(delay).await;
            if to_client.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

fn loses(mode: &Mutex<Mode>) -> bool {
    let mut mode = mode.lock().unwrap();
    match *mode {
        Mode::LoseAnswers(0) => {
            *mode = Mode::Pass;
            false
        }
        Mode::LoseAnswers(left) => {
            *mode = Mode::LoseAnswers(left - 1);
            true
        }
        _ => false,
    }
}

/// A connection on which something fell into the hole is silent for ever.
async fn swallowed(mode: &Mutex<Mode>) {
    if *mode.lock().unwrap() == Mode::Hole {
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn the_proxy_passes_and_loses_what_it_is_told_to() {
    let (_host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    soon(client.ping()).await.unwrap();
    proxy.lose_answers(1);
    soon(client.ping()).await.unwrap_err();
    assert_eq!(proxy.lost(), 1);
    soon(client.ping()).await.unwrap();
    proxy.cut();
    soon(client.ping()).await.unwrap_err();
    proxy.pass();
    soon(client.ping()).await.unwrap();
}

#[tokio::test]
async fn the_proxy_lets_nobody_in_while_it_is_told_to() {
    let (_host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    soon(proxy.refuse()).await;
    let error = soon(client.ping()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    soon(proxy.let_in()).await;
    soon(client.ping()).await.unwrap();
}
