//! The limits of a server, and the counters that enforce them: rates, locks and bytes.

mod budget;
mod held;
mod network;
mod rate;
mod refusals;

use std::time::Duration;

use forrst_protocol::DEFAULT_MAX_BODY_BYTES;

pub(crate) use self::budget::{
    Budgets, Payer, Pool, ResultRoom, ResultSize, Room, SMALLEST_REQUEST, TakenBytes,
};
pub(crate) use self::held::HeldLocks;
pub(crate) use self::network::network;
pub(crate) use self::rate::RateLimit;
pub(crate) use self::refusals::Refusal;

/// The limits of a server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest ttl of a lock.
    pub max_ttl: Duration,
    /// The longest that a caller may wait for a lock.
    pub max_block: Duration,
    /// The largest head of an HTTP request, in bytes; at least 8 KiB.
    pub max_head: usize,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// How many connections may be open at once, including those of unix sockets.
    pub max_connections: usize,
    /// How many of them may be from one address, or one IPv6 /64 network; `None` for no such limit, because all clients may come
    /// through one proxy.
    pub max_connections_per_address: Option<usize>,
    /// How many requests may be under way at once on one connection.
    pub max_in_flight: usize,
    /// How many bytes of requests and answers may be under way at once in the process; at least two requests of the largest size.
    pub max_bytes: usize,
    /// How many of them may be on one connection.
    pub max_bytes_per_connection: usize,
    /// How many of them may belong to one caller.
    pub max_bytes_per_caller: usize,
    /// How many locks a caller may hold or wait for through this node; `None` for no limit.
    pub max_locks_per_caller: Option<usize>,
    /// How many requests a caller may make in a second; `None` for no limit.
    pub max_rate: Option<u32>,
    /// How many requests without a valid key an address may make in a second, if keys are required.
    pub max_unauthenticated_rate: u32,
    /// How long a client may take to send the head of a request, or go without an authorised request, or leave an answer unread.
    pub idle_timeout: Duration,
    /// How long a client may take to send the body of a request, or a large message of a WebSocket or a unix socket.
    pub body_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_ttl: Duration::from_secs(24 * 60 * 60),
            max_block: Duration::from_secs(5 * 60),
            max_head: 64 * 1024,
            max_body: DEFAULT_MAX_BODY_BYTES,
            max_connections: 10_000,
            max_connections_per_address: None,
            max_in_flight: 1_000,
            max_bytes: 256 * 1024 * 1024,
            max_bytes_per_connection: 16 * 1024 * 1024,
            max_bytes_per_caller: 64 * 1024 * 1024,
            max_locks_per_caller: None,
            max_rate: None,
            max_unauthenticated_rate: 1_000,
            idle_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
        }
    }
}
