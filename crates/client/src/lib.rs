//! The Forrst client: typed calls, locks around them, and leases for work that runs here.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use forrst_client::{Client, Error, Lock};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize)]
//! struct Charge {
//!     user_id: String,
//!     amount: u64,
//! }
//!
//! #[derive(Deserialize)]
//! struct Receipt {
//!     charged: u64,
//! }
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect("http://127.0.0.1:7420").await?;
//!
//! // The function runs on the server, under a lock.
//! let charge = Charge { user_id: "user_123".into(), amount: 100 };
//! let lock = Lock::key("user:123").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5));
//! let receipt = client.call::<Charge, Receipt>("payments.charge", charge).lock(lock).await?;
//! println!("charged {}", receipt.charged);
//!
//! // The work runs here; the lease renews itself.
//! let lease = client.lock("export:orders").wait(Duration::from_secs(10)).acquire().await?;
//! tokio::select! {
//!     () = export(lease.fence()) => lease.release().await?,
//!     loss = lease.lost() => eprintln!("gave up: {loss}"),
//! }
//! # Ok(())
//! # }
//! # async fn export(fence: forrst_client::Fence) {}
//! ```
//!
//! # Transports
//!
//! The scheme of the URL selects one:
//!
//! | URL | connections | |
//! |---|---|---|
//! | `http://host:7420`, `https://…` | one for each call under way, kept for the next | works through load balancers |
//! | `ws://host:7420`, `wss://…` | one for all calls | for many small calls |
//! | `unix:/run/forrst.sock`, `unix:///run/forrst.sock` | one for all calls | the fastest; only for the user that runs the server (`forrst serve --unix`) |
//!
//! A connection is opened when it is needed, and opened again after it broke. A call fails with [`Error::Unreachable`] when it was
//! certainly not sent, and with [`Error::Interrupted`] when it may have run. On a connection for all calls, a slow call does not
//! delay the others, and calls that are ready together are written together. Locks that are watched, such as those of leases, have a
//! connection of their own.
//!
//! A unix socket has neither TLS nor API keys: only the server's own user and root can connect, and they have all rights. An API
//! key that is set is not sent. There the client appends a number to the ids of requests, such as `id.7`.

mod acquire;
mod api_key;
mod background;
mod builder;
mod call;
mod cancel;
mod client;
mod clock;
mod endpoint;
mod error;
mod failure;
mod fence;
mod held;
mod keys;
mod lease;
mod lock_info;
mod lock_options;
mod locks;
mod query;
mod retry;
mod system;
mod tls;
mod transport;
mod tries;
mod wait;
mod watch;
mod wire_duration;
mod wire_time;

pub use forrst_protocol as protocol;

pub use acquire::Acquire;
pub use builder::ClientBuilder;
pub use call::Call;
pub use cancel::CancelHandle;
pub use client::Client;
pub use error::{Cause, Error};
pub use failure::Failure;
pub use fence::{Fence, InvalidFence};
pub use held::Held;
pub use keys::Key;
pub use lease::{Lease, Loss, LossNotice};
pub use lock_info::{Extended, Holder, LockInfo, LockKind, LockStatus, Page, Waiter, Withdrawn};
pub use lock_options::Lock;
pub use locks::Locks;
pub use query::Query;
pub use retry::Retry;
pub use system::{
    Capabilities, ComponentHealth, ExtensionInfo, Health, HealthStatus, ServerLimits,
};
pub use watch::Change;

/// The default ttl of a lock.
pub const DEFAULT_TTL: std::time::Duration = std::time::Duration::from_secs(30);
