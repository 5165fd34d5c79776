//! The upper bound on this machine: servers that only parse JSON and answer with JSON.

use std::sync::Arc;

use super::variants::{Variant, throughput};
use super::{Bench, CALLERS};
use crate::load::Pace;
use crate::report::Table;
use crate::serve::{ServerKind, ServerProcess};
use crate::subject::{Subject, Transport};
use crate::wire::echo;

pub(super) async fn measure(bench: &Bench<'_>) -> Result<Vec<Table>, String> {
    let [hyper, axum, jsonrpsee, frames] = [
        ServerKind::Hyper,
        ServerKind::Axum,
        ServerKind::Jsonrpsee,
        ServerKind::Frames,
    ]
    .map(|kind| ServerProcess::floor(kind).map(Arc::new));
    let (hyper, axum, jsonrpsee, frames) = (hyper?, axum?, jsonrpsee?, frames?);
    let floors = [
        ("hyper", &hyper, Transport::Http1),
        ("hyper", &hyper, Transport::Http2),
        ("axum", &axum, Transport::Http1),
        ("jsonrpsee", &jsonrpsee, Transport::Rpc),
        ("jsonrpsee", &jsonrpsee, Transport::WebSocket),
        ("framed echo", &frames, Transport::Tcp),
        ("framed echo", &frames, Transport::Unix),
    ];
    let duration = bench.effort.duration();
    let variants = floors.map(|(name, served, transport)| {
        let subject = Subject::new(served, transport, echo());
        let label = format!("{name}, {}", transport.name());
        Variant::drive(label, subject, CALLERS, Pace::Closed, duration)
    });
    let outcomes = bench.in_turns(variants.into()).await;
    Ok(vec![throughput(
        "floors",
        format!("Floors: parse JSON, answer with JSON; {CALLERS} callers"),
        "server",
        &outcomes,
        "HTTP/1.1: a connection for each caller; all others: one connection for all callers.",
    )])
}
