//! The client against real servers on this machine, also behind a proxy that loses answers.

mod acquiring;
mod api_key;
mod calls;
mod cancellation;
mod deadlines;
mod errors;
mod host;
mod kinds;
mod leases;
mod locks;
mod lost_answers;
mod proxy;
mod raw_server;
mod retries;
mod tls;
mod unix;
mod vectors;
mod watching;
mod websocket;
