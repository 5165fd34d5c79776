//! `watch`: the status of a lock as soon as its leases change, so that a client need not poll it.

use std::time::Duration;

use forrst_lock::{LockError, LockName, LockStatus, Observation, Owner, Revision};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::{Value, json};

use super::status::show;
use super::{
    CANCELLED, Needs, Prepared, STORE_UNAVAILABLE, Spec, arguments_of, call, check_lock,
    store_failed,
};
use crate::access::Role;
use crate::context::ServedCall;
use crate::error::unavailable;
use crate::extension::atomic_lock::read_wait;
use crate::fields::parsed;
use crate::limits::{Limits, Refusal};

/// How long a call waits for a change unless it says otherwise.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:watch"],
    schema: "watch",
    needs: Needs::OneOf(&[Role::Call, Role::Observe, Role::Admin]),
    is_cancellable: true,
    errors: &[
        (
            ErrorCode::Forbidden,
            "Without the role observe or admin, a caller has to name the `owner` of its own lease",
        ),
        CANCELLED,
        STORE_UNAVAILABLE,
    ],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, limits: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let key = fields.required("key", parsed(LockName::parse));
    let since = fields.optional("since", |value: &Value| {
        let revision = value.as_str().and_then(Revision::parse);
        revision.ok_or_else(|| "must be the `revision` of an earlier answer".to_owned())
    });
    let wait = read_wait(&mut fields, "wait", limits).map_or(DEFAULT_WAIT, |(_, wait)| wait);
    let owner = fields.optional("owner", parsed(Owner::parse));
    let key = fields.finish_with(key)?;
    let wait = wait.min(limits.max_block);
    Ok(call(async move |context| {
        context.note_locks([&key]);
        let (server, info) = (&context.server, &context.call);
        let observes = info.caller.has_one_of(&[Role::Observe, Role::Admin]);
        let owner = owner.as_ref().filter(|_| !observes);
        if !observes && owner.is_none() {
            server.metrics.refused(Refusal::Forbidden);
            let what = context.function().as_str();
            info.caller
                .check_roles(&[Role::Observe, Role::Admin], what)?;
        }
        check_lock(&context, &key)?;
        let watched = async {
            match owner {
                // A caller that may only call does not learn when the leases of others begin and end.
                Some(owner) => server.locks.watch_own(&key, owner, since, wait).await,
                None => server.locks.watch(&key, since, wait).await,
            }
        };
        let observed = tokio::select! {
            biased;
            observed = watched => observed.map_err(|error| failed(&error))?,
            refusal = server.access.revoked(&info.credential) => {
                server.metrics.refused(Refusal::Unauthorized);
                return Err(refusal.into());
            }
        };
        let sees_holders = owner.is_none_or(|owner| observed.status.shows(owner));
        Ok(shown(&observed, sees_holders, &context))
    }))
}

/// The status and its revision; without any holder for a caller that has no lease among them.
fn shown(observed: &Observation, sees_holders: bool, context: &ServedCall) -> Value {
    let mut shown = if sees_holders {
        show(&observed.status, observed.now, context)
    } else {
        let LockStatus {
            name,
            holder_count,
            waiters,
            ..
        } = &*observed.status;
        json!({"key": name.as_str(), "locked": *holder_count > 0, "waiters": waiters})
    };
    shown["revision"] = observed.revision.to_string().into();
    shown
}

fn failed(error: &LockError) -> ErrorObject {
    match error {
        LockError::Store(error) => store_failed(error),
        LockError::Closed | LockError::FencesExhausted => {
            unavailable("The server is shutting down")
        }
    }
}
