//! The system functions: locks, health and discovery. Each has its own file, with one [`Spec`] that states its names, roles,
//! schemas and errors; everything else about them is derived from [`SPECS`].

mod acquire;
mod activity;
mod cancel;
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
mod watch;
mod withdraw;

use std::sync::Arc;

use forrst_lock::model::LeaseRef;
use forrst_lock::{Caller as CallerName, Fence, Lease, LockName, NotHeld, Note, Owner, StoreError};
use forrst_protocol::{ErrorCode, ErrorObject, Errors, FunctionName, RawObject, Version};
use serde::Serialize;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};

pub(crate) use self::describe::document;
pub(crate) use self::health::{Health, StoreHealth};
use crate::AuditEntry;
use crate::access::{Needs, Role};
use crate::context::ServedCall;
use crate::core::{Extensions, ToCompletion};
use crate::error::{arguments_pointer, internal_error, unavailable};
use crate::fields::{Fields, parsed};
use crate::function::PreparedCall;
use crate::limits::{Limits, Refusal};
use crate::metrics::FunctionMetrics;
use crate::registry::Registered;

const CALLER: Needs = Needs::OneOf(&[Role::Call]);
/// The owner token proves who holds the lock. An admin can see it, and may act for the owner.
const HOLDER: Needs = Needs::OneOf(&[Role::Call, Role::Admin]);
const OBSERVER: Needs = Needs::OneOf(&[Role::Observe, Role::Admin]);
const ADMIN: Needs = Needs::OneOf(&[Role::Admin]);

type Prepared = Result<PreparedCall, Errors>;

/// Everything about a system function, in one constant in the function's own file.
struct Spec {
    /// Its URNs: one, or two for a function that has a second name.
    names: &'static [&'static str],
    /// The name of the schemas of its arguments and its result in `schemas/functions`.
    schema: &'static str,
    /// Who may call it.
    needs: Needs,
    /// Whether a call can wait, and its caller can cancel it.
    is_cancellable: bool,
    /// The errors that it can return besides those of every call.
    errors: &'static [(ErrorCode, &'static str)],
    /// Checks the arguments, and returns the call that is ready to run.
    prepare: fn(&RawObject<'_>, &Limits) -> Prepared,
}

const SPECS: [Spec; 15] = [
    acquire::SPEC,
    activity::SPEC,
    cancel::SPEC,
    capabilities::SPEC,
    describe::SPEC,
    extend::SPEC,
    force_release::SPEC,
    health::SPEC,
    list::SPEC,
    ping::SPEC,
    release::SPEC,
    status::SPEC,
    waiters::SPEC,
    watch::SPEC,
    withdraw::SPEC,
];

/// All system functions, each under all of its names.
pub(crate) fn functions(limits: &Arc<Limits>) -> Vec<Registered> {
    let specs = SPECS.into_iter();
    specs.flat_map(|spec| spec.registered(limits)).collect()
}

impl Spec {
    fn registered(self, limits: &Arc<Limits>) -> impl Iterator<Item = Registered> {
        let arguments = schemas::arguments(self.schema);
        let result = schemas::result(self.schema);
        let summary = arguments.get("description").and_then(Value::as_str);
        let summary = summary.map(str::to_owned);
        let error = |(code, why): &(ErrorCode, &str)| (code.clone(), (*why).to_owned());
        let errors: Vec<(ErrorCode, String)> = self.errors.iter().map(error).collect();
        let names = self.names.iter();
        names.filter_map(move |name| {
            let limits = limits.clone();
            let prepare = self.prepare;
            let metrics = FunctionMetrics::new(name);
            Some(Registered {
                summary: summary.clone(),
                name: FunctionName::parse(name).ok()?,
                version: Version::new(1, 0, 0),
                errors: errors.clone(),
                // A system function does not run under a lock.
                extensions: Some(if self.is_cancellable {
                    (0..=Extensions::CANCELLATION).collect()
                } else {
                    (0..Extensions::CANCELLATION).collect()
                }),
                arguments: arguments.clone(),
                result: result.clone(),
                prepare: Box::new(move |arguments| prepare(arguments, &limits)),
                result_size: Arc::default(),
                metrics,
                is_system: true,
                needs: self.needs,
            })
        })
    }
}

