//! Why a request was not accepted.

use crate::{Errors, RequestId, Response};

/// A request that was not accepted, and everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", Self::summary(.errors))]
pub struct Rejection {
    id: Option<RequestId>,
    errors: Errors,
}

impl Rejection {
    pub(crate) fn new(id: Option<RequestId>, errors: impl Into<Errors>) -> Self {
        Self {
            id,
            errors: errors.into(),
        }
    }

    /// The id of the request, where it could be read.
    pub fn id(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// What is wrong.
    pub fn errors(&self) -> &Errors {
        &self.errors
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
