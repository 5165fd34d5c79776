//! The reasons for which the server refuses a client, a request or a lock.

/// Why a client, a request or a lock was refused. Each reason has a counter in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The credential is missing or invalid.
    Unauthorized,
    /// The caller lacks the right.
    Forbidden,
    /// Too many requests in a second.
    Rate,
    /// The caller has too many locks.
    Locks,
    /// Too many calls wait on this server.
    Waiters,
    /// Too many calls wait for this lock.
    WaitersOfLock,
    /// Too many attempts were withdrawn lately.
    Withdrawals,
    /// Too many connections are open.
    Connections,
    /// Too many connections from one address are open.
    ConnectionsOfAddress,
    /// The body is too large.
    Body,
    /// The body took too long.
    BodyTime,
    /// The head of a request is too large.
    Head,
    /// The head of a request took too long, or a connection was silent.
    Idle,
    /// Too many bytes are under way on one connection, of one caller, or in the process.
    Bytes,
    /// An answer was not read in time.
    Unread,
    /// Too many requests without valid credentials are under way on one connection.
    Anonymous,
    /// The JSON nests too deep.
    Nesting,
    /// A batch has too many entries.
    Batch,
    /// Too many requests are under way on one connection: the next ones wait.
    InFlight,
    /// The request is for a host that this server does not answer for.
    Host,
    /// The request is from a web page of another origin.
    Origin,
    /// The TLS handshake failed, or the client certificate is no longer trusted.
    Tls,
}

impl Refusal {
    pub(crate) const ALL: [Self; 22] = [
        Self::Unauthorized,
        Self::Forbidden,
        Self::Rate,
        Self::Locks,
        Self::Waiters,
        Self::WaitersOfLock,
        Self::Withdrawals,
        Self::Connections,
        Self::ConnectionsOfAddress,
        Self::Body,
        Self::BodyTime,
        Self::Head,
        Self::Idle,
        Self::Bytes,
        Self::Unread,
        Self::Anonymous,
        Self::Nesting,
        Self::Batch,
        Self::InFlight,
        Self::Host,
        Self::Origin,
        Self::Tls,
    ];

    /// The value of the label in the metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Rate => "rate",
            Self::Locks => "locks",
            Self::Waiters => "waiters",
            Self::WaitersOfLock => "waiters_of_lock",
            Self::Withdrawals => "withdrawals",
            Self::Connections => "connections",
            Self::ConnectionsOfAddress => "connections_of_address",
            Self::Body => "body",
            Self::BodyTime => "body_time",
            Self::Head => "head",
            Self::Idle => "idle",
            Self::Bytes => "bytes",
            Self::Unread => "unread",
            Self::Anonymous => "anonymous",
            Self::Nesting => "nesting",
            Self::Batch => "batch",
            Self::InFlight => "in_flight",
            Self::Origin => "origin",
            Self::Host => "host",
            Self::Tls => "tls",
        }
    }
}
