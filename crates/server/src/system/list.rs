//! `list`: which locks are held.

use forrst_lock::{ListError, ListRequest};
use forrst_protocol::{ErrorCode, ErrorObject, RawObject};
use serde_json::{Value, json};

use super::{Prepared, arguments_of, call, show, store_failed};
use crate::error::arguments_pointer;
use crate::fields::{positive_integer, text};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

pub(super) fn prepare(arguments: &RawObject<'_>) -> Prepared {
    let mut fields = arguments_of(arguments);
    let prefix = fields.optional("prefix", text);
    let limit = fields.optional("limit", |value| {
        let limit = usize::try_from(positive_integer(value)?).ok();
        let limit = limit.filter(|limit| *limit <= MAX_LIMIT);
        limit.ok_or_else(|| format!("must be at most {MAX_LIMIT}"))
    });
    let cursor = fields.optional("cursor", text);
    fields.finish()?;
    let request = ListRequest {
        prefix: prefix.unwrap_or_default(),
        limit: limit.unwrap_or(DEFAULT_LIMIT),
        cursor,
    };
    Ok(call(async move |context| {
        let page = match context.server.locks.list(&request).await {
            Ok(page) => page,
            Err(ListError::Store(error)) => return Err(store_failed(&error)),
            Err(error @ ListError::BadCursor) => {
                let error = ErrorObject::new(ErrorCode::InvalidArguments, error.to_string());
                return Err(error.at(arguments_pointer().key("cursor")));
            }
        };
        let locks: Vec<Value> = page.locks.iter().map(|lock| show(lock, page.now)).collect();
        Ok(json!({"locks": locks, "cursor": page.cursor}))
    }))
}
