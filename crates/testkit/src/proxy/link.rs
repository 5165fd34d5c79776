//! The threads that forward bytes: one that accepts, and two for each connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::state::{Connection, State};
use super::{Traffic, Way};

#[derive(Default)]
pub(super) struct Link {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Link {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    pub(super) fn accept(self: &Arc<Self>, mut listener: TcpListener, server: u16) {
        let address = listener.local_addr().unwrap();
        loop {
            for client in listener.incoming().map_while(Result::ok) {
                let state = self.state();
                if state.is_closed {
                    return;
                }
                if state.is_not_listening {
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
                .wait_while(state, |state| state.is_not_listening && !state.is_closed);
            if waited.unwrap_or_else(PoisonError::into_inner).is_closed {
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
        // If the server is down, the client's connection is closed at once.
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
            held: Vec::new(),
            has_held: false,
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
                link.end(id, way);
            });
        }
    }

    /// Forwards what is received, until one of the sides is closed.
    fn pump(&self, id: u64, way: Way, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            if self.pass(id, way, bytes) && to.write_all(bytes).is_err() && !self.has_held(id) {
                return;
            }
        }
    }

    fn has_held(&self, id: u64) -> bool {
        let state = self.state();
        let connection = state.connections.get(&id);
        connection.is_some_and(|connection| connection.has_held)
    }

    /// Ends a direction in which nothing more will be received.
    fn end(&self, id: u64, way: Way) {
        let mut state = self.state();
        let Some(connection) = state.connections.get(&id) else {
            return;
        };
        if way == Way::ToServer && connection.has_held {
            let waited = self.changed.wait_while(state, |state| {
                let connection = state.connections.get(&id);
                connection.is_some_and(|connection| !connection.held.is_empty())
            });
            let state = waited.unwrap_or_else(PoisonError::into_inner);
            if let Some(connection) = state.connections.get(&id) {
                // Only this direction: if both were closed, answers of the server would be reset, and it might not read all that has
                // arrived. The other direction ends when the server closes its side.
                let _ = connection.server.shutdown(Shutdown::Write);
            }
            return;
        }
        if let Some(connection) = state.connections.remove(&id) {
            connection.close();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether to forward these bytes. Returns after the delay.
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
        let holds = way == Way::ToServer && state.holds_requests;
        let loses_answer = way == Way::ToClient && state.answers_to_lose > 0;
        let Some(connection) = state.connections.get_mut(&id) else {
            return false;
        };
        let is_silent = connection.silent_ways.contains(&way);
        let is_behind_held = way == Way::ToServer && !connection.held.is_empty();
        if !is_silent && (holds || is_behind_held) {
            connection.held.extend_from_slice(bytes);
            connection.has_held = true;
            return false;
        }
        let is_lost = is_silent || swallowed.is_some_and(|traffic| connection.carries(traffic));
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
    let contains = |word: &str| {
        let mut windows = bytes.windows(word.len());
        windows.any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
    };
    contains("SUBSCRIBE") || contains("LISTEN ")
}
