//! Strings with `${…}` in them, filled in when a step runs. They are parsed when the vector is loaded, so that a mistake
//! is found before anything is sent.

use std::collections::HashMap;
use std::fmt;

use serde_json::Value;

use crate::time;

/// Values by name: captured from answers, or set by the runner.
pub(crate) type Variables = HashMap<String, Value>;

/// A string with placeholders.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Variable(String),
    /// A timestamp, moved by a number of milliseconds.
    Moved(String, i64),
    Repeated(String, usize),
}

/// Why a template is invalid or cannot be filled in.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TemplateError {
    /// There is a `${` without its `}`.
    #[error("`${{` is never closed in {0:?}")]
    Unclosed(String),
    /// The content of the braces is not a known placeholder.
    #[error(
        "`${{{0}}}` is not one of `${{name}}`, `${{name+MILLISECONDS}}`, `${{name-MILLISECONDS}}`, `${{repeat:TEXT:TIMES}}`"
    )]
    Unknown(String),
    /// There is no variable of that name.
    #[error("no variable `{0}` has been captured")]
    Unset(String),
    /// Only timestamps can be moved.
    #[error("the variable `{0}` is not a timestamp")]
    NotATimestamp(String),
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (inside, after) = after
                .split_once('}')
                .ok_or_else(|| TemplateError::Unclosed(text.to_owned()))?;
            parts.push(Part::parse(inside)?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        let text = text.to_owned();
        Ok(Self { text, parts })
    }

    /// A template that is a single variable becomes the value of that variable, with its type.
    pub(crate) fn fill(&self, variables: &Variables) -> Result<Value, TemplateError> {
        match self.parts.as_slice() {
            [Part::Variable(name)] => lookup(variables, name).cloned(),
            _ => self.fill_text(variables).map(Value::String),
        }
    }

    pub(crate) fn fill_text(&self, variables: &Variables) -> Result<String, TemplateError> {
        self.parts
            .iter()
            .map(|part| part.fill(variables))
            .collect::<Result<String, TemplateError>>()
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl Part {
    fn parse(inside: &str) -> Result<Self, TemplateError> {
        let unknown = || TemplateError::Unknown(inside.to_owned());
        if let Some(repeat) = inside.strip_prefix("repeat:") {
            let (text, times) = repeat.rsplit_once(':').ok_or_else(unknown)?;
            let times = times.parse().map_err(|_| unknown())?;
            return Ok(Self::Repeated(text.to_owned(), times));
        }
        let name_end = inside
            .find(|next: char| !next.is_ascii_alphanumeric() && next != '_')
            .unwrap_or(inside.len());
        let (name, moved) = inside.split_at(name_end);
        if name.is_empty() {
            return Err(unknown());
        }
        if moved.is_empty() {
            return Ok(Self::Variable(name.to_owned()));
        }
        let by = moved.parse().map_err(|_| unknown())?;
        Ok(Self::Moved(name.to_owned(), by))
    }

    fn fill(&self, variables: &Variables) -> Result<String, TemplateError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Repeated(text, times) => Ok(text.repeat(*times)),
            Self::Variable(name) => Ok(match lookup(variables, name)? {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            }),
            Self::Moved(name, by) => lookup(variables, name)?
                .as_str()
                .and_then(|text| time::moved(text, *by))
                .ok_or_else(|| TemplateError::NotATimestamp(name.clone())),
        }
    }
}

fn lookup<'a>(variables: &'a Variables, name: &str) -> Result<&'a Value, TemplateError> {
    variables
        .get(name)
        .ok_or_else(|| TemplateError::Unset(name.to_owned()))
}

/// Whether every string in a JSON value is a valid template.
pub(crate) fn check(value: &Value) -> Result<(), TemplateError> {
    match value {
        Value::String(text) => Template::parse(text).map(drop),
        Value::Array(elements) => elements.iter().try_for_each(check),
        Value::Object(members) => members.values().try_for_each(check),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// A JSON value with every string in it filled in; member names stay unchanged.
pub(crate) fn fill(value: &Value, variables: &Variables) -> Result<Value, TemplateError> {
    match value {
        Value::String(text) => Template::parse(text)?.fill(variables),
        Value::Array(elements) => elements
            .iter()
            .map(|element| fill(element, variables))
            .collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| Ok((name.clone(), fill(member, variables)?)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(text: &str) -> Result<Value, TemplateError> {
        let variables = Variables::from([
            ("owner".to_owned(), json!("me")),
            ("count".to_owned(), json!(3)),
            ("at".to_owned(), json!("2024-02-29T23:59:59.500Z")),
        ]);
        Template::parse(text)?.fill(&variables)
    }

    #[test]
    fn a_lone_variable_keeps_its_type() {
        assert_eq!(filled("${count}"), Ok(json!(3)));
        assert_eq!(filled("${count}x"), Ok(json!("3x")));
    }

    #[test]
    fn text_around_variables_stays() {
        assert_eq!(filled("a ${owner} b ${owner}"), Ok(json!("a me b me")));
        assert_eq!(filled("no $ {owner} here"), Ok(json!("no $ {owner} here")));
        assert_eq!(filled(""), Ok(json!("")));
    }

    #[test]
    fn repetition_takes_any_text() {
        assert_eq!(filled("<${repeat:ab:3}>"), Ok(json!("<ababab>")));
        assert_eq!(filled("${repeat:a:b:2}"), Ok(json!("a:ba:b")));
        assert_eq!(filled("${repeat:x:0}"), Ok(json!("")));
    }

    #[test]
    fn timestamps_move_by_milliseconds() {
        assert_eq!(filled("${at+500}"), Ok(json!("2024-03-01T00:00:00.000Z")));
        assert_eq!(filled("${at-1500}"), Ok(json!("2024-02-29T23:59:58.000Z")));
        assert_eq!(
            filled("${owner+1}"),
            Err(TemplateError::NotATimestamp("owner".into()))
        );
    }

    #[test]
    fn errors_name_the_placeholder() {
        assert_eq!(
            filled("${missing}"),
            Err(TemplateError::Unset("missing".into()))
        );
        assert_eq!(
            filled("${owner"),
            Err(TemplateError::Unclosed("${owner".into()))
        );
        for unknown in ["", "a b", "at+x", "repeat:x", "repeat:x:-1", "+5"] {
            assert_eq!(
                filled(&format!("${{{unknown}}}")),
                Err(TemplateError::Unknown(unknown.into()))
            );
        }
    }

    #[test]
    fn values_are_filled_at_any_depth() {
        let variables = Variables::from([("key".to_owned(), json!("k"))]);
        let value = json!({"${key}": [{"a": "${key}"}, 1, null, true]});
        assert_eq!(
            fill(&value, &variables),
            Ok(json!({"${key}": [{"a": "k"}, 1, null, true]}))
        );
        assert!(check(&json!([{"a": "${"}])).is_err());
    }
}
