//! Reads the options of extensions and the arguments of system functions member by member, and collects all problems. Members
//! stay raw until they are read: as a [`Value`], a mebibyte of JSON takes 30.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration as StdDuration;

use forrst_protocol::{
    Duration, ErrorCode, ErrorObject, Errors, MAX_PROBLEMS, Pointer, Problems, RawObject, Unit,
    excerpt, short_message,
};
use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::borrowed::Text;
use crate::error::internal_error;
use crate::function::read_json_text;

/// An object whose members are taken out one by one. Members that are left at the end are unknown, and are refused.
pub(crate) struct Fields<'a> {
    at: Pointer,
    text: &'a str,
    /// The first members. No valid object has more.
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// How many more there are; they are searched for in the text.
    beyond: usize,
    /// Whether the members are known.
    is_readable: bool,
    problems: Problems,
}

/// One entry of a list.
pub(crate) struct Entry<'a> {
    name: &'static str,
    index: usize,
    raw: &'a RawValue,
}

impl Entry<'_> {
    fn pointer(&self, at: &Pointer) -> Pointer {
        at.clone().key(self.name).index(self.index)
    }

    pub(crate) fn is_object(&self) -> bool {
        self.raw.get().starts_with('{')
    }

    pub(crate) fn is_string(&self) -> bool {
        self.raw.get().starts_with('"')
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.name, self.index)
    }
}

/// What a member should be, as the predicate of a sentence such as "`ttl` must be positive".
type Expected = String;

/// How many members are kept in the list.
const KEPT: usize = MAX_PROBLEMS;

/// The largest list or object that is read: as a [`Value`], it takes many times its size.
const MAX_STRUCTURE: usize = 64 * 1024;

impl<'a> Fields<'a> {
    pub(crate) fn read(object: Option<&'a RawObject<'_>>, at: Pointer) -> Self {
        Self::from_text(object.map_or("{}", RawObject::get), at)
    }

    fn from_text(text: &'a str, at: Pointer) -> Self {
        let mut fields = Self {
            at,
            text,
            members: Vec::new(),
            beyond: 0,
            is_readable: true,
            problems: Problems::default(),
        };
        let read = each_member(text, |name, value| {
            if fields.members.len() < KEPT {
                fields.members.push((name, value));
            } else {
                fields.beyond += 1;
            }
        });
        if let Err(error) = read {
            fields.is_readable = false;
            fields.problem(fields.at.clone(), &error);
        }
        fields
    }

