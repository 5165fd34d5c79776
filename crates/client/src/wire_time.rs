//! Timestamps as answers have them, for serde's `deserialize_with`.

use std::time::SystemTime;

use serde::de::{Deserialize, Deserializer, Error as _};

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_rfc3339(&text).map_err(D::Error::custom)
}
