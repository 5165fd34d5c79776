//! The path of a request through the server, without any socket: `server.handle(bytes)` on tokio's paused clock.

mod arguments;
mod attempts;
mod authors;
mod cancellation;
mod deadlines;
mod disconnects;
mod extensions;
mod faults;
mod holders;
mod kinds;
mod leases;
mod locks;
mod probe;
mod registration;
mod shutdown;
mod store_faults;
mod versions;
