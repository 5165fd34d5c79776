//! Who is let in, what they may do, and what strangers cannot do, with the real binary.

pub(crate) mod client;
mod doors;
mod hostile;
pub(crate) mod keys;
mod limits;
mod locks;
mod reload;
mod roles;
mod settings;
mod tls;
mod watching;
