//! The registry of functions, by name and version: those of the application and those of the system, in one form. A call runs
//! the version that it names, or else the highest stable one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forrst_protocol::{
    Call, ErrorCode, ErrorObject, FunctionName, InvalidName, InvalidVersion, Pointer, Version,
};
use serde_json::Value;

use crate::access::{Needs, Role};
use crate::function::{Function, Prepare};
use crate::limits::ResultSize;
use crate::metrics::FunctionMetrics;

/// Why a function cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The name is invalid.
    #[error("cannot register `{name}`: {source}")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong with it.
        source: InvalidName,
    },
    /// The version is invalid.
    #[error("cannot register `{name}` in version `{version}`: {source}")]
    Version {
        /// The function.
        name: String,
        /// What was given.
        version: String,
        /// What is wrong with it.
        source: InvalidVersion,
    },
    /// The name is reserved for the protocol.
    #[error(
        "cannot register `{0}`: names that start with `forrst.` or `urn:cline:forrst:` are reserved"
    )]
    Reserved(FunctionName),
    /// This version of the function is registered already.
    #[error("`{0}` {1} is registered twice")]
    Twice(FunctionName, Version),
    /// It declares an error whose code is invalid.
    #[error("`{name}` declares the error `{code}`, which is not SCREAMING_SNAKE_CASE")]
    ErrorCode {
        /// The function.
        name: FunctionName,
        /// What was given.
        code: String,
    },
    /// It accepts an extension that the server does not have.
    #[error("`{name}` accepts the extension `{urn}`, which this server does not have")]
    Extension {
        /// The function.
        name: FunctionName,
        /// What was given.
        urn: String,
    },
}

/// A function that is registered.
pub(crate) struct Registered {
    pub(crate) name: FunctionName,
    pub(crate) version: Version,
    pub(crate) summary: Option<String>,
    pub(crate) errors: Vec<(ErrorCode, String)>,
    /// The extensions that it accepts, by their index in the pipeline; all when `None`.
    pub(crate) extensions: Option<Vec<usize>>,
    pub(crate) arguments: Value,
    pub(crate) result: Value,
    pub(crate) prepare: Prepare,
    pub(crate) result_size: Arc<ResultSize>,
    pub(crate) metrics: FunctionMetrics,
    /// Part of the server: it is dropped when its caller disconnects, and takes no lock of its own.
    pub(crate) is_system: bool,
    /// Who may call it. For functions of the application, the role `call`, and the caller's list of functions.
    pub(crate) needs: Needs,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

impl Registered {
    pub(crate) fn new(
        function: Function,
        find_extension: impl Fn(&str) -> Option<usize>,
    ) -> Result<Self, RegisterError> {
        let name = FunctionName::parse(&function.name).map_err(|source| RegisterError::Name {
            name: function.name.clone(),
            source,
        })?;
        let version =
            Version::parse(&function.version).map_err(|source| RegisterError::Version {
                name: function.name.clone(),
                version: function.version.clone(),
                source,
            })?;
        if name.is_reserved() {
            return Err(RegisterError::Reserved(name));
        }
        let code = |(code, message): (String, String)| match crate::function::error_code(&code) {
            Some(code) => Ok((code, message)),
            None => Err(RegisterError::ErrorCode {
                name: name.clone(),
                code,
            }),
        };
        let errors: Result<_, _> = function.errors.into_iter().map(code).collect();
        let index = |urn: String| match find_extension(&urn) {
            Some(index) => Ok(index),
            None => Err(RegisterError::Extension {
                name: name.clone(),
                urn,
            }),
        };
        let urns = function
            .extensions
            .map(|urns| urns.into_iter().map(index).collect());
        Ok(Self {
            errors: errors?,
            extensions: urns.transpose()?,
            metrics: FunctionMetrics::new(name.as_str()),
            name,
            version,
            summary: function.summary,
            arguments: function.arguments.to_value(),
            result: function.result.to_value(),
            prepare: function.prepare,
            result_size: Arc::default(),
            is_system: false,
            needs: Needs::OneOf(&[Role::Call]),
        })
    }

    pub(crate) fn takes(&self, extension: usize) -> bool {
        let some = self.extensions.as_ref();
        some.is_none_or(|extensions| extensions.contains(&extension))
    }
}

/// All functions by name and version.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    functions: BTreeMap<FunctionName, BTreeMap<Version, Registered>>,
}

impl Registry {
    pub(crate) fn add(&mut self, function: Registered) -> Result<(), RegisterError> {
        let versions = self.functions.entry(function.name.clone()).or_default();
        if versions.contains_key(&function.version) {
            return Err(RegisterError::Twice(function.name, function.version));
        }
        versions.insert(function.version.clone(), function);
        Ok(())
    }

    /// The function and version that a call runs.
    pub(crate) fn find(&self, call: &Call<'_>) -> Result<&Registered, ErrorObject> {
        self.find_version(&call.function, call.version.as_ref())
            .map_err(|error| match error.code {
                ErrorCode::VersionNotFound => error.at(call_member("version")),
                _ => error.at(call_member("function")),
            })
    }

    pub(crate) fn find_version(
        &self,
        name: &FunctionName,
        version: Option<&Version>,
    ) -> Result<&Registered, ErrorObject> {
        let Some(versions) = self.functions.get(name) else {
            let message = format!("There is no function `{name}`");
            return Err(ErrorObject::new(ErrorCode::FunctionNotFound, message)
                .with_detail("function", name.as_str()));
        };
        let found = match version {
            Some(version) => versions.get(version),
            // The highest stable one; a function that has none yet must be called with its version.
            None => versions.values().rfind(|f| f.version.is_stable()),
        };
        found.ok_or_else(|| {
            let requested = version.map(ToString::to_string);
            let message = match &requested {
                Some(version) => format!("`{name}` has no version {version}"),
                None => {
                    format!("`{name}` has no stable version: name one of the available versions")
                }
            };
            let available: Vec<Value> = versions
                .keys()
                .map(|version| version.to_string().into())
                .collect();
            ErrorObject::new(ErrorCode::VersionNotFound, message)
                .with_detail("function", name.as_str())
                .with_detail("requested_version", requested.clone())
                .with_detail("available_versions", available.clone())
                .with_detail("requested", requested)
                .with_detail("available", available)
        })
    }

    /// All versions of a function.
    pub(crate) fn versions(&self, name: &FunctionName) -> impl Iterator<Item = &Registered> {
        self.functions
            .get(name)
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.functions.values().flat_map(BTreeMap::values)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &FunctionName> {
        self.functions.keys()
    }
}

fn call_member(name: &str) -> Pointer {
    Pointer::root().key("call").key(name)
}