const STORE_UNAVAILABLE: (ErrorCode, &str) =
    (ErrorCode::Unavailable, "The lock store is unavailable");

const CANCELLED: (ErrorCode, &str) = (
    ErrorCode::Cancelled,
    "The caller has cancelled the call by its token",
);

/// The errors of a function that acts on the lease of an owner.
const NOT_HELD: &[(ErrorCode, &str)] = &[
    (
        ErrorCode::LockNotFound,
        "The lock is not held, or it has expired",
    ),
    (
        ErrorCode::LockAlreadyReleased,
        "This owner's lease was released before; `details.forced` says whether by force-release",
    ),
    (
        ErrorCode::LockOwnershipMismatch,
        "Another owner holds it, or the same owner with another fence",
    ),
    (
        ErrorCode::InvalidArguments,
        "The owner has several leases on this key, and `fence` does not say which",
    ),
    STORE_UNAVAILABLE,
];

/// `FORBIDDEN` if the caller is confined to other locks.
fn check_lock(context: &ServedCall, name: &LockName) -> Result<(), ErrorObject> {
    let allowed = context.call.caller.check_lock(name);
    allowed.inspect_err(|_| context.server.metrics.refused(Refusal::Forbidden))
}

/// An entry about a privileged action on locks.
fn audit_entry<'a>(
    context: &'a ServedCall,
    act: &'a str,
    names: impl IntoIterator<Item = &'a LockName>,
) -> AuditEntry<'a> {
    AuditEntry {
        who: context.caller_name(),
        from: context.call.from.as_deref(),
        act,
        function: Some(context.function().as_str()),
        request: Some(context.request_id().as_str()),
        ..AuditEntry::about(names)
    }
}

/// Records that an admin acted on a lock that another caller had taken.
async fn audit_for_owner(context: &ServedCall, act: &str, lease: &Lease) {
    let caller = &context.call.caller;
    if lease.caller.as_ref() != caller.name() && caller.has_one_of(&[Role::Admin]) {
        let entry = audit_entry(context, act, lease.locks.names());
        let entry = entry.ended(std::slice::from_ref(lease));
        context.server.audit.done(&entry).await;
    }
}

/// Runs a privileged action on a lock. It is recorded as pending in the audit log before it is done, and refused if that cannot be
/// written; its outcome is recorded before it is answered.
async fn audited(
    context: &ServedCall,
    act: &str,
    key: &LockName,
    work: impl Future<Output = Result<Vec<Lease>, ErrorObject>>,
) -> Result<Vec<Lease>, ErrorObject> {
    let audit = &context.server.audit;
    let entry = audit_entry(context, act, [key]);
    let announced = audit.announce(&entry).await.map_err(|error| {
        tracing::error!(%error, act, "refused an action, because it cannot be written to the audit log");
        unavailable("The audit log cannot be written")
    })?;
    let ended = work.await;
    let entry = match &ended {
        Ok(leases) => entry.ended(leases),
        Err(error) => AuditEntry {
            result: error.code.as_str(),
            ..entry
        },
    };
    audit.outcome(announced, &entry).await;
    ended
}

/// How many items a list has by default.
const DEFAULT_LIMIT: usize = 100;
/// How many items a caller may ask for.
const MAX_LIMIT: usize = 1000;

/// `key`, `owner` and `fence`: the lease that `release` and `extend` are about.
fn read_held(fields: &mut Fields<'_>) -> Option<LeaseRef> {
    let name = fields.required("key", parsed(LockName::parse));
    let owner = fields.required("owner", parsed(Owner::parse));
    let fence = fields.optional("fence", parsed(str::parse::<Fence>));
    Some(LeaseRef {
        name: name?,
        owner: owner?,
        fence,
    })
}

/// A holder or a waiter, as a caller may see it.
struct Party<'a> {
    owner: &'a Owner,
    caller: Option<&'a CallerName>,
    note: Option<&'a Note>,
    /// Whether the caller may use all of its keys.
    may_use_all_keys: bool,
}

