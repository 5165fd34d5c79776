//! The functions that every server has: locks, health and discovery.

mod acquire;
mod activity;
mod capabilities;
mod describe;
mod extend;
mod force_release;
mod health;
mod list;
mod ping;
mod release;
mod schemas;
mod status;
mod waiters;

use std::sync::Arc;

use forrst_lock::{Lease, LockName, LockStatus, NotHeld, Secret, StoreError, Timestamp};
use forrst_protocol::{ErrorCode, ErrorObject, Errors, FunctionName, RawObject, Version};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tracing::Instrument;

pub(crate) use self::describe::document;
pub(crate) use self::health::{Health, StoreHealth};
use crate::access::{Caller, Needs, Role};
use crate::error::{arguments_pointer, internal_error, unavailable};
use crate::fields::Fields;
use crate::function::PreparedCall;
use crate::limits::{Limits, Refusal};
use crate::registry::Registered;
use crate::time::timestamp;
use crate::{AuditEntry, Context};

/// The places of `deadline`, `tracing` and `retry`. A function about locks is not itself locked.
const EXTENSIONS: [usize; 3] = [0, 1, 2];

/// Those that change nothing.
const LOOKS: [&str; 8] = [
    "status",
    "list",
    "waiters",
    "activity",
    "ping",
    "health",
    "capabilities",
    "describe",
];

const CALLER: Needs = Needs::OneOf(&[Role::Call]);
/// The owner's token says whose lock it is. An admin, who can see it, may act for the owner.
const HOLDER: Needs = Needs::OneOf(&[Role::Call, Role::Admin]);
const OBSERVER: Needs = Needs::OneOf(&[Role::Observe, Role::Admin]);
const ADMIN: Needs = Needs::OneOf(&[Role::Admin]);

type Prepared = Result<PreparedCall, Errors>;

/// All of them, each under its names.
pub(crate) fn functions(limits: &Arc<Limits>) -> Vec<Registered> {
    use Needs::AnyCaller;
    let lock = |name: &str| format!("urn:cline:forrst:ext:atomic-lock:fn:{name}");
    let core = |name: &str| format!("urn:cline:forrst:fn:{name}");
    let discovery = |name: &str| format!("urn:cline:forrst:ext:discovery:fn:{name}");
    let for_acquire = limits.clone();
    let for_extend = limits.clone();
    let acquire = move |arguments: &RawObject<'_>| acquire::prepare(arguments, &for_acquire);
    let extend = move |arguments: &RawObject<'_>| extend::prepare(arguments, &for_extend);
    [
        system(&lock("release"), HOLDER, release::prepare),
        system(&lock("force-release"), ADMIN, force_release::prepare),
        system(&lock("status"), OBSERVER, status::prepare),
        system(&lock("acquire"), CALLER, acquire),
        system(&lock("extend"), HOLDER, extend),
        system(&lock("list"), OBSERVER, list::prepare),
        system(&lock("waiters"), OBSERVER, waiters::prepare),
        system(&lock("activity"), OBSERVER, activity::prepare),
        system(&core("ping"), AnyCaller, ping::prepare),
        system(&core("health"), AnyCaller, health::prepare),
        system(&core("capabilities"), AnyCaller, capabilities::prepare),
        system(&discovery("capabilities"), AnyCaller, capabilities::prepare),
        system(&core("describe"), AnyCaller, describe::prepare),
        system(&discovery("describe"), AnyCaller, describe::prepare),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn system(
    name: &str,
    needs: Needs,
    prepare: impl Fn(&RawObject<'_>) -> Prepared + Send + Sync + 'static,
) -> Option<Registered> {
    let short = name.rsplit(':').next().unwrap_or_default();
    let (arguments, result) = (schemas::arguments(short), schemas::result(short));
    let summary = arguments.get("description").and_then(Value::as_str);
    Some(Registered {
        summary: summary.map(str::to_owned),
        name: FunctionName::parse(name).ok()?,
        version: Version::new(1, 0, 0),
        errors: errors_of(short),
        extensions: Some(EXTENSIONS.to_vec()),
        arguments,
        result,
        prepare: Box::new(prepare),
        result_size: Arc::default(),
        is_system: true,
        needs,
        is_look: LOOKS.contains(&short),
    })
}

/// The locks that a caller is not confined to are out of reach.
fn check_lock(context: &Context, name: &LockName) -> Result<(), ErrorObject> {
    let allowed = context.call.caller.check_lock(name);
    allowed.inspect_err(|_| context.server.metrics.refused(Refusal::Forbidden))
}

/// What is done to a lock that not everybody may do.
fn audit_entry<'a>(context: &'a Context, act: &'a str, key: &'a LockName) -> AuditEntry<'a> {
    AuditEntry {
        who: context.caller_name(),
        from: context.call.from.as_deref(),
        act,
        function: Some(context.function().as_str()),
        request: Some(context.request_id().as_str()),
        lock: Some(key.as_str()),
        ..AuditEntry::default()
    }
}

/// And how it went.
fn audit_outcome<'a>(
    entry: &AuditEntry<'a>,
    ended: Result<&'a Lease, &'a ErrorObject>,
) -> AuditEntry<'a> {
    let lease = ended.ok();
    AuditEntry {
        result: ended.err().map_or("OK", |error| error.code.as_str()),
        holder: lease.map(|lease| lease.owner.as_str()),
        fence: lease.map(|lease| lease.fence.to_string()),
        ..entry.clone()
    }
}

/// An admin who acts for the owner of a lock that another caller took leaves a line.
async fn audit_for_owner(context: &Context, act: &str, lease: &Lease) {
    let caller = &context.call.caller;
    if lease.caller.as_ref() != caller.name() && caller.has_one_of(&[Role::Admin]) {
        let entry = audit_outcome(&audit_entry(context, act, &lease.name), Ok(lease));
        context.server.audit.done(&entry).await;
    }
}

