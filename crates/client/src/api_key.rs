//! The API key that a client authenticates with.

use std::fmt;

use hyper::header::HeaderValue;

use crate::Error;

/// An API key, which neither `Debug` nor a log of headers shows.
#[derive(Clone)]
pub(crate) struct ApiKey(String);

impl ApiKey {
    pub(crate) fn new(key: String) -> Self {
        Self(key)
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> Result<HeaderValue, Error> {
        let is_token = !self.0.is_empty() && self.0.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::from_str(&format!("Bearer {}", self.0));
        let mut value = value
            .ok()
            .filter(|_| is_token)
            .ok_or_else(|| Error::Configuration(INVALID.into()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

const INVALID: &str = "an API key must be visible ASCII characters without spaces";

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_sent_and_never_shown() {
        let key = ApiKey::new("s3cret".to_owned());
        let header = key.header().unwrap();
        assert_eq!(header.as_bytes(), b"Bearer s3cret");
        assert!(!format!("{key:?} {header:?}").contains("s3cret"));
    }

    #[test]
    fn an_invalid_key_is_refused_and_not_repeated_in_the_error() {
        for key in ["", "two words", "line\nbreak", "tüte"] {
            let error = ApiKey::new(key.to_owned()).header().unwrap_err();
            assert!(matches!(error, Error::Configuration(_)), "{key}");
            assert!(key.is_empty() || !error.to_string().contains(key));
        }
    }
}
