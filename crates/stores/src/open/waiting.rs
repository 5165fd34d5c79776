//! Waits for a store that is not up yet: opening it is retried until it succeeds or the wait times out.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{OpenError, url_without_secrets};

/// The pauses between attempts grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often the log says why the store cannot be opened yet.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Repeats `open` while it fails with an error that [is worth waiting](OpenError::is_worth_waiting), for as long as `wait`. The last
/// attempt is made when the wait times out.
pub(super) async fn until_open<S, F>(
    url: &str,
    wait: Duration,
    mut open: impl FnMut() -> F,
) -> Result<S, OpenError>
where
    F: Future<Output = Result<S, OpenError>>,
{
    let since = Instant::now();
    let mut next_report = Duration::ZERO;
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match open().await {
            Err(error) if error.is_worth_waiting() && !wait.is_zero() => error,
            opened_or_failed => return opened_or_failed,
        };
        let waited = since.elapsed();
        let left = wait.saturating_sub(waited);
        if left.is_zero() {
            let error = Box::new(error);
            return Err(OpenError::GaveUp { after: wait, error });
        }
        if waited >= next_report {
            let store = url_without_secrets(url);
            let left = format!("{}s", left.as_secs_f64().ceil());
            tracing::warn!(store, %error, left, "waiting for the store");
            next_report = waited + REPORT_EVERY;
        }
        // All nodes of a fleet may have started at the same time.
        sleep(pause.mul_f64(0.5 + fastrand::f64()).min(left)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fred::error::{Error as FredError, ErrorKind};

    use super::*;
    use crate::RedisError;

    const URL: &str = "redis://127.0.0.1:6379";

    fn unreachable(kind: ErrorKind, details: &'static str) -> OpenError {
        OpenError::Redis(RedisError::Unreachable {
            url: URL.to_owned(),
            error: FredError::new(kind, details),
        })
    }

    fn not_up() -> OpenError {
        let details = "Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }";
        unreachable(ErrorKind::IO, details)
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_comes_up_in_time_is_opened() {
        let attempts = Cell::new(0);
        let opened = until_open(URL, Duration::from_secs(30), async || {
            attempts.set(attempts.get() + 1);
            match attempts.get() {
                ..5 => Err(not_up()),
                count => Ok(count),
            }
        });
        assert_eq!(opened.await.unwrap(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_error_is_kept_when_the_wait_times_out() {
        let since = Instant::now();
        let wait = Duration::from_secs(30);
        let opened = until_open(URL, wait, async || Err::<(), _>(not_up())).await;
        let error = opened.unwrap_err();
        assert_eq!(
            error.to_string(),
            "gave up after 30s: cannot use Redis at redis://127.0.0.1:6379: Connection refused"
        );
        assert!(!error.is_worth_waiting());
        assert!(since.elapsed() >= wait);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_second() {
        let attempts = Cell::new(0);
        let opened = until_open(URL, Duration::from_secs(100), async || {
            attempts.set(attempts.get() + 1);
            Err::<(), _>(not_up())
        });
        opened.await.unwrap_err();
        assert!((67..250).contains(&attempts.get()), "{attempts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_wait_one_attempt_is_made() {
        let since = Instant::now();
        let opened = until_open(URL, Duration::ZERO, async || Err::<(), _>(not_up())).await;
        assert!(opened.unwrap_err().is_worth_waiting());
        assert_eq!(since.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_error_ends_the_wait() {
        let attempts = Cell::new(0);
        let opened = until_open(URL, Duration::MAX, async || {
            attempts.set(attempts.get() + 1);
            Err::<(), _>(match attempts.get() {
                ..3 => not_up(),
                _ => unreachable(ErrorKind::Auth, "WRONGPASS invalid username-password pair"),
            })
        });
        let error = opened.await.unwrap_err().to_string();
        assert!(
            error.contains("WRONGPASS") && !error.contains("gave up"),
            "{error}"
        );
        assert_eq!(attempts.get(), 3);
    }

    #[test]
    fn only_temporary_errors_are_worth_waiting() {
        use ErrorKind::{
            Auth, Canceled, Cluster, Config, IO, Protocol, Sentinel, Timeout, Unknown,
        };
        for (kind, details) in [
            (IO, "failed to lookup address information"),
            (Timeout, "Request timed out."),
            (Canceled, "the connection was closed"),
            (Cluster, "CLUSTERDOWN Hash slot not served"),
            (Sentinel, "Failed to connect to all sentinel nodes."),
            (Sentinel, "LOADING Redis is loading the dataset in memory"),
            (Unknown, "LOADING Redis is loading the dataset in memory"),
            (Unknown, "MASTERDOWN Link with MASTER is down"),
            (Unknown, "READONLY You can't write"),
            (Unknown, "ERR max number of clients reached"),
        ] {
            assert!(
                unreachable(kind.clone(), details).is_worth_waiting(),
                "{kind:?}: {details}"
            );
        }
        for (kind, details) in [
            (Auth, "NOAUTH Authentication required."),
            (Auth, "WRONGPASS invalid username-password pair"),
            (Sentinel, "WRONGPASS invalid username-password pair"),
            (Unknown, "NOPERM User a has no permissions"),
            (Unknown, "DENIED Redis is running in protected mode"),
            (Unknown, "ERR DB index is out of range"),
            (Config, "ERR This instance has cluster support disabled"),
            (Cluster, "MOVED 17 127.0.0.1:7000"),
            (
                IO,
                "Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) }",
            ),
            (Protocol, "Invalid frame"),
        ] {
            assert!(
                !unreachable(kind.clone(), details).is_worth_waiting(),
                "{kind:?}: {details}"
            );
        }
        for error in [
            OpenError::NoFolder,
            OpenError::Unknown("redis".to_owned()),
            OpenError::Redis(RedisError::BadPrefix(String::new())),
            OpenError::Redis(RedisError::TooOld("6.2.0".to_owned())),
            OpenError::Redis(RedisError::Unsafe(Vec::new())),
        ] {
            assert!(!error.is_worth_waiting(), "{error}");
        }
    }

    #[test]
    fn a_moved_slot_is_a_temporary_error_only_in_a_cluster() {
        for (url, is_temporary) in [
            ("redis-cluster://my-host:7000", true),
            ("rediss-cluster://my-host:7000", true),
            ("redis://my-cluster:7000", false),
        ] {
            let error = RedisError::Unreachable {
                url: url.to_owned(),
                error: FredError::new(ErrorKind::Cluster, "MOVED 17 127.0.0.1:7000"),
            };
            assert_eq!(error.is_temporary(), is_temporary, "{url}");
        }
    }
}
