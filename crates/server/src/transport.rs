//! How requests come in: HTTP, JSON-RPC over HTTP and WebSocket, and frames over a unix socket.

mod http;
mod openrpc;
mod rpc;
mod serve;
mod session;
mod unix;
mod websocket;
