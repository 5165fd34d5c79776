//! Authentication, roles and limits, and what unauthenticated clients cannot do, with the real binary.

mod addresses;
pub(crate) mod client;
mod hostile;
pub(crate) mod keys;
mod limits;
mod locks;
mod reload;
mod roles;
mod settings;
mod tls;
mod watching;
