//! Times as they stand on the wire.

use chrono::{DateTime, SecondsFormat, Utc};
use forrst_lock::Timestamp;

/// UTC, RFC 3339, with milliseconds and `Z`.
pub(crate) fn timestamp(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let at = DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::<Utc>::MAX_UTC);
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The same of this moment.
pub(crate) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}
