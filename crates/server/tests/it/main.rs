//! The integration tests of the server: in process, and through its sockets.

mod functions;
mod load;
mod observe;
mod pipeline;
mod transports;
mod wire;
