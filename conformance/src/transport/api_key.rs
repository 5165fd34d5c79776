//! Who plays the vectors.

use std::fmt;

use hyper::header::{HeaderValue, InvalidHeaderValue};

/// An API key, which does not show itself.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// As `Authorization` has it.
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
