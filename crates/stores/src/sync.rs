//! The primitives that the interleaving tests replace.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic::AtomicU64, atomic::Ordering};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicU64, atomic::Ordering};
