//! Reads a function's arguments into its type, and says all that is wrong with them.

use std::sync::OnceLock;

use forrst_protocol::{ErrorCode, ErrorObject, Errors, Pointer, RawObject};
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::arguments_pointer;

/// A caller who got everything wrong need not hear of all of it.
const MAX_PROBLEMS: usize = 64;

/// Serde decides whether arguments are good, and stops at the first problem. The schema knows the others.
pub(crate) struct Explain {
    schema: Schema,
    validator: OnceLock<Option<Validator>>,
}

impl Explain {
    pub(crate) fn new(schema: Schema) -> Self {
        Self {
            schema,
            validator: OnceLock::new(),
        }
    }

    fn problems(&self, raw: &RawObject<'_>) -> Vec<ErrorObject> {
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
    explain: &Explain,
) -> Result<T, Errors> {
    read_json(raw, arguments_pointer()).map_err(|first| {
        let problems = explain.problems(raw);
        Errors::try_from(problems).unwrap_or_else(|_| first.into())
    })
}

/// Reads an object that stands at `at` in the request; the error names the first member that does not fit.
pub(crate) fn read_json<T: DeserializeOwned>(
    raw: &RawObject<'_>,
    at: Pointer,
) -> Result<T, ErrorObject> {
    let mut json = serde_json::Deserializer::from_str(raw.get());
    serde_path_to_error::deserialize(&mut json).map_err(|error| first_problem(&error, at))
}

/// One problem that the schema sees, or several when it is about several members.
fn explain(error: &jsonschema::ValidationError<'_>) -> Vec<ErrorObject> {
    let at = match Pointer::parse(error.instance_path().as_str()) {
        Ok(relative) => below(arguments_pointer(), &relative),
        Err(_) => arguments_pointer(),
    };
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            vec![problem(at.key(name), format!("`{name}` is required"))]
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => unexpected
            .iter()
            .map(|name| problem(at.clone().key(name), format!("`{name}` is not known here")))
            .collect(),
        _ => vec![problem(at, error.to_string())],
    }
}

/// What serde stumbled over.
fn first_problem(
    error: &serde_path_to_error::Error<serde_json::Error>,
    at: Pointer,
) -> ErrorObject {
    use serde_path_to_error::Segment;
    let at = error.path().iter().fold(at, |at, segment| match segment {
        Segment::Seq { index } => at.index(*index),
        Segment::Map { key } => at.key(key),
        Segment::Enum { variant } => at.key(variant),
        Segment::Unknown => at,
    });
    // The position of serde_json counts inside the object, which nobody sees alone.
    let message = error.inner().to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    problem(at, message.to_owned())
}

fn below(start: Pointer, relative: &Pointer) -> Pointer {
    let joined = format!("{start}{relative}");
    Pointer::parse(&joined).unwrap_or(start)
}

fn problem(at: Pointer, message: String) -> ErrorObject {
    ErrorObject::new(ErrorCode::InvalidArguments, message).at(at)
}
