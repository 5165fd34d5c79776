//! `forrst serve` as people use it: the real binary, its flags, its banner, its logs and its end.

mod banner;
mod command;
mod logs;
mod mistakes;
mod request;
mod settings;
mod signals;
mod unix_socket;
