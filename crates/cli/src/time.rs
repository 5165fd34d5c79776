//! Durations on the command line.

use std::time::Duration;

/// A thousand years, which is well within the range of clocks.
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 24 * 60 * 60);

/// Parses a duration such as `30s`, at least 1ms.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let expected = "a duration such as `30s`, `5m` or `1h 30m`";
    match humantime::parse_duration(text) {
        Ok(duration) if duration > LONGEST => Err(too_long()),
        Ok(duration) if duration >= Duration::from_millis(1) => Ok(duration),
        Ok(_) => Err(format!("must be at least 1ms: {expected}")),
        Err(error) => Err(format!("{error}: expected {expected}")),
    }
}

/// The same, but `0` is allowed.
pub(crate) fn parse_or_zero(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => match humantime::parse_duration(text) {
            Ok(duration) if duration > LONGEST => Err(too_long()),
            Ok(duration) => Ok(duration),
            Err(error) => Err(format!(
                "{error}: expected a duration such as `10ms`, `30s` or `0`"
            )),
        },
    }
}

fn too_long() -> String {
    "must be at most 1000 years".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("1h 30m"), Ok(Duration::from_secs(5400)));
        assert!(parse("999y").is_ok());
        for text in ["1001y", "500000000000y"] {
            assert!(
                parse(text).is_err() && parse_or_zero(text).is_err(),
                "{text}"
            );
        }
        for text in ["", "30", "soon", "0s", "1us", "-1s"] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains("30s"), "{refused}");
        }
        assert_eq!(parse_or_zero("0"), Ok(Duration::ZERO));
        assert!(parse_or_zero("5").is_err());
    }
}
