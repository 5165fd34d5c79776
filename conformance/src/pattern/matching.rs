//! Compares a value with a pattern. All differences are collected, each with its JSON pointer, rather than the first only.

use std::fmt;

use serde_json::{Map, Value};

use super::{JsonType, Pattern};
use crate::mismatch::{Mismatch, shown};
use crate::template::{Template, TemplateError, Variables};
use crate::time;

pub(super) fn mismatches(
    pattern: &Pattern,
    found: Option<&Value>,
    variables: &Variables,
) -> Vec<Mismatch> {
    let mut matching = Matching {
        variables,
        at: String::new(),
        mismatches: Vec::new(),
    };
    matching.compare(pattern, found);
    matching.mismatches
}

struct Matching<'a> {
    variables: &'a Variables,
    at: String,
    mismatches: Vec<Mismatch>,
}

impl Matching<'_> {
    fn compare(&mut self, pattern: &Pattern, found: Option<&Value>) {
        match (pattern, found) {
            (Pattern::Absent, None) | (Pattern::Any, Some(_)) => {}
            (Pattern::Not(inner), found) => {
                if self.matches(inner, found) {
                    self.note(pattern, found);
                }
            }
            (Pattern::OneOf(choices), found) => {
                if !choices.iter().any(|choice| self.matches(choice, found)) {
                    self.note(pattern, found);
                }
            }
            (Pattern::AllOf(all), found) => {
                for one in all {
                    self.compare(one, found);
                }
            }
            (_, None) | (Pattern::Absent, Some(_)) => self.note(pattern, found),
            (
                Pattern::Object {
                    members,
                    others_allowed,
                },
                Some(Value::Object(found)),
            ) => self.members(members, *others_allowed, found),
            (Pattern::Array(elements), Some(Value::Array(found))) => self.elements(elements, found),
            (Pattern::Each(inner), Some(Value::Array(found))) => {
                for (index, element) in found.iter().enumerate() {
                    self.inside(&index.to_string(), inner, Some(element));
                }
            }
            (Pattern::Contains(wanted), Some(Value::Array(found))) => self.contains(wanted, found),
            (Pattern::Unordered(wanted), Some(Value::Array(elements))) => {
                if wanted.len() != elements.len() || !self.assignable(wanted, elements) {
                    self.note(pattern, found);
                }
            }
            (_, Some(value)) => match self.matches_whole(pattern, value) {
                Ok(true) => {}
                Ok(false) => self.note(pattern, found),
                Err(error) => self.note_text(&error.to_string(), found),
            },
        }
    }

    /// Patterns for a value as a whole, not for its elements or members.
    fn matches_whole(&self, pattern: &Pattern, value: &Value) -> Result<bool, TemplateError> {
        let text = value.as_str();
        Ok(match pattern {
            Pattern::Literal(literal) => is_equal(literal, value),
            Pattern::Text(template) => is_equal(&template.fill(self.variables)?, value),
            Pattern::Type(json_type) => json_type.matches(value),
            Pattern::Uuid => text.is_some_and(is_uuid_v4),
            Pattern::Timestamp => text.is_some_and(|text| time::parse(text).is_some()),
            Pattern::Fence => text.is_some_and(is_fence),
            Pattern::Regex(regex) => text.is_some_and(|text| regex.is_match(text)),
            Pattern::Greater(other) => {
                let other = other.fill_text(self.variables)?;
                text.is_some_and(|text| text > other.as_str())
            }
            Pattern::Less(other) => {
                let other = other.fill_text(self.variables)?;
                text.is_some_and(|text| text < other.as_str())
            }
            Pattern::Range(low, high) => value
                .as_f64()
                .is_some_and(|number| (*low..=*high).contains(&number)),
            Pattern::After {
                earlier,
                at_least_ms,
                at_most_ms,
            } => self
                .distance(earlier, text)?
                .is_some_and(|ms| (*at_least_ms..=*at_most_ms).contains(&ms)),
            // The patterns for elements and members are handled in `compare`; here the value has the wrong type for them.
            _ => false,
        })
    }

    fn distance(
        &self,
        earlier: &Template,
        text: Option<&str>,
    ) -> Result<Option<i64>, TemplateError> {
        let earlier = earlier.fill_text(self.variables)?;
        Ok(time::parse(&earlier)
            .zip(text.and_then(time::parse))
            .map(|(earlier, later)| time::between(earlier, later)))
    }

    fn members(
        &mut self,
        wanted: &[(String, Pattern)],
        others_allowed: bool,
        found: &Map<String, Value>,
    ) {
        for (name, pattern) in wanted {
            self.inside(name, pattern, found.get(name));
        }
        if others_allowed {
            return;
        }
        for (name, value) in found {
            if !wanted.iter().any(|(expected, _)| expected == name) {
                self.inside(name, &Pattern::Absent, Some(value));
            }
        }
    }

    fn elements(&mut self, wanted: &[Pattern], found: &[Value]) {
        if wanted.len() != found.len() {
            let expected = format!("{} elements", wanted.len());
            let found = format!(
                "{} elements: {}",
                found.len(),
                shown(Some(&Value::from(found)))
            );
            self.mismatches
                .push(Mismatch::new(&self.at, expected, found));
            return;
        }
        for (index, (pattern, value)) in wanted.iter().zip(found).enumerate() {
            self.inside(&index.to_string(), pattern, Some(value));
        }
    }

    fn contains(&mut self, wanted: &[Pattern], found: &[Value]) {
        for pattern in wanted {
            if !found.iter().any(|value| self.matches(pattern, Some(value))) {
                let all = Value::from(found);
                self.note_text(&format!("an element {pattern}"), Some(&all));
            }
        }
    }

    /// Whether every pattern can be paired with a different element.
    fn assignable(&self, wanted: &[Pattern], found: &[Value]) -> bool {
        let Some((first, others)) = wanted.split_first() else {
            return true;
        };
        (0..found.len()).any(|index| {
            self.matches(first, found.get(index)) && {
                let mut left = found.to_vec();
                left.remove(index);
                self.assignable(others, &left)
            }
        })
    }

    fn matches(&self, pattern: &Pattern, found: Option<&Value>) -> bool {
        mismatches(pattern, found, self.variables).is_empty()
    }

    fn inside(&mut self, name: &str, pattern: &Pattern, found: Option<&Value>) {
        let outside = self.at.len();
        self.at.push('/');
        self.at
            .push_str(&name.replace('~', "~0").replace('/', "~1"));
        self.compare(pattern, found);
        self.at.truncate(outside);
    }

    fn note(&mut self, pattern: &Pattern, found: Option<&Value>) {
        let expected = match pattern {
            // Variables are filled in, so that a reader can compare the two values.
            Pattern::Text(template) => template
                .fill(self.variables)
                .map_or_else(|error| error.to_string(), |value| value.to_string()),
            _ => pattern.to_string(),
        };
        self.note_text(&expected, found);
    }

    fn note_text(&mut self, expected: &str, found: Option<&Value>) {
        self.mismatches
            .push(Mismatch::new(&self.at, expected, shown(found)));
    }
}

