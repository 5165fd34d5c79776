//! `health`: the status of the server and of its store. The store is checked at most once a second, however many clients ask.

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_protocol::RawObject;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::{Needs, Prepared, Spec, arguments_of, call};
use crate::core::Core;
use crate::extension::millis;
use crate::fields::{boolean, one_of};
use crate::limits::Limits;
use crate::time::now;

/// A store that does not answer its health check for this long is unhealthy.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    Healthy,
    Degraded,
    Unhealthy,
}

impl Health {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unhealthy => "unhealthy",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Component {
    Itself,
    Store,
}

pub(super) const SPEC: Spec = Spec {
    names: &[
        "urn:cline:forrst:fn:health",
        "urn:cline:forrst:ext:diagnostics:fn:health",
    ],
    schema: "health",
    needs: Needs::AnyCaller,
    is_cancellable: false,
    errors: &[],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let known = [("self", Component::Itself), ("store", Component::Store)];
    let only = fields.optional("component", one_of(&known));
    let details = fields.optional("include_details", boolean);
    fields.finish()?;
    Ok(call(async move |context| {
        let wanted = |component| only.is_none_or(|only| only == component);
        let mut worst = Health::Healthy;
        let mut components = Map::new();
        if wanted(Component::Itself) {
            let (health, shown) = server_health(&context.server);
            worst = worst.max(health);
            components.insert("self".to_owned(), shown);
        }
        if wanted(Component::Store) {
            let server = &context.server;
            let (health, shown) = server.store_health.check(server.locks.store()).await;
            worst = worst.max(health);
            components.insert("store".to_owned(), shown);
        }
        let mut result = json!({
            "status": worst.as_str(),
            "timestamp": now(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        if details.unwrap_or(true) {
            result["components"] = components.into();
        }
        Ok(result)
    }))
}

fn server_health(server: &Core) -> (Health, Value) {
    let (health, message) = if server.draining.is_cancelled() {
        (Health::Degraded, "shutting down")
    } else {
        (Health::Healthy, "serving")
    };
    (
        health,
        json!({"status": health.as_str(), "message": message}),
    )
}

/// The health of the store: concurrent callers share one check, and its result counts for a second.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    last: Arc<Mutex<Option<Checked>>>,
}

/// How long the result of a check counts.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct Checked {
    at: Instant,
    health: Health,
    shown: Value,
}

impl StoreHealth {
    pub(crate) async fn check(&self, store: &Arc<dyn LockStore>) -> (Health, Value) {
        let mut last = self.last.clone().lock_owned().await;
        if let Some(last) = &*last
            && last.at.elapsed() < FRESH
        {
            return (last.health, last.shown.clone());
        }
        let store = store.clone();
        // In a task, so that a client that disconnects does not cancel the check for the others.
        let check = tokio::spawn(async move {
            let (health, shown) = check(store.as_ref()).await;
            let at = Instant::now();
            *last = Some(Checked {
                at,
                health,
                shown: shown.clone(),
            });
            (health, shown)
        });
        let failed = |_| {
            (
                Health::Unhealthy,
                json!({"status": Health::Unhealthy.as_str()}),
            )
        };
        check.await.unwrap_or_else(failed)
    }
}

/// Checks the store, and measures how long it took.
async fn check(store: &dyn LockStore) -> (Health, Value) {
    let start = Instant::now();
    let (health, message) = match timeout(CHECK_TIMEOUT, store.health()).await {
        Ok(Ok(())) => (Health::Healthy, "reachable".to_owned()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the lock store is unhealthy");
            (Health::Unhealthy, "unavailable".to_owned())
        }
        Err(_) => (
            Health::Unhealthy,
            format!("no answer within {CHECK_TIMEOUT:?}"),
        ),
    };
    let shown = json!({
        "status": health.as_str(),
        "latency": millis(start.elapsed()),
        "message": message,
    });
    (health, shown)
}
