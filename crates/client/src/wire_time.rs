//! Timestamps as they stand on the wire, for serde's `with`.

use std::time::SystemTime;

use serde::de::{Deserialize, Deserializer, Error as _};

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_rfc3339(&text).map_err(D::Error::custom)
}
