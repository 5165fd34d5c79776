//! Limits the log lines of refusals, so that a client without any rights cannot fill the disk.
//!
//! The first refusal of a kind from an address is logged. Further ones are counted, and become one line, "N more", when a window of
//! time ends. As long as there are more, the next window is twice as long.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use forrst_lock::Caller as CallerName;
use forrst_protocol::ErrorCode;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Core;
use crate::audit::AuditEntry;
use crate::limits::network;

/// The lengths of the first and of the longest window of a kind.
const FIRST_WINDOW: Duration = Duration::from_secs(10);
const MAX_WINDOW: Duration = Duration::from_secs(320);
/// How many kinds are counted separately. Above that, those of other addresses are counted together.
const MAX_KINDS: usize = 256;
const OTHER_ADDRESSES: &str = "other addresses";
const SECOND: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// The kinds of refusals in the JSON-RPC frame that is being answered.
    static FRAME: RefCell<Vec<RefusalKind>>;
}

/// Answers a frame of several requests: refusals of the same kind count as one.
pub(crate) async fn one_frame<F: Future>(answers: F) -> F::Output {
    FRAME.scope(RefCell::default(), answers).await
}

/// What refusals that are counted together have in common. No part of it is chosen by the caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RefusalKind {
    /// The address, or the network of an IPv6 address, because a client can use all addresses of its network.
    from: Arc<str>,
    who: Option<CallerName>,
    code: ErrorCode,
    /// The function or path, if this server has it.
    what: Option<String>,
}

impl RefusalKind {
    pub(crate) fn new(
        from: Option<&str>,
        who: Option<&CallerName>,
        code: &ErrorCode,
        what: Option<&str>,
    ) -> Self {
        Self {
            from: written_network(from.unwrap_or_default()),
            who: who.cloned(),
            code: code.clone(),
            what: what.map(str::to_owned),
        }
    }

    fn of_other_addresses(self) -> Self {
        Self {
            from: OTHER_ADDRESSES.into(),
            who: None,
            code: self.code,
            what: None,
        }
    }
}

/// An address, or the network of an IPv6 address, in the usual notation.
fn written_network(address: &str) -> Arc<str> {
    match address.parse().map(network) {
        Ok(IpAddr::V6(network)) if !network.is_loopback() => format!("{network}/64").into(),
        _ => address.into(),
    }
}

/// The kinds that were refused recently.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog(Mutex<HashMap<RefusalKind, Window>>);

#[derive(Debug)]
struct Window {
    more: u64,
    length: Duration,
    ends: Instant,
}

impl RefusalLog {
    /// Starts a task that logs the "N more" lines until the server is dropped.
    pub(crate) fn watch(core: &Arc<Core>) {
        let core: Weak<Core> = Arc::downgrade(core);
        tokio::spawn(async move {
            let mut ticks = interval(SECOND);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(core) = core.upgrade() else {
                    return;
                };
                core.report_more(core.refusals.ended(Instant::now()));
            }
        });
    }

    /// Counts a refusal. Returns whether it is the first of its kind, which is logged.
    pub(crate) fn is_first(&self, kind: RefusalKind) -> bool {
        let is_repeated = FRAME.try_with(|frame| {
            let mut frame = frame.borrow_mut();
            let is_repeated = frame.contains(&kind);
            if !is_repeated {
                frame.push(kind.clone());
            }
            is_repeated
        });
        !is_repeated.unwrap_or(false) && self.count(kind, Instant::now())
    }

    fn count(&self, kind: RefusalKind, now: Instant) -> bool {
        let mut windows = self.windows();
        let kind = match windows.len() < MAX_KINDS || windows.contains_key(&kind) {
            true => kind,
            false => kind.of_other_addresses(),
        };
        let mut is_first = false;
        let window = windows.entry(kind).or_insert_with(|| {
            is_first = true;
            Window {
                more: 0,
                length: FIRST_WINDOW,
                ends: now + FIRST_WINDOW,
            }
        });
        if !is_first {
            window.more += 1;
        }
        is_first
    }

    /// The kinds whose windows have ended, with the number of further refusals. Kinds without any are forgotten.
    fn ended(&self, now: Instant) -> Vec<(RefusalKind, u64)> {
        let mut ended = Vec::new();
        self.windows().retain(|kind, window| {
            if window.ends > now {
                return true;
            }
            if window.more == 0 {
                return false;
            }
            ended.push((kind.clone(), std::mem::take(&mut window.more)));
            window.length = (window.length * 2).min(MAX_WINDOW);
            window.ends = now + window.length;
            true
        });
        ended
    }

    /// All refusals that are counted and not logged yet.
    pub(crate) fn take(&self) -> Vec<(RefusalKind, u64)> {
        let windows = std::mem::take(&mut *self.windows());
        let counted = windows.into_iter().filter(|(_, window)| window.more > 0);
        counted.map(|(kind, window)| (kind, window.more)).collect()
    }

    fn windows(&self) -> MutexGuard<'_, HashMap<RefusalKind, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a code denies access: such refusals are in the audit log, too.
