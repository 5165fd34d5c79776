//! The lock domain of the Forrst server: what a lock is, what a store must do, and how calls wait.
//!
//! - [`model`] is the specification: pure steps over keys, for exclusive, shared, limited and multi-key locks alike.
//! - [`LockStore`] keeps the locks. Its documentation is the contract of every store, and [`contract`] (feature
//!   `contract`) is the suite that tests it.
//! - [`LockService`] is what a server uses: it waits, renews leases, reports their loss and rolls back abandoned calls,
//!   over any store.
//!
//! Nothing here knows the wire format.

mod alarm;
mod event;
mod expiry;
mod fence;
mod guard;
mod held;
mod lease;
pub mod model;
mod name;
mod node;
mod owner;
mod pending;
mod revision;
mod secret;
mod serial;
mod service;
mod storage_key;
mod store;
mod striped;
mod tenure;
mod time;
mod unreleased;
mod waiters;
mod watch;

#[cfg(feature = "contract")]
pub mod contract;

pub use event::{Event, EventKind, Events, KeyStyle, Observer, Stats};
pub use fence::{Fence, Fences, InvalidFence};
pub use guard::{LeaseGuard, ReleaseOutcome};
pub use lease::Lease;
pub use model::{Kind, Locks, NotHeld, ReleaseMemory, Share, Wake};
pub use name::{InvalidText, LockKey, LockName};
pub use node::{Node, Nodes};
pub use owner::{Attempt, CallToken, Caller, NodeId, Note, Owner, Ticket};
pub use revision::Revision;
pub use secret::Secret;
pub use service::{AcquireOutcome, AcquireRequest, Config, LockError, LockService, WaiterLimit};
pub use storage_key::StorageKey;
pub use store::{
    Answer, Capabilities, Counts, KeyWatch, ListError, ListRequest, LockStatus, LockStore,
    LockStoreExt, Page, StoreError, Waiter,
};
pub use striped::Striped;
pub use tenure::LossNotice;
pub use time::{InvalidTtl, Reading, Timestamp, Ttl};
pub use watch::Observation;
