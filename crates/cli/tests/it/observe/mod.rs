//! What `forrst serve` offers to operators: the request log, the audit log, traces, a dashboard, and files to deploy it.

mod audit;
mod dashboard;
mod request_log;
#[cfg(feature = "otlp")]
mod traces;
mod unit;
