//! `list`: which locks are held.

use forrst_lock::{ListError, ListRequest, LockName, LockService, Page};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::{Value, json};

use super::{Prepared, arguments_of, call, show, store_failed};
use crate::access::Caller;
use crate::error::arguments_pointer;
use crate::fields::{at_most, text};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// No name of a lock begins so.
const OUT_OF_REACH: &str = "-";

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let prefix = fields.optional("prefix", text);
    let prefix = prefix.map(|prefix| LockName::normalised_prefix(&prefix));
    let limit = fields.optional("limit", at_most(MAX_LIMIT));
    let cursor = fields.optional("cursor", text);
    fields.finish()?;
    let request = ListRequest {
        prefix: prefix.unwrap_or_default(),
        limit: limit.unwrap_or(DEFAULT_LIMIT),
        cursor,
    };
    Ok(call(async move |context| {
        let caller = &context.call.caller;
        let page = if caller.is_confined() {
            list_confined(&context.server.locks, caller, request).await
        } else {
            context.server.locks.list(&request).await
        };
        let page = match page {
            Ok(page) => page,
            Err(ListError::Store(error)) => return Err(store_failed(&error)),
            Err(error @ ListError::BadCursor) => {
                let error = ErrorObject::new(ErrorCode::InvalidArguments, error.to_string());
                return Err(error.at(arguments_pointer().key("cursor")));
            }
        };
        let locks = page.locks.iter();
        let secret = &context.server.secret;
        let show = |lock| show(lock, page.now, caller, secret);
        let locks: Vec<Value> = locks.map(show).collect();
        Ok(json!({"locks": locks, "cursor": page.cursor}))
    }))
}

/// The locks that the caller may see. Neither the page nor its cursor tells of any other, so that pages of the store are read
/// until one is full.
async fn list_confined(
    locks: &LockService,
    caller: &Caller,
    mut request: ListRequest,
) -> Result<Page, ListError> {
    let limit = request.limit.max(1);
    let prefix = caller.common_prefix_of_locks();
    if prefix.starts_with(&request.prefix) {
        prefix.clone_into(&mut request.prefix);
    } else if !request.prefix.starts_with(prefix) {
        // None that begins so is the caller's: how long a search takes would tell whether there are any.
        request.prefix = OUT_OF_REACH.to_owned();
    }
    request.limit = MAX_LIMIT;
    let mut seen = Vec::new();
    loop {
        let page = locks.list(&request).await?;
        let visible = page.locks.into_iter();
        seen.extend(visible.filter(|lock| caller.may_see(&lock.lease.name)));
        request.cursor = page.cursor;
        if seen.len() > limit || request.cursor.is_none() {
            return Ok(Page::cut(seen, limit, page.now));
        }
    }
}
