//! What `forrst serve` leaves behind for those who run it: lines, an audit log, and files to deploy it with.

mod audit;
mod dashboard;
mod request_log;
#[cfg(feature = "otlp")]
mod traces;
mod unit;
