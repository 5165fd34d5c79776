//! The state of a proxy: its faults, and its connections with the requests that are held back.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::{Traffic, Way};

#[derive(Default)]
pub(super) struct State {
    pub(super) is_closed: bool,
    pub(super) is_not_listening: bool,
    pub(super) has_stopped: bool,
    pub(super) refused: Option<Traffic>,
    pub(super) to_server: Rules,
    pub(super) to_client: Rules,
    pub(super) holds_requests: bool,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) opened: u64,
    pub(super) lost: usize,
    pub(super) answers_to_lose: usize,
    pub(super) lost_answers: usize,
}

/// The faults of one direction.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) delay: Duration,
    pub(super) swallowed: Option<Traffic>,
}

pub(super) struct Connection {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    pub(super) has_subscribed: bool,
    /// Directions in which everything is lost from now on, because something was lost.
    pub(super) silent_ways: Vec<Way>,
    /// Requests that are held back.
    pub(super) held: Vec<u8>,
    /// Something is or was held back. From then on, only the server closes its side.
    pub(super) has_held: bool,
}

impl Connection {
    pub(super) fn carries(&self, traffic: Traffic) -> bool {
        traffic == Traffic::All || self.has_subscribed
    }

    pub(super) fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// If the server is down, the requests are lost.
    fn deliver(&mut self) -> usize {
        let held = std::mem::take(&mut self.held);
        let written = self.server.write_all(&held);
        written.map_or(0, |()| held.len())
    }
}

impl State {
    pub(super) fn rules(&self, way: Way) -> &Rules {
        match way {
            Way::ToServer => &self.to_server,
            Way::ToClient => &self.to_client,
        }
    }

    pub(super) fn rules_mut(&mut self, way: Way) -> &mut Rules {
        match way {
            Way::ToServer => &mut self.to_server,
            Way::ToClient => &mut self.to_client,
        }
    }

    pub(super) fn pass(&mut self) {
        self.refused = None;
        self.to_server = Rules::default();
        self.to_client = Rules::default();
        self.answers_to_lose = 0;
        self.holds_requests = false;
    }

    pub(super) fn cut(&mut self, traffic: Traffic) {
        self.cut_where(|connection| connection.carries(traffic));
    }

    pub(super) fn cut_where(&mut self, is_meant: impl Fn(&Connection) -> bool) {
        self.connections.retain(|_, connection| {
            let is_cut = is_meant(connection);
            let is_kept = !is_cut || connection.has_held;
            if !is_kept {
                connection.close();
            } else if is_cut {
                let _ = connection.client.shutdown(Shutdown::Both);
            }
            is_kept
        });
    }

    pub(super) fn close_all(&mut self) {
        for (_, connection) in self.connections.drain() {
            connection.close();
        }
    }

    /// The caller has locked the state, so later requests stay behind those that were held back.
    pub(super) fn deliver(&mut self) -> usize {
        self.holds_requests = false;
        let connections = self.connections.values_mut();
        connections.map(Connection::deliver).sum()
    }

    pub(super) fn held(&self) -> usize {
        let connections = self.connections.values();
        connections.map(|connection| connection.held.len()).sum()
    }
}
