//! [`Credential`]: what a client authenticates with, as a transport reads it. Whether it is valid is decided by
//! [`Access`](super::Access).

use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use forrst_lock::Caller as CallerName;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::key::KeyHash;

static API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The credential of a request. Of an API key, only the hash is kept.
#[derive(Debug, Clone, Default)]
pub(crate) enum Credential {
    /// The request came from this process, or through a socket that only the server's own user can open.
    Local,
    #[default]
    Nothing,
    Key(KeyHash),
    /// A client certificate, which was verified in the handshake.
    Certificate(PeerName),
    /// There is a credential, but it cannot be read, for this reason.
    Unreadable(&'static str),
}

/// The certificate of the client at the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct PeerName {
    pub(crate) name: CallerName,
    /// Cancelled when its authority is no longer trusted.
    pub(crate) distrusted: CancellationToken,
    /// Cancelled when all clones are dropped: those of the connection, its sessions, and the calls that came over it.
    pub(crate) unused: CancellationToken,
    #[expect(dead_code, reason = "only held")]
    unused_guard: Arc<DropGuard>,
}

impl PeerName {
    pub(crate) fn new(name: CallerName) -> Self {
        let unused = CancellationToken::new();
        Self {
            name,
            distrusted: CancellationToken::new(),
            unused_guard: Arc::new(unused.clone().drop_guard()),
            unused,
        }
    }
}

impl Credential {
    /// A key takes precedence over a certificate: callers that share the connection of a proxy can still authenticate themselves.
    pub(crate) fn read(headers: &HeaderMap, peer: Option<&PeerName>) -> Self {
        let bearer = headers.get_all(AUTHORIZATION).iter().map(|value| {
            let text = value.as_bytes();
            let (scheme, key) = text.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
        });
        let api_keys = headers.get_all(&API_KEY).iter();
        let given = bearer.chain(api_keys.map(|value| Some(value.as_bytes())));
        let mut keys = given.map(|key| key.map(|key| KeyHash::of(key.trim_ascii())));
        match (keys.next(), peer) {
            (None, None) => Self::Nothing,
            (None, Some(peer)) => Self::Certificate(peer.clone()),
            (Some(None), _) => Self::Unreadable("`Authorization` must be `Bearer` and an API key"),
            (Some(Some(first)), _) => {
                if keys.all(|key| key.is_some_and(|key| key == first)) {
                    Self::Key(first)
                } else {
                    Self::Unreadable("The request has more than one API key")
                }
            }
        }
    }
}
