//! What `forrst serve` can be told: by a flag, else by the environment, else by a file.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use forrst_server::Limits;
use serde::Deserialize;
use serde::de::Error as _;

/// Serve functions over HTTP, WebSocket and JSON-RPC, and the locks that callers ask for.
///
/// Requests go to `POST /forrst`; JSON-RPC 2.0, over HTTP or a WebSocket, to
/// `/rpc`. `GET /health` says that the server is there, `GET /ready` that it can
/// serve.
///
/// Every option can also be set as an environment variable, or in the file that
/// --config names, under the name of its flag:
///
///   listen = "127.0.0.1:7420"
///   max-ttl = "1h"
///
/// A flag counts more than the environment, which counts more than the file.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst serve --demo                          a server to try things on
  forrst serve --listen 127.0.0.1:8080 --max-ttl 10m
  forrst serve --config /etc/forrst.toml --log-format json

Exit codes: 0 after a shutdown by SIGTERM or SIGINT, 1 when the server cannot
run, 2 for wrong usage, 130 when a second signal ended it at once.
"
)]
pub(crate) struct ServeArguments {
    /// A TOML file with options
    #[arg(long, env = "FORRST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

/// The options, wherever they come from.
#[derive(Args, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Options {
    /// Where to listen [default: 127.0.0.1:7420]
    #[arg(long, env = "FORRST_LISTEN", value_name = "ADDRESS")]
    listen: Option<String>,

    /// Also listen on a unix socket, with a length of 4 bytes (big-endian) before each request and response
    #[arg(long, env = "FORRST_UNIX", value_name = "PATH")]
    unix: Option<PathBuf>,

    /// Where locks are kept: embedded:FOLDER (durable, one server) or memory: (gone when the server ends)
    /// [default: embedded:./forrst-data]
    #[arg(long, env = "FORRST_STORE", value_name = "URL")]
    store: Option<String>,

    /// What an answer of the embedded store has survived: full (also the loss of power) or process (the end of the
    /// process; faster) [default: full]
    #[arg(
        long,
        env = "FORRST_DURABILITY",
        value_name = "LEVEL",
        hide_possible_values = true
    )]
    durability: Option<DurabilityLevel>,

    /// Register functions to try things with: payments.charge, billing.generateReport, demo.echo, demo.sleep,
    /// demo.fail, demo.panic, demo.counter
    #[arg(
        long, env = "FORRST_DEMO", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new(), hide_possible_values = true
    )]
    demo: Option<bool>,

    /// The longest ttl that a lock may have [default: 24h]
    #[arg(long, env = "FORRST_MAX_TTL", value_name = "DURATION")]
    max_ttl: Option<Time>,

    /// The longest that a caller may wait for a lock [default: 5m]
    #[arg(long, env = "FORRST_MAX_BLOCK", value_name = "DURATION")]
    max_block: Option<Time>,

    /// The largest request, such as 65536, 512KiB or 1MiB [default: 1MiB]
    #[arg(long, env = "FORRST_MAX_BODY", value_name = "SIZE")]
    max_body: Option<Size>,

    /// How many connections may be open at once [default: 10000]
    #[arg(long, env = "FORRST_MAX_CONNECTIONS", value_name = "COUNT")]
    max_connections: Option<NonZeroUsize>,

    /// How long running functions have to end when the server is told to [default: 10s]
    #[arg(long, env = "FORRST_DRAIN_TIMEOUT", value_name = "DURATION")]
    drain_timeout: Option<Time>,

    /// What this server is called in answers [default: node- and a random number]
    #[arg(long, env = "FORRST_NODE", value_name = "NAME")]
    node: Option<String>,

    /// How log lines look [default: text]
    #[arg(long, env = "FORRST_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What an answer of the embedded store has survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityLevel {
    /// Everything.
    #[default]
    Full,
    /// The end of the process.
    Process,
}

/// What to do, with every question answered.
#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) listen: String,
    pub(crate) unix: Option<PathBuf>,
    pub(crate) store: String,
    pub(crate) durability: DurabilityLevel,
    pub(crate) demo: bool,
    pub(crate) max_ttl: Duration,
    pub(crate) max_block: Duration,
    pub(crate) max_body: usize,
    pub(crate) max_connections: usize,
    pub(crate) drain_timeout: Duration,
    pub(crate) node: Option<String>,
    pub(crate) log_format: LogFormat,
}

