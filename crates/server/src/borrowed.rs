//! Reads JSON without copying it.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

/// A string, borrowed unless it has escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Reads a member that may be missing; unlike with a plain `Option`, null is a value.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
