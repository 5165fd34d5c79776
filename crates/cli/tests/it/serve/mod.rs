//! `forrst serve`, the real binary: flags, banner, log and shutdown.

mod banner;
mod command;
mod logs;
mod mistakes;
mod protocol_document;
mod request;
mod settings;
mod signals;
mod unix_socket;