    /// Whether there is such a member.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut has = self.members.iter().any(|(own, _)| own == name);
        if self.beyond > 0 {
            let _ = each_member(self.text, |own, _| has |= own == name);
        }
        has
    }

    /// Takes a member out.
    fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        if let Some(index) = self.members.iter().position(|(own, _)| own == name) {
            return Some(self.members.remove(index).1);
        }
        if self.beyond == 0 {
            return None;
        }
        let mut found = None;
        let _ = each_member(self.text, |own, value| {
            if own == name {
                found = Some(value);
            }
        });
        // One that was among the first has been taken before.
        self.beyond -= usize::from(found.is_some());
        found
    }

    /// Reads a string without taking the member out.
    pub(crate) fn peek(&self, name: &str) -> Option<String> {
        let (_, raw) = self.members.iter().find(|(own, _)| own == name)?;
        serde_json::from_str(raw.get()).ok()
    }

    /// A required member.
    pub(crate) fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        self.required_or(name, "", read)
    }

    /// A required member; if it is missing, the error ends with `instead`, which names an alternative.
    pub(crate) fn required_or<T>(
        &mut self,
        name: &str,
        instead: &str,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        let raw = self.take(name);
        self.note_if_missing(name, raw, instead);
        self.value(name, raw?, read)
    }

    fn note_if_missing(&mut self, name: &str, raw: Option<&RawValue>, example: &str) {
        if self.is_readable && raw.is_none() {
            let at = self.at.clone().key(name);
            self.problem(at, format_args!("`{name}` is required{example}"));
        }
    }

    /// A member that may be missing, but not null.
    pub(crate) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        let raw = self.take(name)?;
        self.value(name, raw, read)
    }

    /// An object that may be missing, left raw.
    pub(crate) fn optional_object(&mut self, name: &str) -> Option<RawObject<'a>> {
        let raw = self.take(name)?;
        let object = RawObject::or_empty_array(raw).ok();
        if object.is_none() {
            self.refuse(name, "must be an object");
        }
        object
    }

    /// A required list, as its entries.
    pub(crate) fn required_list(&mut self, name: &'static str) -> Option<Vec<Entry<'a>>> {
        let raw = self.take(name);
        self.note_if_missing(name, raw, "");
        let text = raw?.get();
        if !text.starts_with('[') {
            self.refuse(name, "must be a list");
            return None;
        }
        if self.is_too_large(name, text) {
            return None;
        }
        // It is part of a body that was parsed as JSON.
        let entries: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let entries = entries.into_iter().enumerate();
        let entry = |(index, raw)| Entry { name, index, raw };
        Some(entries.map(entry).collect())
    }

    /// An entry of a list that is not an object.
    pub(crate) fn entry<T>(
        &mut self,
        entry: &Entry<'a>,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        self.value_at(entry.pointer(&self.at), entry, entry.raw, read)
    }

    /// An entry of a list that is an object without unknown members.
    pub(crate) fn entry_object<T>(
        &mut self,
        entry: &Entry<'a>,
        read: impl FnOnce(&mut Fields<'a>) -> Option<T>,
    ) -> Option<T> {
        self.object_at(entry.pointer(&self.at), entry.raw, read)
    }

    /// Notes a problem with an entry of a list.
    pub(crate) fn refuse_entry(&mut self, entry: &Entry<'_>, why: impl fmt::Display) {
        let at = entry.pointer(&self.at);
        self.problem(at, format_args!("`{entry}` {why}"));
    }

    fn is_too_large(&mut self, name: impl fmt::Display, text: &str) -> bool {
        let is_too_large = text.len() > MAX_STRUCTURE && text.starts_with(['[', '{']);
        if is_too_large {
            let message = format!("`{name}` is larger than {MAX_STRUCTURE} bytes");
            self.problem(self.at.clone().key(&name.to_string()), message);
        }
        is_too_large
    }

    fn value<T>(
        &mut self,
        name: &str,
        raw: &RawValue,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        if self.is_too_large(name, raw.get()) {
            return None;
        }
        self.value_at(self.at.clone().key(name), name, raw, read)
    }

    fn value_at<T>(
        &mut self,
        at: Pointer,
        name: impl fmt::Display,
        raw: &RawValue,
        read: impl FnOnce(&Value) -> Result<T, Expected>,
    ) -> Option<T> {
        match read_json_text(raw.get(), at.clone()).map(|value: Value| read(&value)) {
            Ok(Ok(read)) => Some(read),
            Ok(Err(expected)) => {
                self.problem(at, format_args!("`{name}` {expected}"));
                None
            }
            // Some valid JSON fits no `Value`: numbers that are too large, lone surrogates.
            Err(problem) => {
                self.problems.note(|| problem);
                None
            }
        }
    }

    /// A required `{value, unit}`, which must be positive.
    pub(crate) fn required_duration(&mut self, name: &str) -> Option<(Duration, StdDuration)> {
        let raw = self.take(name);
        let example = ", for example {\"value\": 30, \"unit\": \"second\"}";
        self.note_if_missing(name, raw, example);
        self.duration_of(name, raw?)
    }

    /// A positive `{value, unit}` that may be missing.
    pub(crate) fn optional_duration(&mut self, name: &str) -> Option<(Duration, StdDuration)> {
        let raw = self.take(name)?;
        self.duration_of(name, raw)
    }

    fn duration_of(&mut self, name: &str, raw: &RawValue) -> Option<(Duration, StdDuration)> {
        if !raw.get().starts_with('{') {
            self.refuse(name, "must be an object with `value` and `unit`");
            return None;
        }
        let at = self.at.clone().key(name);
        self.object_at(at, raw, Fields::duration)
    }

    /// An object within this one, without unknown members; `None` if anything is wrong with it.
    fn object_at<'b, T>(
        &mut self,
        at: Pointer,
        raw: &'b RawValue,
        read: impl FnOnce(&mut Fields<'b>) -> Option<T>,
    ) -> Option<T> {
        let mut inner = Fields::from_text(raw.get(), at);
        let value = read(&mut inner);
        inner.refuse_the_rest();
        let problems = inner.problems.into_errors();
        let value = value.filter(|_| problems.is_none());
        self.problems.extend(problems.into_iter().flatten());
        value
    }

    /// This object itself as a positive `{value, unit}`.
    pub(crate) fn duration(&mut self) -> Option<(Duration, StdDuration)> {
        let value = self.required("value", positive_integer);
        let unit = self.required("unit", unit);
        let duration = Duration::new(value?, unit?);
        match duration.to_std() {
            Ok(std) => Some((duration, std)),
            Err(_) => {
                let message = format!("{duration} is too long");
                self.problem(self.at.clone().key("value"), message);
                None
            }
        }
    }

    /// Notes a problem with a member.
    pub(crate) fn refuse(&mut self, name: &str, why: impl fmt::Display) {
        self.problem(self.at.clone().key(name), format_args!("`{name}` {why}"));
    }

    /// All problems, including members that are unknown.
    pub(crate) fn finish(mut self) -> Result<(), Errors> {
        self.refuse_the_rest();
        match self.problems.into_errors() {
            Some(problems) => Err(problems),
            None => Ok(()),
        }
    }

    /// As [`finish`](Self::finish), with what was read, which is `Some` if there was no problem.
    pub(crate) fn finish_with<T>(self, read: Option<T>) -> Result<T, Errors> {
        self.finish()?;
        read.ok_or_else(|| internal_error().into())
    }

    /// As [`finish`](Self::finish), for an object that may have unknown members.
    pub(crate) fn finish_open(mut self) -> Result<(), Errors> {
        self.members.clear();
        self.beyond = 0;
        self.finish()
    }

    fn refuse_the_rest(&mut self) {
        let mut rest = std::mem::take(&mut self.members);
        rest.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (name, _) in rest {
            let at = self.at.key_within_limit(&name);
            let at = at.unwrap_or_else(|| self.at.clone());
            self.problem(at, format_args!("`{}` is not known here", excerpt(&name)));
        }
        self.problems
            .note_unlisted(std::mem::take(&mut self.beyond));
    }

    fn problem(&mut self, at: Pointer, message: impl fmt::Display) {
        self.problems
            .note(|| ErrorObject::new(ErrorCode::InvalidArguments, short_message(message)).at(at));
    }
}

/// Visits the members of a JSON object one by one.
fn each_member<'a>(
    text: &'a str,
    visit: impl FnMut(Cow<'a, str>, &'a RawValue),
) -> Result<(), serde_json::Error> {
    struct EachMember<F>(F);

    impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Visitor<'de> for EachMember<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
            while let Some((Text(name), value)) = object.next_entry::<Text<'de>, &RawValue>()? {
                (self.0)(name, value);
            }
            Ok(())
        }
    }

    serde_json::Deserializer::from_str(text).deserialize_map(EachMember(visit))
}

pub(crate) fn text(value: &Value) -> Result<String, Expected> {
    let text = value.as_str().ok_or("must be a string")?;
    Ok(text.to_owned())
}

/// A string that a type can parse.
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

/// An integer within a range. `3.0` is refused, as it is in durations.
pub(crate) fn from_to(min: u32, max: u32) -> impl Fn(&Value) -> Result<u32, Expected> {
    move |value| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| format!("must be an integer from {min} to {max}, without a fraction"))
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
