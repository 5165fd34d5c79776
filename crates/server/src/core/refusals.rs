//! Refusals are counted, and not written down one by one: a client without any rights must not fill a disk.
//!
//! The first of a kind from an address is written whole. Those that follow are counted, and become one line, "N more", when a
//! window of time ends. As long as there are more, the next window is twice as long.

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

/// How long the first window of a kind is, and the longest one.
const FIRST_WINDOW: Duration = Duration::from_secs(10);
const LONGEST_WINDOW: Duration = Duration::from_secs(320);
/// How many kinds are told apart. Those of other addresses are then counted together.
const MOST_KINDS: usize = 256;
const OTHER_ADDRESSES: &str = "other addresses";
const SECOND: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// What was refused in the frame that is being answered.
    static FRAME: RefCell<Vec<Kind>>;
}

/// Answers a frame of several requests: those that are refused alike count as one.
pub(crate) async fn one_frame<F: Future>(answers: F) -> F::Output {
    FRAME.scope(RefCell::default(), answers).await
}

/// Refusals that are written down together. Nothing that a caller can make up is a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// The address, or for IPv6 its network: a client has as many addresses there as it likes.
    from: Arc<str>,
    who: Option<CallerName>,
    code: ErrorCode,
    /// The function or path, of those that this server has.
    what: Option<String>,
}

impl Kind {
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

/// As people write it.
fn written_network(address: &str) -> Arc<str> {
    match address.parse().map(network) {
        Ok(IpAddr::V6(network)) if !network.is_loopback() => format!("{network}/64").into(),
        _ => address.into(),
    }
}

/// The kinds that were refused a short while ago.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<Kind, Window>>);

#[derive(Debug)]
struct Window {
    more: u64,
    length: Duration,
    ends: Instant,
}

impl Refusals {
    /// Writes "N more" lines for as long as the server is there.
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

    /// Counts a refusal. Whether it is to be written down whole.
    pub(crate) fn is_first(&self, kind: Kind) -> bool {
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

    fn count(&self, kind: Kind, now: Instant) -> bool {
        let mut windows = self.windows();
        let kind = match windows.len() < MOST_KINDS || windows.contains_key(&kind) {
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

    /// The windows that have ended, with how many more there were. Kinds of which there were none are forgotten.
    fn ended(&self, now: Instant) -> Vec<(Kind, u64)> {
        let mut ended = Vec::new();
        self.windows().retain(|kind, window| {
            if window.ends > now {
                return true;
            }
            if window.more == 0 {
                return false;
            }
            ended.push((kind.clone(), std::mem::take(&mut window.more)));
            window.length = (window.length * 2).min(LONGEST_WINDOW);
            window.ends = now + window.length;
            true
        });
        ended
    }

    /// All that is counted and not written down yet.
    pub(crate) fn take(&self) -> Vec<(Kind, u64)> {
        let windows = std::mem::take(&mut *self.windows());
        let counted = windows.into_iter().filter(|(_, window)| window.more > 0);
        counted.map(|(kind, window)| (kind, window.more)).collect()
    }

    fn windows(&self) -> MutexGuard<'_, HashMap<Kind, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a caller was refused for who they are: that is for the audit log, too.
pub(crate) fn is_denial(code: &ErrorCode) -> bool {
    matches!(code, ErrorCode::Unauthorized | ErrorCode::Forbidden)
}

impl Core {
    /// Writes down how many more there were of each kind.
    pub(crate) fn report_more(&self, refused: Vec<(Kind, u64)>) {
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

    fn from(address: &str) -> Kind {
        Kind::new(Some(address), None, &ErrorCode::Unauthorized, None)
    }

    fn more(refusals: &Refusals) -> Vec<(String, u64)> {
        let ended = refusals.ended(Instant::now()).into_iter();
        ended
            .map(|(kind, more)| (kind.from.to_string(), more))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_is_written_and_the_rest_is_counted() {
        let refusals = Refusals::default();
        assert!(refusals.is_first(from("10.0.0.1")));
        for _ in 0..5 {
            assert!(!refusals.is_first(from("10.0.0.1")));
        }
        assert!(refusals.is_first(from("10.0.0.2")), "another address");
        assert_eq!(more(&refusals), []);
        advance(FIRST_WINDOW).await;
        assert_eq!(more(&refusals), [("10.0.0.1".to_owned(), 5)]);
        assert!(refusals.is_first(from("10.0.0.2")), "its window was over");
        assert!(!refusals.is_first(from("10.0.0.1")), "there were more");
        advance(FIRST_WINDOW).await;
        assert_eq!(more(&refusals), [], "the next window is longer");
        advance(FIRST_WINDOW).await;
        assert_eq!(more(&refusals), [("10.0.0.1".to_owned(), 1)]);
        advance(LONGEST_WINDOW).await;
        assert_eq!(more(&refusals), []);
        assert!(refusals.windows().is_empty(), "nothing is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_are_bounded_and_the_networks_of_ipv6_are_one_address() {
        let refusals = Refusals::default();
        assert!(refusals.is_first(from("2001:db8::1")));
        assert!(!refusals.is_first(from("2001:db8::ffff:1")));
        assert!(refusals.is_first(from("2001:db8:0:1::1")));
        let written = (0..100_000)
            .filter(|number| refusals.is_first(from(&format!("host{number}"))))
            .count();
        assert_eq!(written, MOST_KINDS - 2 + 1);
        assert_eq!(refusals.windows().len(), MOST_KINDS + 1);
        advance(FIRST_WINDOW).await;
        let other = 100_000 - written as u64;
        let expected = [
            ("2001:db8::/64".to_owned(), 1),
            (OTHER_ADDRESSES.to_owned(), other),
        ];
        let mut counted = more(&refusals);
        counted.sort();
        assert_eq!(counted, expected);
    }

    #[tokio::test]
    async fn requests_of_one_frame_that_are_refused_alike_count_as_one() {
        let refusals = Refusals::default();
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
