//! The commands other than `serve`: the real binary against a real server.

mod bench;
mod call;
mod conformance;
mod fake_server;
mod force_release;
mod forrst;
mod help;
mod kinds;
mod list;
mod lock;
mod pages;
mod readme;
mod run;
mod server;
mod shown;
mod stub;
mod terminal;
mod unix;
mod watch;
