//! `list`: the locks that are held, in pages. A caller that is confined to some locks gets only those, and learns nothing of
//! others.

use forrst_lock::{ListError, ListRequest, LockName, LockService, LockStatus, Page};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::{Value, json};

use super::status::show;
use super::{
    DEFAULT_LIMIT, MAX_LIMIT, OBSERVER, Prepared, STORE_UNAVAILABLE, Spec, arguments_of, call,
    store_failed,
};
use crate::access::Caller;
use crate::error::arguments_pointer;
use crate::fields::{at_most, text};
use crate::limits::Limits;

/// A page ends before its limit if the leases on its locks have more keys than this: a lock may have a hundred holders, and each
/// lease sixteen keys.
const MAX_KEYS: usize = 1000;

pub(super) const SPEC: Spec = Spec {
    names: &["urn:cline:forrst:ext:atomic-lock:fn:list"],
    schema: "list",
    needs: OBSERVER,
    is_cancellable: false,
    errors: &[STORE_UNAVAILABLE],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
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
            Err(ListError::Store(error)) => return Err(store_failed(&error).into()),
            Err(error @ ListError::BadCursor) => {
                let error = ErrorObject::new(ErrorCode::InvalidArguments, error.to_string());
                return Err(error.at(arguments_pointer().key("cursor")).into());
            }
        };
        let page = bounded(page);
        let locks = page.locks.iter();
        let locks: Vec<Value> = locks.map(|lock| show(lock, page.now, &context)).collect();
        Ok(json!({"locks": locks, "cursor": page.cursor}))
    }))
}

/// Cuts a page to what one answer may have, but at least one lock.
fn bounded(page: Page) -> Page {
    let mut keys = 0;
    let fitting = page.locks.iter().take_while(|lock| {
        keys += keys_of(lock);
        keys <= MAX_KEYS
    });
    let fitting = fitting.count().max(1);
    if fitting == page.locks.len() {
        return page;
    }
    Page::cut(page.locks, fitting, page.now)
}

fn keys_of(lock: &LockStatus) -> usize {
    let leases = lock.holders.iter();
    leases.map(|lease| lease.locks.names().len()).sum()
}

/// The locks that the caller may see. Neither the page nor its cursor reveals any other, so pages of the store are read until
/// one page of the caller's locks is full.
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
        // No such lock is visible to the caller, and how long a search takes would reveal whether any exist.
        request.prefix = ListRequest::NO_PREFIX.to_owned();
    }
    request.limit = MAX_LIMIT;
    let mut seen = Vec::new();
    loop {
        let page = locks.list(&request).await?;
        let visible = page.locks.into_iter();
        seen.extend(visible.filter(|lock| caller.may_see(&lock.name)));
        request.cursor = page.cursor;
        let is_full = seen.len() > limit || seen.iter().map(keys_of).sum::<usize>() > MAX_KEYS;
        if is_full || request.cursor.is_none() {
            let has_more = request.cursor.is_some();
            let last = seen.last().map(|lock| lock.name.to_string());
            let mut cut = Page::cut(seen, limit, page.now);
            // Later locks may be visible to the caller, too.
            cut.cursor = cut.cursor.or(last.filter(|_| has_more));
            return Ok(cut);
        }
    }
}
