//! A Forrst server as a library: register functions, serve them, and let callers lock the resources that they use.
//!
//! ```
//! use std::sync::Arc;
//!
//! use forrst_server::schemars::{self, JsonSchema};
//! use forrst_server::{Context, FunctionError, Server};
//! use forrst_stores::MemoryStore;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Charge {
//!     user_id: String,
//!     amount: u64,
//! }
//!
//! #[derive(Serialize, JsonSchema)]
//! struct Receipt {
//!     charged: u64,
//!     fence: Option<String>,
//! }
//!
//! async fn charge(context: Context, charge: Charge) -> Result<Receipt, FunctionError> {
//!     // The database compares fences, and refuses one that is smaller than the largest it has seen.
//!     let fence = context.lease().map(|lease| lease.fence().to_string());
//!     Ok(Receipt { charged: charge.amount, fence })
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder()
//!     .store(Arc::new(MemoryStore::new()))
//!     .function("payments.charge", "1.0.0", charge)
//!     .build()?;
//!
//! // `server.serve("127.0.0.1:7420").await?` listens; `handle` does the same without a socket.
//! let response = server
//!     .handle(
//!         br#"{"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "req_001",
//!              "call": {"function": "payments.charge", "arguments": {"user_id": "user_123", "amount": 100}},
//!              "extensions": [{"urn": "urn:forrst:ext:atomicLock",
//!                              "options": {"key": "user:123", "ttl": {"value": 30, "unit": "second"}}}]}"#,
//!     )
//!     .await;
//! assert_eq!(response.http_status(), 200);
//! let lock = response.extension("urn:forrst:ext:atomicLock").unwrap();
//! assert!(lock.get().contains("lock:payments.charge:user:123"));
//! # Ok(())
//! # }
//! ```
//!
//! Functions are typed; invalid arguments are refused before a lock is taken. [`Context`] gives a function its caller, its
//! deadline, its lease and the [state](ServerBuilder::state) of the application; [`Context::builder`] makes one for a unit
//! test. An [`Extension`] runs code around a call, before the lock is taken or while it is held ([`Stage`]). [`Server::router`]
//! can be mounted into any axum application, and a server is a `tower::Service` of HTTP requests.

mod access;
mod audit;
mod borrowed;
mod context;
mod core;
mod dashboard;
mod error;
mod extension;
mod fields;
mod for_log;
mod function;
mod limits;
mod metrics;
mod registry;
mod server;
mod span;
mod system;
mod time;
mod transport;

pub use async_trait::async_trait;
pub use forrst_protocol as protocol;
pub use schemars;

pub use access::{Access, AccessFileError, ApiKey, KeyEntry, KeyHash, Role};
pub use audit::{Audit, AuditEntry, AuditedLease};
pub use context::{Context, ContextBuilder, HeldLease, MissingState};
pub use error::FunctionError;
pub use extension::{Around, Deadline, Extension, ExtensionCall, Next, Outcome, Stage, Trace};
pub use function::Function;
pub use limits::Limits;
pub use registry::RegisterError;
pub use server::{BuildError, Server, ServerBuilder};
pub use transport::{ServiceFuture, Tls, TlsError, TlsFiles};
