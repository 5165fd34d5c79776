//! Ports to listen on.

use std::net::{Ipv4Addr, TcpListener};

/// Below the ephemeral ports of the system, also for the bus of a cluster, which is 10 000 above.
const PORTS: std::ops::Range<u16> = 11_000..21_000;
const BUS: u16 = 10_000;

/// A port that is not in use, and that the system gives to no outgoing connection before it is bound.
pub(crate) fn free_port() -> u16 {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let candidates = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(1_000);
    let mut free = candidates.filter(|port| is_free(*port) && is_free(port + BUS));
    free.next().expect("a free port")
}
