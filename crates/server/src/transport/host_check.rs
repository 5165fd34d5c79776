//! Which hosts a request may be for.
//!
//! A page in a browser can have its own name resolve to 127.0.0.1, and then talk to a server there as if it were the
//! page's own. The name in `Host` gives it away.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::HOST;
use forrst_protocol::{ErrorCode, ErrorObject};

/// The hosts that a listener answers for.
#[derive(Debug, Clone)]
pub(super) struct HostCheck {
    allowed: Vec<String>,
    is_needed: bool,
}

impl HostCheck {
    pub(super) fn new(allowed: &[String], address: Option<SocketAddr>) -> Self {
        let is_loopback = address.is_some_and(|a| a.ip().to_canonical().is_loopback());
        Self {
            allowed: allowed.iter().map(|name| bare(name).to_owned()).collect(),
            is_needed: is_loopback || !allowed.is_empty(),
        }
    }

    /// Why a request is refused that is for somebody else. One that names no host is from no browser.
    pub(super) fn refuse(&self, request: &Request) -> Option<ErrorObject> {
        if !self.is_needed {
            return None;
        }
        let authority = request.uri().authority().map(|a| a.as_str().as_bytes());
        let hosts = request.headers().get_all(HOST).iter();
        let mut named = hosts.map(HeaderValue::as_bytes).chain(authority);
        let stranger = named.find(|host| !self.allows(host))?;
        let stranger: String = String::from_utf8_lossy(stranger)
            .chars()
            .take(255)
            .collect();
        let message = format!(
            "This server does not answer for the host `{stranger}`: ask for localhost, or start it with --allow-host"
        );
        Some(ErrorObject::new(ErrorCode::Forbidden, message))
    }

    fn allows(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else {
            return false;
        };
        let name = bare(host);
        let is_loopback = name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let mut allowed = self.allowed.iter();
        is_loopback
            || name.eq_ignore_ascii_case("localhost")
            || allowed.any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

/// A host without its port, its brackets and its last dot.
fn bare(host: &str) -> &str {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
            _ => host,
        },
    };
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_server_answers_for_this_machine_and_what_it_was_told() {
        let check = HostCheck::new(&["locks.internal".to_owned()], None);
        for (host, expected) in [
            ("localhost", true),
            ("LOCALHOST:7420", true),
            ("localhost.", true),
            ("127.0.0.1:7420", true),
            ("127.8.8.8", true),
            ("[::1]:7420", true),
            ("[::1]", true),
            ("locks.internal:443", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("evil.example:127", false),
            ("user@localhost", false),
            ("10.0.0.1", false),
            ("[::2]", false),
            ("0.0.0.0", false),
            ("", false),
            ("[", false),
        ] {
            assert_eq!(check.allows(host.as_bytes()), expected, "{host}");
        }
    }
}
