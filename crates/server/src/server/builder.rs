//! [`ServerBuilder`]: the settings of a server, and how its parts are connected. All mistakes are reported by `build`, so the
//! methods can be chained.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::{Config, LockService, LockStore};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Server;
use crate::access::Access;
use crate::context::Values;
use crate::core::{Core, Extensions, RefusalLog};
use crate::extension::Extension;
use crate::limits::{HeldLocks, Limits, RateLimit};
use crate::metrics::{Activity, Metered, Metrics, ReadCount};
use crate::registry::{RegisterError, Registered, Registry};
use crate::transport::{Listeners, Tls};
use crate::{Audit, Context, Function, FunctionError, system};

/// Builds a [`Server`]. Mistakes are reported by [`build`](Self::build).
#[derive(Default)]
pub struct ServerBuilder {
    store: Option<Arc<dyn LockStore>>,
    service: Option<String>,
    node: Option<String>,
    limits: Limits,
    access: Access,
    tls: Option<Tls>,
    allowed_hosts: Vec<String>,
    locks: Config,
    audit: Audit,
    log_lines_dropped: Option<ReadCount>,
    state: Values,
    functions: Vec<Function>,
    extensions: Vec<Box<dyn Extension>>,
}

/// Why a server cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No store was given.
    #[error("a server needs a store for its locks: call `store(…)`")]
    NoStore,
    /// A function cannot be registered.
    #[error(transparent)]
    Function(#[from] RegisterError),
    /// The name of an extension is not a URN.
    #[error("the name of an extension is `{0}`, which is not a URN")]
    ExtensionUrn(String),
    /// Two extensions have the same name.
    #[error("two extensions have the name `{0}`")]
    ExtensionTwice(String),
    /// The node's name cannot be sent in a header.
    #[error("the node's name must be 1 to 255 visible ASCII characters")]
    Node,
}

impl ServerBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// The store of the locks. Required.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn LockStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// The name of the service, for `capabilities`; `forrst` by default.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }

    /// The name of this process among other nodes, for `meta.node`; random by default.
    #[must_use]
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }

    /// The limits of the server.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The longest that a caller may wait for a lock.
    #[must_use]
    pub fn max_block(mut self, max: Duration) -> Self {
        self.limits.max_block = max;
        self
    }

    /// The longest ttl of a lock.
    #[must_use]
    pub fn max_ttl(mut self, max: Duration) -> Self {
        self.limits.max_ttl = max;
        self
    }

    /// Who may call, and which functions; by default, every caller may do everything.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Serves over TLS only.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// A name that the `Host` header of requests may have; `*` for any. A server on a loopback address, and a mounted
    /// [`router`](Server::router), answer for `localhost`, loopback addresses and the names given here. A server on another
    /// address answers for every host, unless a name is given here.
    #[must_use]
    pub fn allow_host(mut self, name: impl Into<String>) -> Self {
        self.allowed_hosts.push(name.into());
        self
    }

    /// The settings of the lock service.
    #[must_use]
    pub fn lock_config(mut self, config: Config) -> Self {
        self.locks = config;
        self
    }

    /// The audit log of operator actions and denied calls; none by default.
    #[must_use]
    pub fn audit(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// A function that returns how many lines the log has dropped, for the metrics.
    #[must_use]
    pub fn log_lines_dropped(mut self, count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.log_lines_dropped = Some(Box::new(count));
        self
    }

    /// Registers an `async fn(Context, Arguments) -> Result<Output, FunctionError>`.
    #[must_use]
    pub fn function<A, R, F, Fut>(self, name: &str, version: &str, handler: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize + JsonSchema + 'static,
        F: Fn(Context, A) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, FunctionError>> + Send + 'static,
    {
        self.register(Function::new(name, version, handler))
    }

    /// Registers a function that has a summary, errors or a list of extensions.
    #[must_use]
    pub fn register(mut self, function: Function) -> Self {
        self.functions.push(function);
        self
    }

    /// Adds a value that functions and extensions get by its type, such as a pool of database connections: see
    /// [`Context::state`]. A second value of the same type replaces the first.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.state.insert(state);
        self
    }

    /// Adds an extension; it runs inside those that were added before for the same [`Stage`](crate::Stage).
    #[must_use]
    pub fn extension(mut self, extension: impl Extension) -> Self {
        self.extensions.push(Box::new(extension));
        self
    }

    /// Builds the server. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The first mistake in what was given.
    pub fn build(self) -> Result<Server, BuildError> {
        let store = self.store.ok_or(BuildError::NoStore)?;
        let node = match self.node {
            Some(node) => node,
            None => format!("node-{:08x}", uuid::Uuid::new_v4().as_fields().0),
        };
        if node.is_empty() || node.len() > 255 || !node.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(BuildError::Node);
        }
        let limits = Arc::new(self.limits);
        let mut metrics = Metrics::new();
        let help = "Lines of the log that were dropped because they could not be written in time";
        metrics.register_counter("forrst_log_lines_dropped", help, self.log_lines_dropped);
        let help = "Entries of the audit log that were dropped because they could not be written";
        let dropped = self.audit.dropped();
        metrics.register_counter(
            "forrst_audit_entries_dropped",
            help,
            Some(Box::new(dropped)),
        );
        let metrics = Arc::new(metrics);
        let keys = self.locks.keys;
        let secret = store.secret();
        let store = Arc::new(Metered::new(store, metrics.clone()));
        let locks = LockService::observed(store, self.locks, metrics.clone());
        let extensions = Extensions::new(&limits, self.extensions)?;
        let mut registry = Registry::default();
        for function in system::functions(&limits) {
            registry.add(function)?;
        }
        for function in self.functions {
            registry.add(Registered::new(function, |urn| extensions.find(urn))?)?;
        }
        let listeners = Arc::new(Listeners::new(
            self.tls,
            self.allowed_hosts,
            &node,
            &limits,
            metrics.clone(),
        ));
        let core = Arc::new(Core {
            service: self.service.unwrap_or_else(|| "forrst".to_owned()),
            node: node.into(),
            access: self.access,
            rate: RateLimit::new(limits.max_rate),
            unauthenticated: RateLimit::new(Some(limits.max_unauthenticated_rate)),
            held: Arc::new(HeldLocks::new(limits.max_locks_per_caller)),
            limits,
            locks,
            store_health: system::StoreHealth::default(),
            registry,
            extensions,
            audit: self.audit,
            refusals: RefusalLog::default(),
            metrics,
            activity: Activity::default(),
            keys,
            secret,
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            stop: Arc::default(),
            state: self.state,
        });
        Activity::watch(&core);
        RefusalLog::watch(&core);
        Ok(Server { core, listeners })
    }
}
