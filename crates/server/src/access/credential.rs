//! What somebody shows to say who they are.

use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use forrst_lock::Caller as CallerName;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::key::KeyHash;

static API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What came with a request. The key itself is forgotten as soon as its hash is known.
#[derive(Debug, Clone, Default)]
pub(crate) enum Credential {
    /// The request came from this process, or through a socket that only the server's own user can open.
    Local,
    #[default]
    Nothing,
    Key(KeyHash),
    /// A client's certificate, which was checked when the connection was made.
    Certificate(PeerName),
    /// There is something, and it cannot be told what it means.
    Unreadable(&'static str),
}

/// The certificate of the client at the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct PeerName {
    pub(crate) name: CallerName,
    /// Cancelled when the authority that it is from is not trusted any more.
    pub(crate) distrusted: CancellationToken,
    /// Cancelled when all clones are gone: the connection, its sessions, and the calls that came over it.
    pub(crate) unused: CancellationToken,
    #[expect(dead_code, reason = "only held")]
    user: Arc<DropGuard>,
}

impl PeerName {
    pub(crate) fn new(name: CallerName) -> Self {
        let unused = CancellationToken::new();
        Self {
            name,
            distrusted: CancellationToken::new(),
            user: Arc::new(unused.clone().drop_guard()),
            unused,
        }
    }
}

impl Credential {
    /// A key counts more than a certificate: whoever shares a proxy's connection can still say who they are.
    pub(crate) fn read(headers: &HeaderMap, peer: Option<&PeerName>) -> Self {
        let bearer = headers.get_all(AUTHORIZATION).iter().map(|value| {
            let text = value.as_bytes();
            let (scheme, key) = text.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
        });
        let api_keys = headers.get_all(&API_KEY).iter();
        let shown = bearer.chain(api_keys.map(|value| Some(value.as_bytes())));
        let mut keys = shown.map(|key| key.map(|key| KeyHash::of(key.trim_ascii())));
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
