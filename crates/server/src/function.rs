//! [`Function`]: what a service registers, an async function with a name, a version and typed arguments. Calling it has two
//! phases, so that arguments are checked before a lock is taken: `prepare` reads them and returns a call that is ready to run.

mod arguments;

use std::fmt;
use std::pin::Pin;

use forrst_protocol::{ErrorCode, Errors, RawObject};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

pub(crate) use self::arguments::{read_json, read_json_text};
use crate::context::ServedCall;
use crate::error::internal_error;
use crate::{Context, FunctionError};

/// A function to register with [`ServerBuilder::register`](crate::ServerBuilder::register).
///
/// Arguments and results are any types that serde can read and write. Their schemas, which `describe` shows to callers
/// and which explain invalid arguments, come from `schemars`.
pub struct Function {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) summary: Option<String>,
    pub(crate) errors: Vec<(String, String)>,
    pub(crate) extensions: Option<Vec<String>>,
    pub(crate) arguments: Schema,
    pub(crate) result: Schema,
    pub(crate) prepare: Prepare,
}

/// Checks the arguments, and returns the call that is ready to run.
pub(crate) type Prepare = Box<dyn Fn(&RawObject<'_>) -> Result<PreparedCall, Errors> + Send + Sync>;
pub(crate) type PreparedCall = Box<dyn FnOnce(ServedCall) -> RunningCall + Send>;
pub(crate) type RunningCall = Pin<Box<dyn Future<Output = CallResult> + Send>>;
pub(crate) type CallResult = Result<Box<RawValue>, Errors>;

impl Function {
    /// A function that runs `handler`, an `async fn(Context, Arguments) -> Result<Output, FunctionError>`.
    pub fn new<A, R, F, Fut>(
        name: impl Into<String>,
        version: impl Into<String>,
        handler: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize + JsonSchema + 'static,
        F: Fn(Context, A) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, FunctionError>> + Send + 'static,
    {
        let arguments = schema_of::<A>();
        let explainer = arguments::Explainer::new(arguments.clone());
        let prepare: Prepare = Box::new(move |raw| {
            let arguments: A = arguments::read(raw, &explainer)?;
            let handler = handler.clone();
            let call: PreparedCall = Box::new(move |served| {
                Box::pin(async move {
                    let output = handler(served.context, arguments).await?;
                    to_raw_value(&output).map_err(|error| {
                        tracing::error!(%error, "the result of a function cannot be serialised as JSON");
                        internal_error().into()
                    })
                })
            });
            Ok(call)
        });
        Self {
            name: name.into(),
            version: version.into(),
            summary: None,
            errors: Vec::new(),
            extensions: None,
            arguments,
            result: schema_of::<R>(),
            prepare,
        }
    }

    /// One line about what the function does, for `describe`.
    #[must_use]
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = Some(summary.into());
        self
    }

    /// Declares an error that the function can return, for `describe`.
    #[must_use]
    pub fn error(mut self, code: impl Into<String>, message: impl Into<String>) -> Self {
        self.errors.push((code.into(), message.into()));
        self
    }

    /// Accepts only these extensions, by either of their names; by default, all.
    ///
    /// A request with another one gets `EXTENSION_NOT_APPLICABLE`.
    #[must_use]
    pub fn extensions<'a>(mut self, urns: impl IntoIterator<Item = &'a str>) -> Self {
        self.extensions = Some(urns.into_iter().map(str::to_owned).collect());
        self
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} {})", self.name, self.version)
    }
}

fn schema_of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>()
}

/// The code of an error that a function declares; `None` if it is invalid.
pub(crate) fn error_code(code: &str) -> Option<ErrorCode> {
    code.parse().ok()
}