pub(crate) fn is_denial(code: &ErrorCode) -> bool {
    matches!(code, ErrorCode::Unauthorized | ErrorCode::Forbidden)
}

impl Core {
    /// Logs the number of further refusals of each kind.
    pub(crate) fn report_more(&self, refused: Vec<(RefusalKind, u64)>) {
        for (kind, more) in refused {
            let caller = kind.who.as_ref().map(CallerName::as_str);
            let code = kind.code.as_str();
            let (from, function) = (&*kind.from, kind.what.as_deref());
            tracing::warn!(target: "forrst::request", function, code, caller, from, "{more} more requests were refused");
            if is_denial(&kind.code) {
                self.audit.record(&AuditEntry {
                    who: caller,
                    from: Some(from),
                    act: "denied",
                    result: code,
                    function,
                    more: Some(more),
                    ..AuditEntry::default()
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn from(address: &str) -> RefusalKind {
        RefusalKind::new(Some(address), None, &ErrorCode::Unauthorized, None)
    }

    fn more(refusals: &RefusalLog) -> Vec<(String, u64)> {
        let ended = refusals.ended(Instant::now()).into_iter();
        ended
            .map(|(kind, more)| (kind.from.to_string(), more))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_refusal_of_a_kind_is_logged_and_the_others_are_counted() {
        let refusals = RefusalLog::default();
        assert!(refusals.is_first(from("10.0.0.1")));
        for _ in 0..5 {
            assert!(!refusals.is_first(from("10.0.0.1")));
        }
        assert!(refusals.is_first(from("10.0.0.2")), "another address");
        assert_eq!(more(&refusals), []);
        advance(FIRST_WINDOW).await;
        assert_eq!(more(&refusals), [("10.0.0.1".to_owned(), 5)]);
        assert!(refusals.is_first(from("10.0.0.2")), "its window has ended");
        assert!(!refusals.is_first(from("10.0.0.1")), "there were more");
        advance(FIRST_WINDOW).await;
        assert_eq!(more(&refusals), [], "the next window is longer");
        advance(FIRST_WINDOW).await;
        assert_eq!(more(&refusals), [("10.0.0.1".to_owned(), 1)]);
        advance(MAX_WINDOW).await;
        assert_eq!(more(&refusals), []);
        assert!(refusals.windows().is_empty(), "no kind is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_kinds_is_bounded_and_an_ipv6_network_counts_as_one_address() {
        let refusals = RefusalLog::default();
        assert!(refusals.is_first(from("2001:db8::1")));
        assert!(!refusals.is_first(from("2001:db8::ffff:1")));
        assert!(refusals.is_first(from("2001:db8:0:1::1")));
        let logged = (0..100_000)
            .filter(|number| refusals.is_first(from(&format!("host{number}"))))
            .count();
        assert_eq!(logged, MAX_KINDS - 2 + 1);
        assert_eq!(refusals.windows().len(), MAX_KINDS + 1);
        advance(FIRST_WINDOW).await;
        let other = 100_000 - logged as u64;
        let expected = [
            ("2001:db8::/64".to_owned(), 1),
            (OTHER_ADDRESSES.to_owned(), other),
        ];
        let mut counted = more(&refusals);
        counted.sort();
        assert_eq!(counted, expected);
    }

    #[tokio::test]
    async fn refusals_of_one_kind_in_a_frame_count_as_one() {
        let refusals = RefusalLog::default();
        one_frame(async {
            assert!(refusals.is_first(from("a")));
            assert!(!refusals.is_first(from("a")));
            assert!(refusals.is_first(from("b")));
        })
        .await;
        assert_eq!(refusals.take(), []);
        one_frame(async { assert!(refusals.is_first(from("a")), "it was taken") }).await;
    }
}
