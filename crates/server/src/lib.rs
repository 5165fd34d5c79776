//! A Forrst server as a library: register functions, serve them, and let callers lock what they touch.

mod context;
mod error;
mod extension;
mod fields;
mod function;
mod registry;
mod server;
mod system;
mod time;
mod transport;

pub use context::{Context, HeldLease};
pub use error::FunctionError;
pub use extension::{Around, Deadline, Extension, ExtensionCall, Next, Outcome, Trace};
pub use function::Function;
pub use registry::RegisterError;
pub use server::{BuildError, Limits, Server, ServerBuilder};