impl ServeArguments {
    /// Reads the file, if there is one, and fills in what is left with defaults.
    pub(crate) fn resolve(self) -> Result<Settings, String> {
        let file = match &self.config {
            None => Options::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        Ok(self.options.or(file))
    }
}

impl Options {
    fn or(self, file: Self) -> Settings {
        let defaults = Limits::default();
        let time = |first: Option<Time>, second: Option<Time>, default: Duration| {
            first.or(second).map_or(default, |time| time.0)
        };
        let text = |first: Option<String>, second: Option<String>, default: &str| {
            first.or(second).unwrap_or_else(|| default.to_owned())
        };
        let max_body = self.max_body.or(file.max_body);
        let max_connections = self.max_connections.or(file.max_connections);
        Settings {
            listen: text(self.listen, file.listen, "127.0.0.1:7420"),
            unix: self.unix.or(file.unix),
            store: text(self.store, file.store, "embedded:./forrst-data"),
            durability: self.durability.or(file.durability).unwrap_or_default(),
            demo: self.demo.or(file.demo).unwrap_or_default(),
            max_ttl: time(self.max_ttl, file.max_ttl, defaults.max_ttl),
            max_block: time(self.max_block, file.max_block, defaults.max_block),
            max_body: max_body.map_or(defaults.max_body, |size| size.0),
            max_connections: max_connections.map_or(defaults.max_connections, NonZeroUsize::get),
            drain_timeout: time(
                self.drain_timeout,
                file.drain_timeout,
                Duration::from_secs(10),
            ),
            node: self.node.or(file.node),
            log_format: self.log_format.or(file.log_format).unwrap_or_default(),
        }
    }
}

/// A duration as people write it: `30s`, `5m`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "a duration such as `30s`, `5m` or `1h 30m`";
        match humantime::parse_duration(text) {
            Ok(duration) if !duration.is_zero() => Ok(Self(duration)),
            Ok(_) => Err(format!("must be more than nothing: {expected}")),
            Err(error) => Err(format!("{error}: expected {expected}")),
        }
    }
}

/// A number of bytes as people write it: `65536`, `512KiB`, `1MiB`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Size(usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => Some(1),
            "k" | "kib" => Some(1024),
            "m" | "mib" => Some(1024 * 1024),
            _ => None,
        };
        let count: Option<usize> = digits.trim().parse().ok();
        let size = count
            .zip(factor)
            .and_then(|(count, factor)| count.checked_mul(factor));
        match size {
            Some(size) if size > 0 => Ok(Self(size)),
            _ => Err("expected a size such as `65536`, `512KiB` or `1MiB`".to_owned()),
        }
    }
}

macro_rules! read_from_text {
    ($($type:ty)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
read_from_text!(Time Size);

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Options, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn without_anything_there_are_defaults() {
        let settings = Options::default().or(Options::default());
        assert_eq!(settings.listen, "127.0.0.1:7420");
        assert_eq!(settings.max_ttl, Duration::from_secs(86_400));
        assert_eq!(settings.max_block, Duration::from_secs(300));
        assert_eq!(settings.max_body, 1024 * 1024);
        assert_eq!(settings.drain_timeout, Duration::from_secs(10));
        assert!(!settings.demo);
    }

    #[test]
    fn a_flag_counts_more_than_the_file() {
        let flags = Options {
            max_ttl: Some(Time(Duration::from_secs(7))),
            ..Options::default()
        };
        let file = file("max-ttl = '1h'\nmax-block = '1m 30s'\ndemo = true\nmax-body = '2KiB'");
        let settings = flags.or(file.unwrap());
        assert_eq!(settings.max_ttl, Duration::from_secs(7));
        assert_eq!(settings.max_block, Duration::from_secs(90));
        assert_eq!(settings.max_body, 2048);
        assert!(settings.demo);
    }

    #[test]
    fn a_misspelt_or_wrong_option_in_the_file_is_an_error() {
        for text in [
            "max_ttl = '1h'",
            "max-ttl = 5",
            "max-ttl = 'soon'",
            "max-ttl = '0s'",
        ] {
            assert!(file(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("1", 1),
            ("64k", 65_536),
            ("512KiB", 524_288),
            ("1MiB", 1_048_576),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "1.5MiB",
            "1GB",
            "MiB",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