/// Does what not everybody may do to a lock. It is announced in the audit log before it is done, and refused when that cannot be
/// written; its outcome is written before it is answered.
async fn audited(
    context: &Context,
    act: &str,
    key: &LockName,
    work: impl Future<Output = Result<Lease, ErrorObject>>,
) -> Result<Lease, ErrorObject> {
    let audit = &context.server.audit;
    let entry = audit_entry(context, act, key);
    let announced = audit.announce(&entry).await.map_err(|error| {
        tracing::error!(%error, act, "refused, because it cannot be written to the audit log");
        unavailable("The audit log cannot be written")
    })?;
    let ended = work.await;
    let entry = audit_outcome(&entry, ended.as_ref());
    audit.outcome(announced, &entry).await;
    ended
}

/// The errors that a system function has of its own.
fn errors_of(function: &str) -> Vec<(ErrorCode, String)> {
    use ErrorCode::{
        Forbidden, FunctionNotFound, LockAcquisitionFailed, LockAlreadyReleased, LockNotFound,
        LockOwnershipMismatch, LockTimeout, Unavailable, VersionNotFound,
    };
    let errors: &[(ErrorCode, &str)] = match function {
        "release" | "extend" => &[
            (LockNotFound, "The lock is not held, or it has expired"),
            (
                LockAlreadyReleased,
                "This owner's lease was released before; `details.forced` says whether by force-release",
            ),
            (
                LockOwnershipMismatch,
                "Another owner holds it, or the same by another fence",
            ),
            (Unavailable, "The lock store is unavailable"),
        ],
        "force-release" => &[
            (Forbidden, "The caller is no admin"),
            (LockNotFound, "The lock is not held"),
            (
                LockOwnershipMismatch,
                "A lease with another fence than the named one holds it",
            ),
            (Unavailable, "The lock store is unavailable"),
        ],
        "acquire" => &[
            (
                LockAcquisitionFailed,
                "It is held, and the caller does not wait",
            ),
            (
                LockTimeout,
                "It was held for as long as the caller wanted to wait",
            ),
            (Unavailable, "The lock store is unavailable"),
        ],
        "status" | "list" | "waiters" => &[(Unavailable, "The lock store is unavailable")],
        "describe" => &[
            (FunctionNotFound, "There is no such function"),
            (VersionNotFound, "The function has no such version"),
        ],
        _ => &[],
    };
    let own = |(code, message): &(ErrorCode, &str)| (code.clone(), (*message).to_owned());
    errors.iter().map(own).collect()
}

/// The arguments of a system function.
fn arguments_of<'a>(raw: &'a RawObject<'_>) -> Fields<'a> {
    Fields::read(Some(raw), arguments_pointer())
}

/// A call that changes something, and is not left half done by a caller who hangs up: what it did is counted and audited.
fn act<F, Fut>(run: F) -> PreparedCall
where
    F: FnOnce(Context) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Value, ErrorObject>> + Send + 'static,
{
    call(async move |context| {
        let tasks = context.server.tasks.clone();
        let task = tasks.spawn(run(context).in_current_span());
        task.await.unwrap_or_else(|_| Err(internal_error()))
    })
}

/// A call that is ready to run.
fn call<F, Fut>(run: F) -> PreparedCall
where
    F: FnOnce(Context) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Value, ErrorObject>> + Send + 'static,
{
    Box::new(|context| {
        Box::pin(async move {
            let result = run(context).await?;
            to_raw_value(&result).map_err(|_| internal_error().into())
        })
    })
}

fn store_failed(error: &StoreError) -> ErrorObject {
    tracing::error!(%error, "the lock store failed");
    unavailable("The lock store is unavailable")
}

/// Why a lock could not be released or extended.
fn not_held(why: NotHeld, key: &LockName) -> ErrorObject {
    let (code, message) = match why {
        NotHeld::NotFound => (
            ErrorCode::LockNotFound,
            "The lock is not held, or it has expired",
        ),
        NotHeld::AlreadyReleased { forced: false } => (
            ErrorCode::LockAlreadyReleased,
            "The lock was already released",
        ),
        NotHeld::AlreadyReleased { forced: true } => (
            ErrorCode::LockAlreadyReleased,
            "The lock was released by force",
        ),
        NotHeld::OwnedByAnother => (
            ErrorCode::LockOwnershipMismatch,
            "Lock is owned by a different process",
        ),
    };
    let error = ErrorObject::new(code, message).with_detail("key", key.as_str());
    match why {
        NotHeld::AlreadyReleased { forced: true } => error.with_detail("forced", true),
        _ => error,
    }
}

/// A held lock as `status` and `list` show it.
fn show(status: &LockStatus, now: Timestamp, to: &Caller, secret: &Secret) -> Value {
    let lease = &status.lease;
    let left = lease.expires_at.remaining(now).as_millis();
    let mut shown = json!({
        "key": lease.name.as_str(),
        "locked": true,
        "owner": to.sees_owner(&lease.owner, lease.caller.as_ref(), secret),
        "acquired_at": timestamp(lease.acquired_at),
        "expires_at": timestamp(lease.expires_at),
        "ttl_remaining": u64::try_from(left.div_ceil(1000)).unwrap_or(u64::MAX),
        "fence": lease.fence.to_string(),
    });
    if status.waiters > 0 {
        shown["waiters"] = status.waiters.into();
    }
    if let Some(caller) = &lease.caller {
        shown["caller"] = caller.as_str().into();
    }
    shown
}
