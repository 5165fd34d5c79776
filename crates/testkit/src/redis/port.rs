//! Ports to listen on.

use std::net::{Ipv4Addr, TcpListener};

/// Below those that the system gives to outgoing connections, and such that a cluster's bus, 10 000 above, is there, too.
const PORTS: std::ops::Range<u16> = 11_000..21_000;
const BUS: u16 = 10_000;

/// A port that nobody uses, and nobody is given by chance before it is bound.
pub(crate) fn free_port() -> u16 {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let candidates = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(1_000);
    let mut free = candidates.filter(|port| is_free(*port) && is_free(port + BUS));
    free.next().expect("a free port")
}
