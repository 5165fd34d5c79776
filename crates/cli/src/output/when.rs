//! Times for people, relative and absolute, by the clock of the server.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

/// A time by the server's clock, which may differ from that of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerTime(DateTime<Utc>);

impl ServerTime {
    pub(crate) fn before(self, time: Duration) -> Self {
        Self(self.0 - time)
    }

    /// How long it is before the other.
    pub(crate) fn until(self, later: Self) -> Duration {
        (later.0 - self.0).to_std().unwrap_or_default()
    }

    /// With milliseconds, as in answers.
    pub(crate) fn to_rfc3339(self) -> String {
        self.0.to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    fn shown(self) -> String {
        self.0.to_rfc3339_opts(SecondsFormat::Secs, true)
    }
}

impl From<std::time::SystemTime> for ServerTime {
    fn from(time: std::time::SystemTime) -> Self {
        Self(time.into())
    }
}

/// `24s ago (2026-11-16T21:30:04Z)`.
pub(crate) fn ago(moment: ServerTime, now: ServerTime) -> String {
    format!("{} ago ({})", span(moment.until(now)), moment.shown())
}

/// `in 24s (2026-11-16T21:30:04Z)`.
pub(crate) fn in_time(moment: ServerTime, now: ServerTime) -> String {
    format!("in {} ({})", span(now.until(moment)), moment.shown())
}

/// In at most two units: next to days, seconds do not matter.
fn span(time: Duration) -> String {
    let whole = if time < Duration::from_secs(1) {
        Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or_default())
    } else {
        Duration::from_secs(time.as_secs())
    };
    let text = humantime::format_duration(whole).to_string();
    let units: Vec<&str> = text.split(' ').take(2).collect();
    units.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_and_absolute() {
        let moment = ServerTime("2026-11-16T21:30:04.500Z".parse().unwrap());
        let now = moment.before(Duration::from_millis(24_900));
        assert_eq!(in_time(moment, now), "in 24s (2026-11-16T21:30:04Z)");
        assert_eq!(ago(now, moment), "24s ago (2026-11-16T21:29:39Z)");
        assert_eq!(ago(moment, now), "0s ago (2026-11-16T21:30:04Z)");
        assert_eq!(moment.to_rfc3339(), "2026-11-16T21:30:04.500Z");
    }

    #[test]
    fn spans_have_at_most_two_units() {
        assert_eq!(span(Duration::from_millis(120)), "120ms");
        assert_eq!(span(Duration::from_secs(93_784)), "1day 2h");
    }
}
