//! The check of the `Host` header, against DNS rebinding.
//!
//! A web page can have its own name resolve to 127.0.0.1, and then send requests to a server there as if they were for its own
//! origin. The name in `Host` reveals that. Every request is checked, also in a mounted router.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::http::HeaderValue;
use axum::http::header::HOST;
use forrst_protocol::{ErrorCode, ErrorObject};
use hyper::Request;

use super::answer::Answer;
use super::connection::Connection;
use super::http::refusal;
use crate::Server;
use crate::limits::Refusal;

/// The entry of the allowed hosts that allows every host.
const ANY_HOST: &str = "*";

/// The hosts that a listener answers for.
#[derive(Debug, Clone)]
pub(super) struct HostCheck {
    allowed: Vec<HostName>,
    is_needed: bool,
}

impl HostCheck {
    /// For a listener on `address`.
    pub(super) fn of_listener(allowed: &[String], address: Option<SocketAddr>) -> Self {
        let is_loopback = address.is_some_and(|a| a.ip().to_canonical().is_loopback());
        Self::new(allowed, is_loopback || !allowed.is_empty())
    }

    /// For a router in an application, whose address is not known: it may be a loopback address.
    pub(super) fn of_router(allowed: &[String]) -> Self {
        Self::new(allowed, true)
    }

    fn new(allowed: &[String], is_needed: bool) -> Self {
        Self {
            is_needed: is_needed && !allowed.iter().any(|name| name == ANY_HOST),
            allowed: allowed
                .iter()
                .filter_map(|name| match name.parse() {
                    // Parsed as an address first: otherwise, its last group would be taken for a port.
                    Ok(address @ IpAddr::V6(_)) => Some(HostName::Address(address)),
                    _ => bare(name).map(HostName::new),
                })
                .collect(),
        }
    }

    /// The answer that refuses a request for another host; `None` if the host is allowed.
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        server: &Server,
        connection: Option<&Arc<Connection>>,
    ) -> Option<Answer> {
        if !self.is_needed {
            return None;
        }
        let why = self.refuse(request)?;
        server.core.metrics.refused(Refusal::Host);
        let what = format!("{} {}", request.method(), request.uri().path());
        let from = connection.map(|connection| &*connection.from);
        server.core.denied(&what, None, from, &why);
        Some(refusal(server, why))
    }

    /// Why a request for another host is refused. A request without a host is not from a browser, and is allowed.
    fn refuse<B>(&self, request: &Request<B>) -> Option<ErrorObject> {
        let authority = request.uri().authority().map(|a| a.as_str().as_bytes());
        let hosts = request.headers().get_all(HOST).iter();
        let mut named = hosts.map(HeaderValue::as_bytes).chain(authority);
        let other = named.find(|host| !self.allows(host))?;
        let other: String = String::from_utf8_lossy(other).chars().take(255).collect();
        let message = format!(
            "This server does not answer for the host `{other}`: ask for localhost, or start it with --allow-host"
        );
        Some(ErrorObject::new(ErrorCode::Forbidden, message))
    }

    fn allows(&self, host: &[u8]) -> bool {
        let Some(name) = std::str::from_utf8(host).ok().and_then(bare) else {
            return false;
        };
        let host = HostName::new(name);
        let is_this_machine = match &host {
            HostName::Address(address) => address.is_loopback(),
            HostName::Name(name) => name == "localhost",
        };
        is_this_machine || self.allowed.contains(&host)
    }
}

/// A host, normalised for comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HostName {
    Address(IpAddr),
    /// In lower case.
    Name(String),
}

impl HostName {
    /// Of a host without port and brackets.
    fn new(bare: &str) -> Self {
        match bare.parse() {
            Ok(address) => Self::Address(address),
            Err(_) => Self::Name(bare.to_ascii_lowercase()),
        }
    }
}

/// A host without its port, its brackets and its last dot; `None` if it is malformed.
fn bare(host: &str) -> Option<&str> {
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let is_end = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        let is_address = address.parse::<Ipv6Addr>().is_ok();
        return (is_end && is_address).then_some(address);
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    Some(name.strip_suffix('.').unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_server_answers_for_this_machine_and_the_allowed_hosts() {
        let check = HostCheck::of_router(&["locks.internal".to_owned()]);
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
            ("[::1]evil.example", false),
            ("[::1].evil.example", false),
            ("[::1]:evil", false),
            ("[::1]:7420.evil.example", false),
            ("[::1", false),
            ("[127.0.0.1]", false),
            ("[localhost]", false),
            ("[]", false),
            ("::1", false),
            ("localhost:", true),
            ("localhost:port", false),
            ("localhost..", false),
        ] {
            assert_eq!(check.allows(host.as_bytes()), expected, "{host}");
        }
    }

    #[test]
    fn an_address_may_be_allowed_with_or_without_brackets() {
        for allowed in ["fe80::1", "[fe80::1]", "[fe80::1]:7420", "FE80:0::1"] {
            let check = HostCheck::of_router(&[allowed.to_owned()]);
            for (host, expected) in [
                ("[fe80::1]", true),
                ("[fe80::1]:7420", true),
                ("[fe80:0::1]", true),
                ("[fe80::2]", false),
                ("fe80:", false),
                ("fe80::1", false),
            ] {
                assert_eq!(check.allows(host.as_bytes()), expected, "{allowed}: {host}");
            }
        }
    }
}
