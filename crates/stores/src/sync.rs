//! The mutex and the hasher of the memory store. The interleaving tests (`--cfg shuttle`) replace them with deterministic ones.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(not(shuttle))]
pub(crate) use foldhash::quality::RandomState as NameHasher;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

/// The same in every run, so that a schedule that failed can be replayed.
#[cfg(shuttle)]
pub(crate) type NameHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
