//! The server on real sockets: TCP, WebSocket and unix.

mod bodies;
mod connections;
mod disconnects;
mod guarded;
pub(crate) mod host;
mod http;
mod http1;
mod http2;
mod order;
mod rates;
mod revocation;
mod rpc;
mod shutdown;
mod slow_clients;
mod subscriptions;
mod unix;
mod unix_client;
mod websocket;
mod websocket_client;
