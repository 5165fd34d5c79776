//! The transports: HTTP, JSON-RPC over HTTP and WebSocket, and frames over a unix socket. A transport reads requests and
//! credentials, bounds what a client can make the server keep, and leaves every decision about a request to the core.

mod answer;
mod body;
mod connection;
mod host_check;
mod http;
mod intake;
mod interrupt;
mod listeners;
mod openrpc;
mod order;
mod probes;
mod routes;
mod rpc;
mod serve;
mod session;
mod socket;
mod tls;
mod unix;
mod websocket;

pub(crate) use self::listeners::Listeners;
pub use self::routes::ServiceFuture;
pub use self::tls::{Tls, TlsError, TlsFiles};