/// Numbers are equal by value, however they are written.
fn is_equal(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Number(expected), Value::Number(found)) => {
            expected == found
                || (expected.is_f64() || found.is_f64()) && expected.as_f64() == found.as_f64()
        }
        _ => expected == found,
    }
}

fn is_fence(text: &str) -> bool {
    text.len() == 15 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_uuid_v4(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => byte == b'4',
            19 => matches!(byte, b'8' | b'9' | b'a' | b'b'),
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

impl JsonType {
    fn matches(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::Object => value.is_object(),
            Self::Array => value.is_array(),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("anything"),
            Self::Absent => f.write_str("nothing"),
            Self::Type(json_type) => write!(f, "any {json_type:?}"),
            Self::Uuid => f.write_str("a version 4 UUID"),
            Self::Timestamp => f.write_str("a UTC timestamp with milliseconds and Z"),
            Self::Fence => f.write_str("a fence of 15 digits"),
            Self::Regex(regex) => write!(f, "a string matching /{regex}/"),
            Self::Greater(other) => write!(f, "a string after {other}"),
            Self::Less(other) => write!(f, "a string before {other}"),
            Self::Text(template) => write!(f, "{template}"),
            Self::Literal(value) => write!(f, "{value}"),
            Self::Range(low, high) => write!(f, "a number from {low} to {high}"),
            Self::After {
                earlier,
                at_least_ms,
                at_most_ms,
            } => write!(
                f,
                "a timestamp {at_least_ms} to {at_most_ms} ms after {earlier}"
            ),
            Self::Object {
                members,
                others_allowed,
            } => {
                f.write_str("{")?;
                for (name, member) in members {
                    write!(f, "{name}: {member}, ")?;
                }
                f.write_str(if *others_allowed { "…}" } else { "}" })
            }
            Self::Array(elements) => write!(f, "[{}]", Listed(elements)),
            Self::Unordered(elements) => write!(f, "in any order [{}]", Listed(elements)),
            Self::Contains(elements) => write!(f, "an array with {}", Listed(elements)),
            Self::Each(element) => write!(f, "an array of {element}"),
            Self::Not(inner) => write!(f, "not {inner}"),
            Self::OneOf(choices) => write!(f, "one of [{}]", Listed(choices)),
            Self::AllOf(all) => write!(f, "all of [{}]", Listed(all)),
        }
    }
}

struct Listed<'a>(&'a [Pattern]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{pattern}")?;
        }
        Ok(())
    }
}
