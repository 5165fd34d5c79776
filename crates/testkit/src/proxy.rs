//! A link that can be broken.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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

    /// Closes connections that are open. They may be opened again.
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

    /// Passes on everything again. Connections that have lost something are closed, as by a network that is back.
    pub fn heal(&self) {
        self.link.change(|state| {
            state.pass();
            state.cut_where(|connection| !connection.silent_ways.is_empty());
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
            state.cut(Traffic::All);
        });
        // The thread that accepts is woken, and sees that it is over.
        let _ = TcpStream::connect(&self.address);
    }
}

#[derive(Default)]
struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_over: bool,
    is_deaf: bool,
    has_stopped: bool,
    refused: Option<Traffic>,
    to_server: Rules,
    to_client: Rules,
    connections: HashMap<u64, Connection>,
    opened: u64,
    lost: usize,
    answers_to_lose: usize,
    lost_answers: usize,
}

/// What becomes of the bytes that go one way.
#[derive(Default)]
struct Rules {
    delay: Duration,
    swallowed: Option<Traffic>,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    has_subscribed: bool,
    /// On which nothing arrives any more, because something was lost.
    silent_ways: Vec<Way>,
}

impl Connection {
    fn is(&self, traffic: Traffic) -> bool {
        traffic == Traffic::All || self.has_subscribed
    }

    fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl State {
    fn rules(&self, way: Way) -> &Rules {
        match way {
            Way::ToServer => &self.to_server,
            Way::ToClient => &self.to_client,
        }
    }

    fn rules_mut(&mut self, way: Way) -> &mut Rules {
        match way {
            Way::ToServer => &mut self.to_server,
            Way::ToClient => &mut self.to_client,
        }
    }

    fn pass(&mut self) {
        self.refused = None;
        self.to_server = Rules::default();
        self.to_client = Rules::default();
        self.answers_to_lose = 0;
    }

    fn cut(&mut self, traffic: Traffic) {
        self.cut_where(|connection| connection.is(traffic));
    }

    fn cut_where(&mut self, is_meant: impl Fn(&Connection) -> bool) {
        self.connections.retain(|_, connection| {
            let is_cut = is_meant(connection);
            if is_cut {
                connection.close();
            }
            !is_cut
        });
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>, mut listener: TcpListener, server: u16) {
        let address = listener.local_addr().unwrap();
        loop {
            for client in listener.incoming().map_while(Result::ok) {
                let state = self.state();
                if state.is_over {
                    return;
                }
                if state.is_deaf {
                    break;
                }
                drop(state);
                self.connect(client, server);
            }
            drop(listener);
            self.change(|state| state.has_stopped = true);
            let state = self.state();
            let waited = self
                .changed
                .wait_while(state, |state| state.is_deaf && !state.is_over);
            if waited.unwrap_or_else(PoisonError::into_inner).is_over {
                return;
            }
            listener = TcpListener::bind(address).unwrap();
            self.change(|state| state.has_stopped = false);
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream, server: u16) {
        if self.state().refused == Some(Traffic::All) {
            return;
        }
        // A server that is not there is, to the client, a connection that is closed at once.
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let again = |stream: &TcpStream| stream.try_clone().unwrap();
        let ways = [
            (Way::ToServer, again(&client), again(&server)),
            (Way::ToClient, again(&server), again(&client)),
        ];
        let connection = Connection {
            client,
            server,
            has_subscribed: false,
            silent_ways: Vec::new(),
        };
        let id = {
            let mut state = self.state();
            state.opened += 1;
            let id = state.opened;
            state.connections.insert(id, connection);
            id
        };
        for (way, from, to) in ways {
            let link = self.clone();
            thread::spawn(move || {
                link.pump(id, way, from, to);
                link.change(|state| {
                    if let Some(connection) = state.connections.remove(&id) {
                        connection.close();
                    }
                });
            });
        }
    }

    /// Passes on what comes, until one of the sides is gone.
    fn pump(&self, id: u64, way: Way, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            if self.pass(id, way, bytes) && to.write_all(bytes).is_err() {
                return;
            }
        }
    }

    /// Whether these bytes go on, once it is time for them.
    fn pass(&self, id: u64, way: Way, bytes: &[u8]) -> bool {
        let since = Instant::now();
        let mut state = self.state();
        if way == Way::ToServer && subscribes(bytes) {
            let refused = state.refused.is_some();
            if let Some(connection) = state.connections.get_mut(&id) {
                connection.has_subscribed = true;
                if refused {
                    connection.close();
                }
            }
        }
        loop {
            let early = state.rules(way).delay.saturating_sub(since.elapsed());
            if early.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, early);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let swallowed = state.rules(way).swallowed;
        let loses_answer = way == Way::ToClient && state.answers_to_lose > 0;
        let Some(connection) = state.connections.get_mut(&id) else {
            return false;
        };
        let is_lost = connection.silent_ways.contains(&way)
            || swallowed.is_some_and(|traffic| connection.is(traffic));
        if is_lost {
            connection.silent_ways.push(way);
            state.lost += bytes.len();
        } else if loses_answer {
            connection.close();
            state.answers_to_lose -= 1;
            state.lost_answers += 1;
            return false;
        }
        !is_lost
    }
}

fn subscribes(bytes: &[u8]) -> bool {
    let word = b"SUBSCRIBE";
    let mut windows = bytes.windows(word.len());
    windows.any(|window| window.eq_ignore_ascii_case(word))
}
