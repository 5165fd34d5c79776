//! Tables: a file whose `cases` each change something in its `steps`. Every case is a vector of its own.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The field of a step that says where in its message the cases make their changes.
const CHANGE: &str = "change";

/// In the expectation of a step with `change`: where the case made its change.
const AT: &str = "${at}";

/// The fields that hold a message. A `call` is in the step itself, beside `context` and `extensions`.
const MESSAGES: [&str; 5] = ["request", "text", "http", "rpc", "rpc_text"];

/// What one case changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) about: String,
    /// Where it differs from that of the table.
    pub(super) source: Option<String>,
    /// New values by JSON pointer, relative to `change`.
    #[serde(default)]
    set: Map<String, Value>,
    #[serde(default)]
    remove: Vec<String>,
    /// Replaces `${at}`: a pointer relative to `change`, or any other value. By default the pointer of the only change.
    at: Option<Value>,
    /// In place of the expectation of the table.
    expect: Option<Value>,
}

impl Case {
    /// The steps of the table with the changes of this case.
    pub(super) fn steps(&self, table: &[Value]) -> Result<Vec<Value>, String> {
        let mut steps = table.to_vec();
        let mut changed = 0;
        for step in &mut steps {
            let base = step.as_object_mut().and_then(|step| step.remove(CHANGE));
            match base {
                None => {}
                Some(Value::String(base)) => {
                    self.change(step, &base)?;
                    changed += 1;
                }
                Some(_) => return Err(format!("`{CHANGE}` has to be a JSON pointer")),
            }
        }
        match changed {
            0 => Err(format!("no step of its table has `{CHANGE}`")),
            _ => Ok(steps),
        }
    }

    fn change(&self, step: &mut Value, base: &str) -> Result<(), String> {
        let field = MESSAGES.iter().find(|field| step.get(field).is_some());
        let message = match field {
            Some(field) => &mut step[*field],
            None => &mut *step,
        };
        for (pointer, value) in &self.set {
            let (parent, name) = place(message, base, pointer)?;
            match (parent, name) {
                (whole, None) => *whole = value.clone(),
                (Value::Object(members), Some(name)) => {
                    members.insert(name, value.clone());
                }
                (parent, Some(name)) => *element(parent, &name)? = value.clone(),
            }
        }
        for pointer in &self.remove {
            let (parent, name) = place(message, base, pointer)?;
            let members = parent.as_object_mut();
            let removed = members.and_then(|members| members.remove(&name?));
            removed.ok_or(format!("there is no {base}{pointer} to remove"))?;
        }
        if let Some(expect) = &self.expect {
            step["expect"] = expect.clone();
        }
        let at = self.at(base);
        let has_at = fill_at(&mut step["expect"], at.as_ref())?;
        if self.at.is_some() && !has_at {
            return Err(format!("nothing expects {AT}"));
        }
        Ok(())
    }

    fn at(&self, base: &str) -> Option<Value> {
        let changes: Vec<&String> = self.set.keys().chain(&self.remove).collect();
        match (&self.at, changes.as_slice()) {
            (Some(Value::String(pointer)), _) if !pointer.starts_with('$') => {
                Some(Value::from(format!("{base}{pointer}")))
            }
            (Some(other), _) => Some(other.clone()),
            (None, [only]) => Some(Value::from(format!("{base}{only}"))),
            (None, _) => None,
        }
    }
}

/// What the pointer is a member or an element of, and its name there; without a name, it points at the whole.
fn place<'a>(
    message: &'a mut Value,
    base: &str,
    pointer: &str,
) -> Result<(&'a mut Value, Option<String>), String> {
    if [base, pointer]
        .iter()
        .any(|part| !part.is_empty() && !part.starts_with('/'))
    {
        return Err(format!("{pointer:?} in {base:?} is not a JSON pointer"));
    }
    let pointer = format!("{base}{pointer}");
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return Ok((message, None));
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    let parent = message.pointer_mut(parent);
    parent
        .map(|parent| (parent, Some(name)))
        .ok_or_else(|| format!("there is no place for {pointer}"))
}

fn element<'a>(parent: &'a mut Value, index: &str) -> Result<&'a mut Value, String> {
    let position = index.parse::<usize>().ok();
    position
        .and_then(|position| parent.get_mut(position))
        .ok_or_else(|| format!("there is no element {index} to set"))
}

/// Replaces every `${at}`, and returns whether there was one.
fn fill_at(expect: &mut Value, at: Option<&Value>) -> Result<bool, String> {
    let parts: Vec<&mut Value> = match expect {
        Value::String(text) if text == AT => {
            let at = at.ok_or_else(|| {
                format!("it has not one change, so it has to say `at`, which is {AT}")
            })?;
            *expect = at.clone();
            return Ok(true);
        }
        Value::Array(elements) => elements.iter_mut().collect(),
        Value::Object(members) => members.values_mut().collect(),
        _ => return Ok(false),
    };
    let mut found = false;
    for part in parts {
        found |= fill_at(part, at)?;
    }
    Ok(found)
}
