//! The address of a server: a URL, whose scheme selects the transport and whose path gets the transport's route.

#[cfg(unix)]
use std::path::PathBuf;

use url::Url;

use crate::Error;

/// The address of a server, by transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Http(Url),
    WebSocket(Url),
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses the base URL of a server or the URL of its route, or `unix:` and the path of its socket.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path).map_err(|why| invalid(text, &why));
        }
        let url = Url::parse(text).map_err(|why| invalid(text, &why.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            // Not repeated, because it may be a secret.
            return Err(Error::Configuration(
                "a URL must not have a user or a password: use `api_key`".into(),
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid(text, "it must not have a query or a fragment"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(invalid(text, "it has no host"));
        }
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(with_route(url, "forrst"))),
            "ws" | "wss" => Ok(Self::WebSocket(with_route(url, "rpc"))),
            _ => Err(invalid(
                text,
                "it must start with http, https, ws, wss or unix",
            )),
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        match self {
            Self::Http(url) | Self::WebSocket(url) => matches!(url.scheme(), "https" | "wss"),
            #[cfg(unix)]
            Self::Unix(_) => false,
        }
    }
}

/// The path is not percent-decoded.
#[cfg(unix)]
fn unix(path: &str) -> Result<Endpoint, String> {
    const FORM: &str = "write unix:/PATH";
    let path = match path.strip_prefix("//") {
        Some(path) if !path.is_empty() && !path.starts_with('/') => {
            return Err(format!("a unix socket has no host: {FORM}"));
        }
        Some(path) => path,
        None => path,
    };
    if !path.starts_with('/') {
        return Err(format!("it needs the absolute path of a socket: {FORM}"));
    }
    // The system limits the length of such paths.
    let address = std::os::unix::net::SocketAddr::from_pathname(path);
    address.map_err(|why| format!("this path cannot be that of a socket: {why}"))?;
    Ok(Endpoint::Unix(path.into()))
}

#[cfg(not(unix))]
fn unix(_: &str) -> Result<Endpoint, String> {
    Err("there are no unix sockets on this system".to_owned())
}

fn with_route(mut url: Url, route: &str) -> Url {
    let path = url.path().trim_end_matches('/');
    if path.rsplit('/').next() != Some(route) {
        let path = format!("{path}/{route}");
        url.set_path(&path);
    }
    url
}

fn invalid(url: &str, why: &str) -> Error {
    Error::Configuration(format!("`{url}` is not the URL of a server: {why}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_decides_the_route() {
        for (text, route) in [
            ("http://localhost:7420", "http://localhost:7420/forrst"),
            ("http://localhost:7420/", "http://localhost:7420/forrst"),
            ("https://a.example/locks/", "https://a.example/locks/forrst"),
            ("https://a.example/forrst", "https://a.example/forrst"),
            ("ws://[::1]:7420", "ws://[::1]:7420/rpc"),
            ("wss://a.example/rpc", "wss://a.example/rpc"),
        ] {
            let (Endpoint::Http(url) | Endpoint::WebSocket(url)) = Endpoint::parse(text).unwrap()
            else {
                panic!("{text} is a path");
            };
            assert_eq!(url.as_str(), route);
            let is_http = matches!(Endpoint::parse(text).unwrap(), Endpoint::Http(_));
            assert_eq!(is_http, text.starts_with("http"));
            let is_encrypted = Endpoint::parse(text).unwrap().is_encrypted();
            assert_eq!(
                is_encrypted,
                ["https", "wss"].iter().any(|s| text.starts_with(s))
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_is_named_by_its_path() {
        for (text, path) in [
            ("unix:/run/forrst.sock", "/run/forrst.sock"),
            ("unix:///run/forrst.sock", "/run/forrst.sock"),
            ("unix:/a b/c%20d?e#f", "/a b/c%20d?e#f"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint, Endpoint::Unix(path.into()));
            assert!(!endpoint.is_encrypted());
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_without_an_absolute_path_is_refused() {
        let too_long = format!("unix:/{}", "x".repeat(200));
        for (text, why) in [
            ("unix:", "absolute path"),
            ("unix://", "absolute path"),
            ("unix:forrst.sock", "absolute path"),
            ("unix:./forrst.sock", "absolute path"),
            ("unix://run/forrst.sock", "no host"),
            (&too_long, "cannot be that of a socket"),
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(matches!(error, Error::Configuration(_)), "{text}: {error}");
            let error = error.to_string();
            assert!(error.contains(text) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn texts_that_are_not_urls_of_a_server_are_refused() {
        for text in [
            "",
            "localhost:7420",
            "ftp://a.example",
            "http://",
            "http://a.example?x=1",
            "http://a.example#x",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(matches!(error, Error::Configuration(_)), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_in_the_url_is_refused_and_not_repeated() {
        let error = Endpoint::parse("http://me:s3cret@a.example").unwrap_err();
        assert!(!error.to_string().contains("s3cret"));
    }
}
