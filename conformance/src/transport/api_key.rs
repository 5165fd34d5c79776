//! The API key of the caller that plays the vectors. It is never printed.

use std::fmt;

use hyper::header::{HeaderValue, InvalidHeaderValue};

/// An API key, which `Debug` does not print.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// The value of the `Authorization` header.
    pub(super) fn header(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl From<String> for ApiKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}
