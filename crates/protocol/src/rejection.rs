//! A request that could not be read: all of its problems, and its id where that could be read, so that the client gets one answer
//! with everything that it has to fix.

use crate::{Errors, RequestId, Response, Urn};

/// A request that was not accepted, and everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", Self::summary(.errors))]
pub struct Rejection {
    id: Option<RequestId>,
    errors: Errors,
    extensions: Vec<Urn>,
}

impl Rejection {
    /// The detail of an error about nesting.
    pub(crate) const NESTING: &str = "max_nesting";

    const MAX_EXTENSIONS: usize = 16;

    pub(crate) fn new(id: Option<RequestId>, errors: impl Into<Errors>) -> Self {
        Self {
            id,
            errors: errors.into(),
            extensions: Vec::new(),
        }
    }

    /// Keeps the first of the extensions that the request asked for.
    pub(crate) fn asking_for(mut self, extensions: impl IntoIterator<Item = Urn>) -> Self {
        self.extensions = extensions.into_iter().take(Self::MAX_EXTENSIONS).collect();
        self
    }

    /// The extensions that the request asked for, as far as they could be read; 16 at most.
    pub fn extensions(&self) -> &[Urn] {
        &self.extensions
    }

    /// The id of the request, where it could be read.
    pub fn id(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// What is wrong.
    pub fn errors(&self) -> &Errors {
        &self.errors
    }

    /// Whether objects and arrays are nested deeper than is allowed.
    pub fn is_nested_too_deep(&self) -> bool {
        let mut details = self
            .errors
            .iter()
            .filter_map(|error| error.details.as_ref());
        details.any(|details| details.contains_key(Self::NESTING))
    }

    fn summary(errors: &Errors) -> String {
        let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
        messages.join("; ")
    }
}

impl From<Rejection> for Response {
    fn from(rejection: Rejection) -> Self {
        Self::failure(rejection.id, rejection.errors)
    }
}
