//! What operators see: the metrics, the system functions for inspection, and the dashboard in a real browser.

mod browser;
mod dashboard;
mod metrics;
mod queues;
mod scrape;
mod screenshots;
