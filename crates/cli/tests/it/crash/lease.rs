//! What is known about one lease from the operations on it: when it may, and when it must, have ended.

use std::time::{Duration, Instant};

use forrst_testkit::Shown;

/// Something happened at one moment between these two.
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
    /// When it ends if nobody ends it.
    expiry: Span,
    /// The extend that nobody answered: it may have happened.
    maybe_extended: Option<(Duration, Span)>,
    /// The last moment after which it was certainly still there.
    pub(crate) seen: Instant,
    /// The first moment by which it was certainly gone, as somebody has found.
    pub(crate) found_gone: Option<Instant>,
    /// The first moment at which somebody may have ended it.
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
            maybe_extended: None,
            seen: granted.from,
            found_gone: None,
            may_close: None,
            must_close: None,
        }
    }

    /// Between when and when it ends.
    pub(crate) fn ends(&self) -> Span {
        let mut ends = self.expiry;
        if let Some((ttl, asked)) = self.maybe_extended {
            let then = asked.after(ttl);
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

    /// Somebody was shown this lease. It has to be the one that is known.
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
        if let Some((ttl, asked)) = self.maybe_extended.take()
            && shown.expires_at != self.shown.expires_at
        {
            return self.extended(shown.expires_at, ttl, asked, slack);
        }
        if shown.expires_at != self.shown.expires_at {
            return Err(format!("{shown:?} should be {:?}", self.shown));
        }
        Ok(())
    }

    /// It ends later, or sooner. The store's clock must have gone on as ours has since the grant.
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
                "fence {} was granted at {} and extended between {least:?} and {most:?} later by {ttl:?}: it cannot end at {expires_at}",
                self.shown.fence, self.acquired_at
            ));
        }
        self.shown.expires_at = expires_at;
        self.expiry = asked.after(ttl);
        self.maybe_extended = None;
        Ok(())
    }

    pub(crate) fn may_be_extended(&mut self, ttl: Duration, asked: Span) {
        self.maybe_extended = Some((ttl, asked));
    }

    /// Something may have ended it. Not if it was seen after that.
    pub(crate) fn may_be_closed(&mut self, asked: Span) {
        if asked.to > self.seen {
            let from = asked.from.max(self.granted.from);
            self.may_close = Some(earlier(self.may_close, from));
        }
    }

    /// It is gone from this moment on.
    pub(crate) fn is_closed_by(&mut self, by: Instant) {
        self.must_close = Some(earlier(self.must_close, by));
    }

    /// Somebody found, by this moment, that it is gone.
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
