//! What operators see: figures, lines, and the page in a real browser.

mod browser;
#[path = "../functions/mod.rs"]
mod functions;
#[path = "../transports/host.rs"]
#[allow(dead_code, reason = "each test target uses a part of it")]
mod host;
mod looks;
mod metrics;
mod page;
mod pictures;
mod scrape;
#[path = "../wire/mod.rs"]
mod wire;
