//! `health`: how the server and what it needs are doing.

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

/// A store that takes longer than this to say that it is well is not.
const PATIENCE: Duration = Duration::from_secs(2);

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
    names: &["urn:cline:forrst:fn:health"],
    schema: "health",
    needs: Needs::AnyCaller,
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
            let (health, shown) = of_itself(&context.server);
            worst = worst.max(health);
            components.insert("self".to_owned(), shown);
        }
        if wanted(Component::Store) {
            let server = &context.server;
            let (health, shown) = server.store_health.of(server.locks.store()).await;
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

fn of_itself(server: &Core) -> (Health, Value) {
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

/// The health of the store, asked for once however many want to know it, and at most once a second.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    last: Arc<Mutex<Option<Checked>>>,
}

/// How long an answer of the store counts.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct Checked {
    at: Instant,
    health: Health,
    shown: Value,
}

impl StoreHealth {
    pub(crate) async fn of(&self, store: &Arc<dyn LockStore>) -> (Health, Value) {
        let mut last = self.last.clone().lock_owned().await;
        if let Some(last) = &*last
            && last.at.elapsed() < FRESH
        {
            return (last.health, last.shown.clone());
        }
        let store = store.clone();
        // In a task: a client that disconnects must not have the next one ask again.
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

/// Asks the store, and says how long that took.
async fn check(store: &dyn LockStore) -> (Health, Value) {
    let start = Instant::now();
    let (health, message) = match timeout(PATIENCE, store.health()).await {
        Ok(Ok(())) => (Health::Healthy, "reachable".to_owned()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the lock store is not well");
            (Health::Unhealthy, "unavailable".to_owned())
        }
        Err(_) => (Health::Unhealthy, format!("no answer within {PATIENCE:?}")),
    };
    let shown = json!({
        "status": health.as_str(),
        "latency": millis(start.elapsed()),
        "message": message,
    });
    (health, shown)
}
