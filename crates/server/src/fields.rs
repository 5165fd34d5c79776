//! Reads the options of extensions and the arguments of system functions, finding all problems at once.

use std::time::Duration as StdDuration;

use forrst_protocol::{Duration, ErrorCode, ErrorObject, Errors, Pointer, RawObject, Unit};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::internal_error;
use crate::function::read_json;

/// An object whose members are taken out one by one. What is left at the end should not be there.
pub(crate) struct Fields {
    at: Pointer,
    members: Map<String, Value>,
    /// Whether the members are known. JSON has numbers and texts that nothing can hold.
    is_readable: bool,
    problems: Vec<ErrorObject>,
}

/// What a member should have been, as the end of a sentence.
type Expected = String;

impl Fields {
    pub(crate) fn read(object: Option<&RawObject<'_>>, at: Pointer) -> Self {
        let none = || Ok(Map::new());
        let members = object.map_or_else(none, |object| read_json(object, at.clone()));
        let is_readable = members.is_ok();
        let (members, problems) = match members {
            Ok(members) => (members, Vec::new()),
            Err(problem) => (Map::new(), vec![problem]),
        };
        Self {
            at,
            members,
            is_readable,
            problems,
        }
    }

    /// A member that stays where it is.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.members.get(name)
    }

    /// A member that has to be there.
    pub(crate) fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        if self.is_missing(name) {
            self.problem(self.at.clone().key(name), format!("`{name}` is required"));
        }
        self.optional(name, read)
    }

    fn is_missing(&self, name: &str) -> bool {
        self.is_readable && !self.members.contains_key(name)
    }

    /// A member that may be missing, but not be null.
    pub(crate) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        let value = self.members.remove(name)?;
        match read(&value) {
            Ok(read) => Some(read),
            Err(expected) => {
                self.problem(self.at.clone().key(name), format!("`{name}` {expected}"));
                None
            }
        }
    }

    /// A `{value, unit}` that has to be there, and to be positive.
    pub(crate) fn required_duration(&mut self, name: &str) -> Option<(Duration, StdDuration)> {
        if self.is_missing(name) {
            let message = format!(
                "`{name}` is required, for example {{\"value\": 30, \"unit\": \"second\"}}"
            );
            self.problem(self.at.clone().key(name), message);
        }
        self.optional_duration(name)
    }

    /// A positive `{value, unit}` that may be missing.
    pub(crate) fn optional_duration(&mut self, name: &str) -> Option<(Duration, StdDuration)> {
        let value = self.members.remove(name)?;
        let at = self.at.clone().key(name);
        let Value::Object(members) = value else {
            let message = format!("`{name}` must be an object with `value` and `unit`");
            self.problem(at, message);
            return None;
        };
        let mut inner = Self {
            at,
            members,
            is_readable: true,
            problems: Vec::new(),
        };
        let duration = inner.duration();
        inner.refuse_the_rest();
        let is_good = inner.problems.is_empty();
        self.problems.append(&mut inner.problems);
        duration.filter(|_| is_good)
    }

    /// This object itself as a positive `{value, unit}`.
    pub(crate) fn duration(&mut self) -> Option<(Duration, StdDuration)> {
        let value = self.required("value", positive_integer);
        let unit = self.required("unit", unit);
        let duration = Duration::new(value?, unit?);
        match duration.to_std() {
            Ok(std) => Some((duration, std)),
            Err(_) => {
                let message = format!("{duration} is more time than there is");
                self.problem(self.at.clone().key("value"), message);
                None
            }
        }
    }

    /// Notes a problem with a member that had the right shape.
    pub(crate) fn refuse(&mut self, name: &str, why: impl std::fmt::Display) {
        self.problem(self.at.clone().key(name), format!("`{name}` {why}"));
    }

    /// Everything that was wrong, unknown members among it.
    pub(crate) fn finish(mut self) -> Result<(), Errors> {
        self.refuse_the_rest();
        match Errors::try_from(self.problems) {
            Ok(problems) => Err(problems),
            Err(_) => Ok(()),
        }
    }

    /// As [`finish`](Self::finish), with what was read, which is there when nothing was wrong.
    pub(crate) fn finish_with<T>(self, read: Option<T>) -> Result<T, Errors> {
        self.finish()?;
        read.ok_or_else(|| internal_error().into())
    }

    /// As [`finish`](Self::finish) for an object that may have members we do not know.
    pub(crate) fn finish_open(mut self) -> Result<(), Errors> {
        self.members.clear();
        self.finish()
    }

    fn refuse_the_rest(&mut self) {
        for name in std::mem::take(&mut self.members).into_iter().map(|m| m.0) {
            let at = self.at.clone().key(&name);
            self.problem(at, format!("`{name}` is not known here"));
        }
    }

    fn problem(&mut self, at: Pointer, message: String) {
        self.problems
            .push(ErrorObject::new(ErrorCode::InvalidArguments, message).at(at));
    }
}

pub(crate) fn text(value: &Value) -> Result<String, Expected> {
    let text = value.as_str().ok_or("must be a string")?;
    Ok(text.to_owned())
}

/// A string that some type makes sense of.
pub(crate) fn parsed<T, E: std::fmt::Display>(
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> impl FnOnce(&Value) -> Result<T, Expected> {
    |value| parse(value.as_str().ok_or("must be a string")?).map_err(|error| error.to_string())
}

pub(crate) fn boolean(value: &Value) -> Result<bool, Expected> {
    Ok(value.as_bool().ok_or("must be true or false")?)
}

pub(crate) fn positive_integer(value: &Value) -> Result<u64, Expected> {
    let number = value.as_u64().filter(|number| *number > 0);
    Ok(number.ok_or("must be a positive whole number")?)
}

pub(crate) fn at_most(max: usize) -> impl Fn(&Value) -> Result<usize, Expected> {
    move |value| {
        let number = usize::try_from(positive_integer(value)?).ok();
        let number = number.filter(|number| *number <= max);
        number.ok_or_else(|| format!("must be at most {max}"))
    }
}

pub(crate) fn unit(value: &Value) -> Result<Unit, Expected> {
    let known = "must be one of `millisecond`, `second`, `minute`, `hour`, `day`";
    Unit::deserialize(value).map_err(|_| known.to_owned())
}

/// One of a few words.
pub(crate) fn one_of<'a, T: Copy>(
    words: &'a [(&'a str, T)],
) -> impl FnOnce(&Value) -> Result<T, Expected> + 'a {
    |value| {
        let word = value.as_str();
        let found = words.iter().find(|(name, _)| Some(*name) == word);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let names: Vec<String> = words.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!("must be one of {}", names.join(", "))
        })
    }
}
