//! Who is let in, what they may do, and what strangers cannot do, with the real binary.

mod client;
mod doors;
mod hostile;
mod keys;
mod limits;
mod locks;
mod reload;
mod roles;
mod settings;
mod tls;
mod watching;
