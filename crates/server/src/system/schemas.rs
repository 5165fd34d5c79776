//! The schemas of the system functions, from the folder `schemas/`. Each is bundled with the schemas that it refers to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use include_dir::{Dir, DirEntry, include_dir};
use serde_json::{Map, Value};

static FUNCTIONS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../schemas/functions");
static TYPES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../schemas/types");
const OTHERS: [&str; 3] = [
    include_str!("../../../../schemas/duration.json"),
    include_str!("../../../../schemas/atomic-lock.data.json"),
    include_str!("../../../../schemas/atomic-lock.options.json"),
];

/// Every schema by its `$id`.
static BY_ID: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let files = FUNCTIONS.entries().iter().chain(TYPES.entries());
    let files = files.filter_map(DirEntry::as_file);
    files
        .filter_map(|file| file.contents_utf8())
        .chain(OTHERS)
        .filter_map(|text| serde_json::from_str(text).ok())
        .filter_map(|schema: Value| Some((schema["$id"].as_str()?.to_owned(), schema)))
        .collect()
});

pub(super) fn arguments(function: &str) -> Value {
    bundle(&format!("urn:forrst:schema:functions:{function}.arguments"))
}

pub(super) fn result(function: &str) -> Value {
    bundle(&format!("urn:forrst:schema:functions:{function}.result"))
}

/// A self-contained schema: those that it refers to are in its `$defs`, under their own `$id`s.
fn bundle(id: &str) -> Value {
    let mut schema = BY_ID.get(id).cloned().unwrap_or(Value::Bool(true));
    let mut needed = BTreeSet::new();
    collect(&schema, &mut needed);
    needed.remove(id);
    if needed.is_empty() {
        return schema;
    }
    let mut definitions = match schema.get("$defs") {
        Some(Value::Object(own)) => own.clone(),
        _ => Map::new(),
    };
    for id in needed {
        let definition = BY_ID.get(&id).cloned().unwrap_or_default();
        definitions.insert(id, definition);
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$defs".to_owned(), definitions.into());
    }
    schema
}

/// The ids of all schemas that this one needs, directly or not.
fn collect(schema: &Value, needed: &mut BTreeSet<String>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| collect(item, needed)),
        Value::Object(members) => {
            for (name, member) in members {
                let target = member.as_str().filter(|_| name == "$ref");
                let id = target.and_then(|target| target.split('#').next());
                if let Some((id, schema)) = id.and_then(|id| BY_ID.get_key_value(id))
                    && needed.insert(id.clone())
                {
                    collect(schema, needed);
                }
                collect(member, needed);
            }
        }
        _ => {}
    }
}
