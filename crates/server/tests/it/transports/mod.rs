//! The server on real sockets of this machine.

mod bodies;
mod connections;
mod guarded;
mod hang_ups;
pub(crate) mod host;
mod http;
mod http1;
mod http2;
mod rates;
mod revocation;
mod rpc;
mod shutdown;
mod slow_clients;
mod unix;
mod unix_client;
mod websocket;
mod websocket_client;
