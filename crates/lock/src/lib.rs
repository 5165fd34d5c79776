//! The lock domain of the Forrst server: what a lock is, what a store must do, and how callers wait.
//!
//! - [`state`] is the specification: a pure state machine over one key.
//! - [`LockStore`] is where locks live. Its documentation is the contract that every store fulfils, and
//!   [`contract`] (feature `contract`) is the suite that proves it.
//! - [`LockService`] is what a server uses: waiting, renewal, notice of loss and cleaning up after callers
//!   who went away, written once over any store.
//!
//! Nothing here knows the wire format.

mod alarm;
mod event;
mod expiry;
mod fence;
mod guard;
mod held;
mod lease;
mod name;
mod owner;
mod pending;
mod secret;
mod service;
pub mod state;
mod storage_key;
mod store;
mod tenure;
mod time;
mod unreleased;
mod waiter;

#[cfg(feature = "contract")]
pub mod contract;

pub use event::{Event, EventKind, Events, KeyStyle, Observer, Stats};
pub use fence::{Fence, InvalidFence};
pub use guard::{LeaseGuard, ReleaseOutcome};
pub use lease::Lease;
pub use name::{InvalidText, LockKey, LockName};
pub use owner::{Attempt, Caller, Owner, Ticket};
pub use secret::Secret;
pub use service::{AcquireOutcome, AcquireRequest, Config, LockError, LockService, WaiterLimit};
pub use state::{NotHeld, ReleaseMemory, Wake};
pub use storage_key::StorageKey;
pub use store::{
    Answer, Capabilities, ListError, ListRequest, LockStatus, LockStore, Page, Settled, StoreError,
    Waiting,
};
pub use tenure::LossNotice;
pub use time::{InvalidTtl, Timestamp, Ttl};
pub use waiter::Waiter;
