//! Reads a function's arguments into its type. Serde decides whether they are valid; if not, the schema of the type lists
//! everything that is wrong.

use std::fmt;
use std::sync::OnceLock;

use forrst_protocol::{
    ErrorCode, ErrorObject, Errors, MAX_PROBLEMS, Pointer, RawObject, excerpt, short_message,
};
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::arguments_pointer;

/// Larger arguments get only the first problem: the validator needs them as a [`Value`], which takes 30 times their size.
const MAX_EXPLAINED: usize = 64 * 1024;

/// Finds all problems of arguments by their schema; serde stops at the first.
pub(crate) struct Explainer {
    schema: Schema,
    validator: OnceLock<Option<Validator>>,
}

impl Explainer {
    pub(crate) fn new(schema: Schema) -> Self {
        Self {
            schema,
            validator: OnceLock::new(),
        }
    }

    fn problems(&self, raw: &RawObject<'_>) -> Vec<ErrorObject> {
        if raw.get().len() > MAX_EXPLAINED {
            return Vec::new();
        }
        let compile = || jsonschema::validator_for(self.schema.as_value()).ok();
        let (Some(validator), Ok(arguments)) = (
            self.validator.get_or_init(compile),
            raw.deserialize::<Value>(),
        ) else {
            return Vec::new();
        };
        let errors = validator.iter_errors(&arguments);
        errors
            .flat_map(|error| explain(&error))
            .take(MAX_PROBLEMS)
            .collect()
    }
}

pub(crate) fn read<T: DeserializeOwned>(
    raw: &RawObject<'_>,
    explainer: &Explainer,
) -> Result<T, Errors> {
    // Tracking the path costs more than reading invalid arguments a second time to find it.
    serde_json::from_str(raw.get())
        .or_else(|_| read_json(raw, arguments_pointer()))
        .map_err(|first| {
            let problems = explainer.problems(raw);
            Errors::try_from(problems).unwrap_or_else(|_| first.into())
        })
}

/// Reads an object at the pointer `at` of the request; the error points at the first member that does not fit.
pub(crate) fn read_json<T: DeserializeOwned>(
    raw: &RawObject<'_>,
    at: Pointer,
) -> Result<T, ErrorObject> {
    read_json_text(raw.get(), at)
}

/// Reads any JSON text at the pointer `at` of the request.
pub(crate) fn read_json_text<T: DeserializeOwned>(
    text: &str,
    at: Pointer,
) -> Result<T, ErrorObject> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| first_problem(&error, at))
}

/// The errors for one problem that the validator found: one for each member that it is about.
fn explain(error: &jsonschema::ValidationError<'_>) -> Vec<ErrorObject> {
    let at = join(arguments_pointer(), error.instance_path().as_str());
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            vec![problem(at.key(name), format_args!("`{name}` is required"))]
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => unexpected
            .iter()
            .take(MAX_PROBLEMS)
            .map(|name| {
                let at = at.key_within_limit(name).unwrap_or_else(|| at.clone());
                problem(at, format_args!("`{}` is not known here", excerpt(name)))
            })
            .collect(),
        _ => vec![problem(at, error)],
    }
}

/// The problem at which serde stopped.
fn first_problem(
    error: &serde_path_to_error::Error<serde_json::Error>,
    at: Pointer,
) -> ErrorObject {
    use serde_path_to_error::Segment;
    let longer = error
        .path()
        .iter()
        .try_fold(at, |at, segment| match segment {
            Segment::Seq { index } => Ok(at.index(*index)),
            Segment::Map { key: name } | Segment::Enum { variant: name } => {
                at.key_within_limit(name).ok_or(at)
            }
            Segment::Unknown => Ok(at),
        });
    let (Ok(at) | Err(at)) = longer;
    // The position counts within the arguments, not within the body, so it is cut off. serde_json has no message without it.
    let message = error.inner().to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    problem(at, &message[..end])
}

/// Appends the pointer that the validator gives, as far as the result stays within the limit on pointers.
fn join(start: Pointer, relative: &str) -> Pointer {
    let mut names = relative.split('/').skip(1);
    let longer = names.try_fold(start, |at, name| {
        let name = name.replace("~1", "/").replace("~0", "~");
        at.key_within_limit(&name).ok_or(at)
    });
    let (Ok(at) | Err(at)) = longer;
    at
}

fn problem(at: Pointer, message: impl fmt::Display) -> ErrorObject {
    ErrorObject::new(ErrorCode::InvalidArguments, short_message(message)).at(at)
}
