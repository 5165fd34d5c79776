//! Parses a pattern from JSON, so that a mistake in a vector is found before anything is sent.

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::{JsonType, Pattern, PatternError};
use crate::template::Template;

pub(super) fn pattern(value: &Value) -> Result<Pattern, PatternError> {
    match value {
        Value::String(text) => string_pattern(text),
        Value::Array(elements) => Ok(Pattern::Array(list(elements)?)),
        Value::Object(members) => object_pattern(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(Pattern::Literal(value.clone())),
    }
}

fn string_pattern(text: &str) -> Result<Pattern, PatternError> {
    if let Some(literal) = text.strip_prefix("$$") {
        return Ok(Pattern::Text(Template::parse(&format!("${literal}"))?));
    }
    if !text.starts_with('$') || text.starts_with("${") {
        return Ok(Pattern::Text(Template::parse(text)?));
    }
    Ok(match text {
        "$any" => Pattern::Any,
        "$absent" => Pattern::Absent,
        "$string" => Pattern::Type(JsonType::String),
        "$integer" => Pattern::Type(JsonType::Integer),
        "$number" => Pattern::Type(JsonType::Number),
        "$boolean" => Pattern::Type(JsonType::Boolean),
        "$object" => Pattern::Type(JsonType::Object),
        "$array" => Pattern::Type(JsonType::Array),
        "$uuid" => Pattern::Uuid,
        "$timestamp" => Pattern::Timestamp,
        "$fence" => Pattern::Fence,
        _ => match text.split_once(':') {
            Some(("$regex", regex)) => Pattern::Regex(Regex::new(regex)?),
            Some(("$greater", other)) => Pattern::Greater(Template::parse(other)?),
            Some(("$less", other)) => Pattern::Less(Template::parse(other)?),
            _ => return Err(PatternError::UnknownMatcher(text.to_owned())),
        },
    })
}

fn object_pattern(members: &Map<String, Value>) -> Result<Pattern, PatternError> {
    let mut entries = members.iter();
    let (Some((name, operand)), None) = (entries.next(), entries.next()) else {
        return Pattern::object(members, true);
    };
    Ok(match name.as_str() {
        "$exact" => match operand {
            Value::Object(members) => Pattern::object(members, false)?,
            _ => return Err(wrong("$exact", "an object")),
        },
        "$unordered" => Pattern::Unordered(operands("$unordered", operand)?),
        "$contains" => Pattern::Contains(operands("$contains", operand)?),
        "$each" => Pattern::Each(Box::new(pattern(operand)?)),
        "$not" => Pattern::Not(Box::new(pattern(operand)?)),
        "$one_of" => Pattern::OneOf(operands("$one_of", operand)?),
        "$all_of" => Pattern::AllOf(operands("$all_of", operand)?),
        "$range" => range(operand)?,
        "$after" => after(operand)?,
        name if name.starts_with('$') => {
            return Err(PatternError::UnknownMatcher(name.to_owned()));
        }
        _ => Pattern::object(members, true)?,
    })
}

fn list(elements: &[Value]) -> Result<Vec<Pattern>, PatternError> {
    elements.iter().map(pattern).collect()
}

fn operands(matcher: &'static str, operand: &Value) -> Result<Vec<Pattern>, PatternError> {
    match operand {
        Value::Array(elements) => list(elements),
        _ => Err(wrong(matcher, "an array of patterns")),
    }
}

fn range(operand: &Value) -> Result<Pattern, PatternError> {
    let wrong = || wrong("$range", "two numbers, the smaller one first");
    let [low, high] = operand.as_array().map(Vec::as_slice).ok_or_else(wrong)? else {
        return Err(wrong());
    };
    match (low.as_f64(), high.as_f64()) {
        (Some(low), Some(high)) if low <= high => Ok(Pattern::Range(low, high)),
        _ => Err(wrong()),
    }
}

fn after(operand: &Value) -> Result<Pattern, PatternError> {
    let wrong = || {
        wrong(
            "$after",
            "an earlier timestamp and two numbers of milliseconds",
        )
    };
    let [earlier, low, high] = operand.as_array().map(Vec::as_slice).ok_or_else(wrong)? else {
        return Err(wrong());
    };
    match (earlier.as_str(), low.as_i64(), high.as_i64()) {
        (Some(earlier), Some(at_least_ms), Some(at_most_ms)) => Ok(Pattern::After {
            earlier: Template::parse(earlier)?,
            at_least_ms,
            at_most_ms,
        }),
        _ => Err(wrong()),
    }
}

fn wrong(matcher: &'static str, takes: &'static str) -> PatternError {
    PatternError::WrongOperand { matcher, takes }
}
