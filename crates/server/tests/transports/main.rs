//! The server on real sockets of this machine.

mod bodies;
mod connections;
#[path = "../functions/mod.rs"]
mod functions;
mod guarded;
mod hang_ups;
mod host;
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
#[path = "../wire/mod.rs"]
mod wire;
