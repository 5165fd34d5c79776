//! Why somebody was turned away.

/// Why somebody was turned away: each has its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// They did not say who they are, or not credibly.
    Unauthorized,
    /// They may not do that.
    Forbidden,
    /// They asked too often.
    Rate,
    /// They have too many locks.
    Locks,
    /// Too many wait for this lock, or in all.
    Waiters,
    /// Too many connections are open.
    Connections,
    /// The body is too large.
    Body,
    /// The body took too long.
    BodyTime,
    /// They asked for a host that this server is not.
    Host,
    /// They did not come to terms about TLS.
    Tls,
}

impl Refusal {
    pub(crate) const ALL: [Self; 10] = [
        Self::Unauthorized,
        Self::Forbidden,
        Self::Rate,
        Self::Locks,
        Self::Waiters,
        Self::Connections,
        Self::Body,
        Self::BodyTime,
        Self::Host,
        Self::Tls,
    ];

    /// As it stands in the metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Rate => "rate",
            Self::Locks => "locks",
            Self::Waiters => "waiters",
            Self::Connections => "connections",
            Self::Body => "body",
            Self::BodyTime => "body_time",
            Self::Host => "host",
            Self::Tls => "tls",
        }
    }
}
