//! What operators see: figures, lines, and the page in a real browser.

mod browser;
mod looks;
mod metrics;
mod page;
mod pictures;
mod scrape;
