//! What operators see: the metrics, the system functions for inspection, and the dashboard in a real browser.

mod browser;
mod dashboard;
mod metrics;
mod queues;
pub(crate) mod scrape;
mod screenshots;
