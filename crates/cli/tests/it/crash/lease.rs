//! What is known about one lease from the operations on it: when it may have ended, and when it must have.

use std::time::{Duration, Instant};

use forrst_testkit::Shown;

/// Something happened at some moment between these two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

impl Span {
    fn after(self, time: Duration) -> Self {
        Self {
            from: self.from + time,
            to: self.to + time,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) shown: Shown,
    /// Which start of the server granted it.
    pub(crate) start: usize,
    pub(crate) granted: Span,
    acquired_at: u64,
    /// When it expires.
    expiry: Span,
    /// Extensions without an answer: each may have been made.
    maybe_extended: Vec<(Duration, Span)>,
    /// The last moment after which it was certainly still held.
    pub(crate) seen: Instant,
    /// The first moment by which an answer showed that it had ended.
    pub(crate) found_gone: Option<Instant>,
    /// The first moment at which a request may have ended it.
    may_close: Option<Instant>,
    /// The first moment by which it must have ended.
    must_close: Option<Instant>,
}

impl Lease {
    pub(crate) fn granted(shown: Shown, start: usize, ttl: Duration, granted: Span) -> Self {
        Self {
            acquired_at: shown.expires_at - millis(ttl),
            shown,
            start,
            granted,
            expiry: granted.after(ttl),
            maybe_extended: Vec::new(),
            seen: granted.from,
            found_gone: None,
            may_close: None,
            must_close: None,
        }
    }

    /// The earliest and the latest moment of its end.
    pub(crate) fn ends(&self) -> Span {
        let mut ends = self.expiry;
        for (ttl, asked) in &self.maybe_extended {
            let then = asked.after(*ttl);
            ends.from = ends.from.min(then.from);
            ends.to = ends.to.max(then.to);
        }
        ends.from = earlier(self.may_close, ends.from);
        ends.to = earlier(self.must_close, ends.to);
        ends.from = ends.from.max(self.seen);
        ends
    }

    pub(crate) fn see(&mut self, at: Instant) {
        self.seen = self.seen.max(at);
    }

    /// An answer has shown this lease. It has to be as it is known.
    pub(crate) fn is_shown(
        &mut self,
        shown: &Shown,
        acquired_at: Option<u64>,
        slack: Duration,
    ) -> Result<(), String> {
        if shown.owner != self.shown.owner {
            return Err(format!("{shown:?} was granted to {}", self.shown.owner));
        }
        if acquired_at.is_some_and(|at| at != self.acquired_at) {
            return Err(format!("{shown:?} was granted at {}", self.acquired_at));
        }
        let maybe_extended = std::mem::take(&mut self.maybe_extended);
        if shown.expires_at == self.shown.expires_at {
            return Ok(());
        }
        let mut fits = Err(format!("{shown:?} should be {:?}", self.shown));
        for (ttl, asked) in maybe_extended {
            fits = fits.or_else(|_| self.extended(shown.expires_at, ttl, asked, slack));
        }
        fits
    }

    /// It was extended. Since the grant, the store's clock must have advanced as ours has.
    pub(crate) fn extended(
        &mut self,
        expires_at: u64,
        ttl: Duration,
        asked: Span,
        slack: Duration,
    ) -> Result<(), String> {
        let at = expires_at.checked_sub(millis(ttl));
        let passed = at.and_then(|at| at.checked_sub(self.acquired_at));
        let least = asked.from.saturating_duration_since(self.granted.to);
        let most = asked.to.saturating_duration_since(self.granted.from);
        let fits = passed
            .map(Duration::from_millis)
            .is_some_and(|passed| least.saturating_sub(slack) <= passed && passed <= most + slack);
        if !fits {
            return Err(format!(
                "fence {} was granted at {} and extended by {ttl:?} between {least:?} and {most:?} later: it cannot end at {expires_at}",
                self.shown.fence, self.acquired_at
            ));
        }
        self.shown.expires_at = expires_at;
        self.expiry = asked.after(ttl);
        self.maybe_extended.clear();
        Ok(())
    }

    pub(crate) fn may_be_extended(&mut self, ttl: Duration, asked: Span) {
        self.maybe_extended.push((ttl, asked));
    }

    /// A request may have ended it, unless it was seen later.
    pub(crate) fn may_be_closed(&mut self, asked: Span) {
        if asked.to > self.seen {
            let from = asked.from.max(self.granted.from);
            self.may_close = Some(earlier(self.may_close, from));
        }
    }

    /// It had ended by this moment.
    pub(crate) fn is_closed_by(&mut self, by: Instant) {
        self.must_close = Some(earlier(self.must_close, by));
    }

    /// An answer showed by this moment that it had ended.
    pub(crate) fn is_found_gone(&mut self, by: Instant) {
        self.found_gone = Some(earlier(self.found_gone, by));
        self.is_closed_by(by);
    }
}

fn earlier(first: Option<Instant>, second: Instant) -> Instant {
    first.map_or(second, |first| first.min(second))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

#[test]
fn each_extension_without_an_answer_may_have_been_made() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let span = |from, to| Span {
        from: at(from),
        to: at(to),
    };
    let shown = Shown {
        owner: "a".to_owned(),
        fence: 1,
        expires_at: 4_000,
    };
    let mut lease = Lease::granted(shown, 1, Duration::from_secs(3), span(0, 10));
    lease.may_be_extended(Duration::from_millis(300), span(20, 30));
    // Its caller does not know that it has ended, and extends it again.
    lease.may_be_extended(Duration::from_secs(60), span(1_000, 1_010));
    lease.is_found_gone(at(900));
    assert!(
        lease.ends().from <= at(900),
        "the first one has shortened it"
    );
}
