//! A TCP proxy that can delay, hold back and lose what it forwards, and close connections.

mod link;
mod state;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use link::Link;
use state::State;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// Which connections a fault concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// All connections.
    All,
    /// Connections that have subscribed to a channel, of Redis or of Postgres.
    Subscriptions,
}

/// A proxy between clients and a server on this machine, whose faults can be switched on and off.
pub struct Proxy {
    address: String,
    link: Arc<Link>,
}

impl Proxy {
    /// Starts a proxy for the server at this port.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = Arc::new(Link::default());
        let accepting = link.clone();
        thread::spawn(move || accepting.accept(listener, server));
        Self { address, link }
    }

    /// The URL for `FORRST_URL`.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL for `--store`, of a Redis.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The URL for `--store`, of a Postgres fixture.
    pub fn postgres_url(&self) -> String {
        format!(
            "postgres://forrst@{}/postgres?sslmode=disable",
            self.address
        )
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Delays everything in this direction.
    pub fn delay(&self, way: Way, by: Duration) {
        self.link.change(|state| state.rules_mut(way).delay = by);
    }

    /// Closes the open connections; clients may connect again. Where requests are or were held back, only the client's side is closed;
    /// the server receives the end of the connection after them.
    pub fn cut(&self, traffic: Traffic) {
        self.link.change(|state| state.cut(traffic));
    }

    /// Closes connections, and all that are opened from now on.
    pub fn refuse(&self, traffic: Traffic) {
        self.link.change(|state| {
            state.refused = Some(traffic);
            state.cut(traffic);
        });
    }

    /// Loses everything in this direction, while all connections stay open.
    pub fn swallow(&self, way: Way, traffic: Traffic) {
        self.link
            .change(|state| state.rules_mut(way).swallowed = Some(traffic));
    }

    /// Loses the next answers, and closes the connection of each.
    pub fn lose_answers(&self, count: usize) {
        self.link.change(|state| state.answers_to_lose = count);
    }

    /// Holds back all requests from now on, while connections stay open, until [`deliver_requests`](Self::deliver_requests).
    ///
    /// They outlive the connection on the client's side: a client may disconnect before the server receives what it has sent. After
    /// [`pass`](Self::pass) and [`heal`](Self::heal), only connections with requests that are held back continue to be; others and new
    /// ones work.
    pub fn hold_requests(&self) {
        self.link.change(|state| state.holds_requests = true);
    }

    /// Delivers the requests that were held back, in their order on each connection, and then closes the connections that the client
    /// has closed. Returns how many bytes were delivered.
    pub fn deliver_requests(&self) -> usize {
        let mut delivered = 0;
        self.link.change(|state| delivered = state.deliver());
        delivered
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.link.state().held()
    }

    /// Stops listening: new connections are refused by the system. Open connections stay open.
    pub fn stop_listening(&self) {
        self.link.change(|state| state.is_not_listening = true);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
        let state = self.link.state();
        let stopped = self
            .link
            .changed
            .wait_while(state, |state| !state.has_stopped);
        drop(stopped);
    }

    /// Listens again.
    pub fn listen(&self) {
        self.link.change(|state| state.is_not_listening = false);
        let state = self.link.state();
        let listening = self
            .link
            .changed
            .wait_while(state, |state| state.has_stopped);
        drop(listening);
    }

    /// Forwards everything again, but connections that have lost something stay open and silent, as if the peer had lost its state.
    pub fn pass(&self) {
        self.link.change(State::pass);
    }

    /// Forwards everything again. Connections that have lost something are closed, as by a network that has recovered; those with
    /// requests that are held back are closed on the client's side.
    pub fn heal(&self) {
        self.link.change(|state| {
            state.pass();
            state.cut_where(|connection| {
                !connection.silent_ways.is_empty() || !connection.held.is_empty()
            });
        });
    }

    /// How many bytes were lost in total.
    pub fn lost(&self) -> usize {
        self.link.state().lost
    }

    /// How many answers were lost with their connections.
    pub fn lost_answers(&self) -> usize {
        self.link.state().lost_answers
    }

    /// The addresses of its open connections, as the server sees them.
    pub fn addresses(&self) -> Vec<String> {
        let state = self.link.state();
        let connections = state.connections.values();
        let addresses = connections.filter_map(|connection| connection.server.local_addr().ok());
        addresses.map(|address| address.to_string()).collect()
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.link.state().opened
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.change(|state| {
            state.is_closed = true;
            state.close_all();
        });
        // Wakes the thread that accepts, so that it ends.
        let _ = TcpStream::connect(&self.address);
    }
}