impl Party<'_> {
    fn show(&self, context: &ServedCall) -> Map<String, Value> {
        let (to, secret) = (&context.call.caller, &context.server.secret);
        let owner = to.visible_owner(self.owner, self.caller, self.may_use_all_keys, secret);
        let mut shown = Map::new();
        shown.insert("owner".to_owned(), owner.into());
        if let Some(caller) = self.caller {
            shown.insert("caller".to_owned(), caller.as_str().into());
        }
        if let Some(note) = self.note {
            shown.insert("note".to_owned(), note.as_str().into());
        }
        shown
    }
}

/// The arguments of a system function.
fn arguments_of<'a>(raw: &'a RawObject<'_>) -> Fields<'a> {
    Fields::read(Some(raw), arguments_pointer())
}

/// A call that changes something. It runs to completion even if the client disconnects, so that what it did is counted and
/// audited.
fn mutating_call<F, Fut>(run: F) -> PreparedCall
where
    F: FnOnce(ServedCall) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Value, ErrorObject>> + Send + 'static,
{
    call(async move |context: ServedCall| {
        let server = context.server.clone();
        let done = server
            .run_to_completion(ToCompletion::new(run(context)), false)
            .await;
        done.unwrap_or_else(|| Err(internal_error()))
            .map_err(Errors::from)
    })
}

/// A call that is ready to run.
fn call<F, Fut, R>(run: F) -> PreparedCall
where
    F: FnOnce(ServedCall) -> Fut + Send + 'static,
    Fut: Future<Output = Result<R, Errors>> + Send + 'static,
    R: Serialize,
{
    Box::new(|context| {
        Box::pin(async move {
            let result = run(context).await?;
            to_raw_value(&result).map_err(|_| internal_error().into())
        })
    })
}

fn store_failed(error: &StoreError) -> ErrorObject {
    if let StoreError::Unsupported(_) = error {
        // Not `UNAVAILABLE`: a retry would not help.
        return ErrorObject::new(ErrorCode::InvalidArguments, error.to_string());
    }
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
        NotHeld::Ambiguous => (
            ErrorCode::InvalidArguments,
            "`fence` is required: the owner has several leases on this key",
        ),
    };
    let error = ErrorObject::new(code, message).with_detail("key", key.as_str());
    match why {
        NotHeld::AlreadyReleased { forced: true } => error.with_detail("forced", true),
        NotHeld::Ambiguous => error.at(arguments_pointer().key("fence")),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns `call`, `observe` and `admin` of the row about a function in the table of rights.
    fn documented_roles(function: &str) -> Vec<Role> {
        let text = include_str!("../../../docs/access.md");
        let table = text.lines().filter(|line| line.starts_with("| `"));
        let mut rows = table.map(|line| line.trim_matches('|').split('|').collect::<Vec<_>>());
        let name = format!("`{function}`");
        let row = rows.find(|cells| cells.len() == 5 && cells[0].contains(&name));
        let cells = row.unwrap_or_else(|| panic!("docs/access.md has no row for {name}"));
        let roles = [Role::Call, Role::Observe, Role::Admin];
        let is_checked = |(cell, _): &(&&str, Role)| cell.trim() == "✓";
        let checked = cells[2..].iter().zip(roles).filter(is_checked);
        checked.map(|(_, role)| role).collect()
    }

    /// A schema that is missing would be shown as one that allows everything.
    #[test]
    fn every_function_is_described_with_a_summary_and_schemas() {
        for function in functions(&Arc::default()) {
            let name = function.name.as_str();
            assert!(function.summary.is_some_and(|it| !it.is_empty()), "{name}");
            for schema in [&function.arguments, &function.result] {
                assert!(schema.is_object(), "{name}: {schema}");
            }
            let undescribed = function.errors.iter().find(|(_, why)| why.is_empty());
            assert_eq!(undescribed, None, "{name}");
        }
    }

    #[test]
    fn the_table_of_rights_in_the_documentation_matches_the_functions() {
        for spec in SPECS {
            let function = spec.names[0].rsplit(':').next().unwrap();
            let roles = match spec.needs {
                Needs::AnyCaller => Role::ALL.map(|(_, role)| role).to_vec(),
                Needs::OneOf(roles) => roles.to_vec(),
            };
            assert_eq!(documented_roles(function), roles, "{function}");
        }
    }
}
