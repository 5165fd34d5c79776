//! A link that can be broken.

mod link;
mod state;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use link::Link;
use state::State;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// Which connections are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Every one.
    All,
    /// Those on which somebody has subscribed to a channel of Redis.
    Subscriptions,
}

/// Stands between a client and a server of this machine, and passes on what they say, or not.
pub struct Proxy {
    address: String,
    link: Arc<Link>,
}

impl Proxy {
    /// Before the server at this port.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = Arc::new(Link::default());
        let accepting = link.clone();
        thread::spawn(move || accepting.accept(listener, server));
        Self { address, link }
    }

    /// As `FORRST_URL` takes it.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// As `--store` takes it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Lets everything arrive later.
    pub fn delay(&self, way: Way, by: Duration) {
        self.link.change(|state| state.rules_mut(way).delay = by);
    }

    /// Closes connections that are open. They may be opened again. Where requests are or were held back, only the side of the
    /// client is closed; the server receives the end behind them.
    pub fn cut(&self, traffic: Traffic) {
        self.link.change(|state| state.cut(traffic));
    }

    /// Closes connections, and whatever is opened instead.
    pub fn refuse(&self, traffic: Traffic) {
        self.link.change(|state| {
            state.refused = Some(traffic);
            state.cut(traffic);
        });
    }

    /// Loses what goes this way, while all connections stay open.
    pub fn swallow(&self, way: Way, traffic: Traffic) {
        self.link
            .change(|state| state.rules_mut(way).swallowed = Some(traffic));
    }

    /// Loses the next answers, and with each of them its connection.
    pub fn lose_answers(&self, count: usize) {
        self.link.change(|state| state.answers_to_lose = count);
    }

    /// Holds back all requests from now on, while connections stay open, until [`deliver_requests`](Self::deliver_requests).
    ///
    /// They outlive the connection on the client's side: a client may give up, and be gone, before the server receives
    /// what it has sent. After [`pass`](Self::pass) and [`heal`](Self::heal) only connections on which something was held
    /// back by then go on to be held back; others and new ones work.
    pub fn hold_requests(&self) {
        self.link.change(|state| state.holds_requests = true);
    }

    /// Ends that: the server receives what was held back, in its order on each connection, and the end of those that the
    /// client has closed. Returns how many bytes that were.
    pub fn deliver_requests(&self) -> usize {
        let mut delivered = 0;
        self.link.change(|state| delivered = state.deliver());
        delivered
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.link.state().held()
    }

    /// Stops listening: who comes now is refused by the system. Connections that are open stay so.
    pub fn stop_listening(&self) {
        self.link.change(|state| state.is_deaf = true);
        // The thread that accepts is woken.
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
        self.link.change(|state| state.is_deaf = false);
        let state = self.link.state();
        let listening = self
            .link
            .changed
            .wait_while(state, |state| state.has_stopped);
        drop(listening);
    }

    /// Passes on everything again, but connections that have lost something stay open and silent, as if their other side
    /// had forgotten them.
    pub fn pass(&self) {
        self.link.change(State::pass);
    }

    /// Passes on everything again. Connections that have lost something are closed, as by a network that is back; those
    /// with requests that are held back are closed on the client's side.
    pub fn heal(&self) {
        self.link.change(|state| {
            state.pass();
            state.cut_where(|connection| {
                !connection.silent_ways.is_empty() || !connection.held.is_empty()
            });
        });
    }

    /// How many bytes were lost.
    pub fn lost(&self) -> usize {
        self.link.state().lost
    }

    /// How many answers were lost with their connections.
    pub fn lost_answers(&self) -> usize {
        self.link.state().lost_answers
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.link.state().opened
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.change(|state| {
            state.is_over = true;
            state.close_all();
        });
        // The thread that accepts is woken, and sees that it is over.
        let _ = TcpStream::connect(&self.address);
    }
}
