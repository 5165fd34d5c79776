//! The options of `forrst serve`. Each comes from a flag, or else from the environment, or else from the file.

mod units;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use forrst_lock::{Config, KeyStyle, ReleaseMemory};
use forrst_server::{Limits, TlsFiles};
use forrst_stores::{PostgresOptions, RedisOptions, STORE_TIMEOUT};
use serde::Deserialize;

use self::units::{Memory, Size, Time, WaitTime};

/// Serve functions and locks over HTTP, WebSocket and JSON-RPC.
///
/// Requests go to `POST /forrst`; JSON-RPC 2.0, over HTTP or a WebSocket, to
/// `/rpc`. `GET /health` says whether the server runs, `GET /ready` whether it can
/// serve; `GET /metrics` has metrics for Prometheus. The dashboard at `/` shows who
/// holds which locks.
///
/// Every option can also be set as an environment variable, or in the file that
/// --config names, under the name of its flag:
///
///   listen = "127.0.0.1:7420"
///   max-ttl = "1h"
///
/// A flag overrides the environment, which overrides the file.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  forrst serve --demo                          a server to try things on
  forrst serve --listen 127.0.0.1:8080 --max-ttl 10m
  forrst serve --store redis://10.0.0.5:6379   one of several servers that share their locks
  forrst serve --config /etc/forrst.toml --log-format json
  forrst serve --listen 0.0.0.0:7420 --auth-file /etc/forrst/keys.toml \
    --tls-cert server.pem --tls-key server.key

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

/// The options from one source.
#[derive(Args, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Options {
    /// The address to listen on [default: 127.0.0.1:7420]
    #[arg(long, env = "FORRST_LISTEN", value_name = "ADDRESS")]
    listen: Option<String>,

    /// Also listen on a unix socket; each request and response is preceded by its length in 4 bytes, big-endian
    #[arg(long, env = "FORRST_UNIX", value_name = "PATH")]
    unix: Option<PathBuf>,

    /// The API keys and what each may do: a TOML file with the output of `forrst key new`, read again on SIGHUP [default: no keys
    /// are needed, and everything is allowed]
    #[arg(long, env = "FORRST_AUTH_FILE", value_name = "FILE")]
    auth_file: Option<PathBuf>,

    /// Allow an address that other machines can reach even though callers do not have to authenticate
    #[arg(
        long, env = "FORRST_INSECURE", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new(), hide_possible_values = true
    )]
    insecure: Option<bool>,

    /// Serve over TLS with this certificate chain, in PEM, read again on SIGHUP
    #[arg(long, env = "FORRST_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate, in PEM
    #[arg(long, env = "FORRST_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Accept only clients with a certificate of this authority, in PEM; the name of the certificate is that of the caller
    #[arg(long, env = "FORRST_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// A host name that requests may be addressed to; can be given more than once, or with commas [default: localhost and the
    /// loopback addresses for a server on a loopback address, any for others]
    #[arg(
        long,
        env = "FORRST_ALLOW_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    allow_host: Vec<String>,

    /// Where locks are kept: embedded:FOLDER (durable, one server), memory: (gone when the server ends),
    /// postgres://USER:PASSWORD@HOST:PORT/DB, or redis://USER:PASSWORD@HOST:PORT/DB (both shared by many servers; also
    /// rediss:// for TLS, redis-cluster:// and redis-sentinel://) [default: embedded:./forrst-data]
    #[arg(long, env = "FORRST_STORE", value_name = "URL")]
    store: Option<String>,

    /// What an answered change survives in the embedded store: full (also a loss of power) or process (only the end of the
    /// process; faster) [default: full]
    #[arg(
        long,
        env = "FORRST_DURABILITY",
        value_name = "LEVEL",
        hide_possible_values = true
    )]
    durability: Option<DurabilityLevel>,

    /// How long the release of a lock is remembered, so that a repeated release is answered as what it is; 1s to 1h
    /// [default: 30s]
    #[arg(long, env = "FORRST_REMEMBER_RELEASES", value_name = "DURATION")]
    remember_releases: Option<Memory>,

    /// The schema of the tables in Postgres, so that a database can have several stores [default: forrst]
    #[arg(long, env = "FORRST_POSTGRES_SCHEMA", value_name = "NAME")]
    postgres_schema: Option<String>,

    /// The certificates of the authority of Postgres, in PEM [default: those of the system]
    #[arg(long, env = "FORRST_POSTGRES_CA", value_name = "FILE")]
    postgres_ca: Option<PathBuf>,

    /// The prefix of all keys in Redis, which can be shared with other programs [default: forrst]
    #[arg(long, env = "FORRST_REDIS_PREFIX", value_name = "TEXT")]
    redis_prefix: Option<String>,

    /// How many replicas of Redis have to have a lock before it counts as acquired [default: 0]
    #[arg(long, env = "FORRST_REDIS_WAIT", value_name = "COUNT")]
    redis_wait: Option<u32>,

    /// The certificates of the authority of Redis, in PEM [default: those of the system]
    #[arg(long, env = "FORRST_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,

    /// How long the store may take to answer before callers get UNAVAILABLE [default: 2s]
    #[arg(long, env = "FORRST_STORE_TIMEOUT", value_name = "DURATION")]
    store_timeout: Option<Time>,

    /// How long to wait at startup for a Postgres or Redis that is not up yet; 0 fails at once [default: 0]
    #[arg(long, env = "FORRST_STORE_WAIT", value_name = "DURATION")]
    store_wait: Option<WaitTime>,

    /// Refuse a Postgres or Redis whose configuration can lose locks, instead of warning
    #[arg(
        long, env = "FORRST_STRICT", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new(), hide_possible_values = true
    )]
    strict: Option<bool>,

    /// Register demo functions: payments.charge, billing.generateReport, demo.echo, demo.sleep,
    /// demo.fail, demo.panic, demo.counter
    #[arg(
        long, env = "FORRST_DEMO", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new(), hide_possible_values = true
    )]
    demo: Option<bool>,

    /// The longest ttl of a lock [default: 24h]
    #[arg(long, env = "FORRST_MAX_TTL", value_name = "DURATION")]
    max_ttl: Option<Time>,

    /// The longest wait for a lock [default: 5m]
    #[arg(long, env = "FORRST_MAX_BLOCK", value_name = "DURATION")]
    max_block: Option<Time>,

    /// The largest request, such as 65536, 512KiB or 1MiB [default: 1MiB]
    #[arg(long, env = "FORRST_MAX_BODY", value_name = "SIZE")]
    max_body: Option<Size>,

    /// How many connections may be open at once [default: 10000]
    #[arg(long, env = "FORRST_MAX_CONNECTIONS", value_name = "COUNT")]
    max_connections: Option<NonZeroUsize>,

    /// How many of them may come from one address; an IPv6 /64 counts as one [default: all]
    #[arg(long, env = "FORRST_MAX_CONNECTIONS_PER_ADDRESS", value_name = "COUNT")]
    max_connections_per_address: Option<NonZeroUsize>,

    /// How many bytes requests and responses in progress may take [default: 256MiB]
    #[arg(long, env = "FORRST_MAX_BYTES", value_name = "SIZE")]
    max_bytes: Option<Size>,

    /// How many of them one connection may take [default: 16MiB]
    #[arg(long, env = "FORRST_MAX_BYTES_PER_CONNECTION", value_name = "SIZE")]
    max_bytes_per_connection: Option<Size>,

    /// How many of them one caller may take [default: 64MiB]
    #[arg(long, env = "FORRST_MAX_BYTES_PER_CALLER", value_name = "SIZE")]
    max_bytes_per_caller: Option<Size>,

    /// The largest head of an HTTP request, at least 8KiB [default: 64KiB]
    #[arg(long, env = "FORRST_MAX_HEAD", value_name = "SIZE")]
    max_head: Option<Size>,

    /// How many requests may be in progress at once on one connection [default: 1000]
    #[arg(long, env = "FORRST_MAX_IN_FLIGHT", value_name = "COUNT")]
    max_in_flight: Option<NonZeroUsize>,

    /// How many callers may wait for locks on this server [default: 100000]
    #[arg(long, env = "FORRST_MAX_WAITERS", value_name = "COUNT")]
    max_waiters: Option<NonZeroUsize>,

    /// How many callers may wait for one lock [default: 10000]
    #[arg(long, env = "FORRST_MAX_WAITERS_PER_LOCK", value_name = "COUNT")]
    max_waiters_per_lock: Option<NonZeroUsize>,

    /// How many locks one caller may hold or wait for on this server [default: any number]
    #[arg(long, env = "FORRST_MAX_LOCKS_PER_CALLER", value_name = "COUNT")]
    max_locks_per_caller: Option<NonZeroUsize>,

    /// How many requests one caller may make in a second [default: any number]
    #[arg(long, env = "FORRST_MAX_RATE", value_name = "COUNT")]
    max_rate: Option<NonZeroU32>,

    /// How long a client may take to send the head of a request, stay without an authorised request, or leave a response unread
    /// [default: 1m]
    #[arg(long, env = "FORRST_IDLE_TIMEOUT", value_name = "DURATION")]
    idle_timeout: Option<Time>,

    /// How long running functions may take to end when the server shuts down [default: 10s]
    #[arg(long, env = "FORRST_DRAIN_TIMEOUT", value_name = "DURATION")]
    drain_timeout: Option<Time>,

    /// The name of this server in answers [default: node- and a random number]
    #[arg(long, env = "FORRST_NODE", value_name = "NAME")]
    node: Option<String>,

    /// The format of log lines [default: text]
    #[arg(long, env = "FORRST_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// The lowest level of log lines; at debug, there is one for every request. `RUST_LOG`, if set, is used instead, and can
    /// name targets, as in `info,forrst::request=debug` [default: info]
    #[arg(long, env = "FORRST_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<LogLevel>,

    /// Show the keys of locks in the log, instead of their hashes
    #[arg(
        long, env = "FORRST_LOG_KEYS", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new(), hide_possible_values = true
    )]
    log_keys: Option<bool>,

    /// Append force-releases and denied requests to this file, as JSON; SIGHUP opens it again
    #[arg(long, env = "FORRST_AUDIT_LOG", value_name = "FILE")]
    audit_log: Option<PathBuf>,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The lowest level of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// What an answered change survives in the embedded store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityLevel {
    /// Also a loss of power.
    #[default]
    Full,
    /// Only the end of the process.
    Process,
}

/// The settings of the server: every option, or its default.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) listen: String,
    pub(crate) unix: Option<PathBuf>,
    pub(crate) auth_file: Option<PathBuf>,
    pub(crate) is_insecure: bool,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) store: String,
    pub(crate) durability: DurabilityLevel,
    pub(crate) release_memory: ReleaseMemory,
    pub(crate) store_timeout: Duration,
    pub(crate) store_wait: Duration,
    pub(crate) postgres: PostgresOptions,
    pub(crate) redis: RedisOptions,
    pub(crate) demo: bool,
    pub(crate) limits: Limits,
    pub(crate) locks: Config,
    pub(crate) drain_timeout: Duration,
    pub(crate) node: Option<String>,
    pub(crate) log_format: LogFormat,
    pub(crate) log_level: LogLevel,
    pub(crate) audit_log: Option<PathBuf>,
}

impl ServeArguments {
    /// Reads the file, if there is one, and fills in defaults.
    pub(crate) fn resolve(self) -> Result<Settings, String> {
        let file = match &self.config {
            None => Options::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        self.options.or(file)
    }
}

impl Options {
    fn or(self, file: Self) -> Result<Settings, String> {
        let time = |first: Option<Time>, second: Option<Time>, default: Duration| {
            first.or(second).map_or(default, |time| time.0)
        };
        let text = |first: Option<String>, second: Option<String>, default: &str| {
            first.or(second).unwrap_or_else(|| default.to_owned())
        };
        let count = |first: Option<NonZeroUsize>, second: Option<NonZeroUsize>| {
            first.or(second).map(NonZeroUsize::get)
        };
        let size = |first: Option<Size>, second: Option<Size>, default: usize| {
            first.or(second).map_or(default, |size| size.0)
        };
        let defaults = Limits::default();
        let limits = Limits {
            max_ttl: time(self.max_ttl, file.max_ttl, defaults.max_ttl),
            max_block: time(self.max_block, file.max_block, defaults.max_block),
            max_head: size(self.max_head, file.max_head, defaults.max_head),
            max_body: size(self.max_body, file.max_body, defaults.max_body),
            max_connections: count(self.max_connections, file.max_connections)
                .unwrap_or(defaults.max_connections),
            max_connections_per_address: count(
                self.max_connections_per_address,
                file.max_connections_per_address,
            ),
            max_bytes: size(self.max_bytes, file.max_bytes, defaults.max_bytes),
            max_bytes_per_connection: size(
                self.max_bytes_per_connection,
                file.max_bytes_per_connection,
                defaults.max_bytes_per_connection,
            ),
            max_bytes_per_caller: size(
                self.max_bytes_per_caller,
                file.max_bytes_per_caller,
                defaults.max_bytes_per_caller,
            ),
            max_in_flight: count(self.max_in_flight, file.max_in_flight)
                .unwrap_or(defaults.max_in_flight),
            max_locks_per_caller: count(self.max_locks_per_caller, file.max_locks_per_caller),
            max_rate: self.max_rate.or(file.max_rate).map(NonZeroU32::get),
            max_unauthenticated_rate: defaults.max_unauthenticated_rate,
            idle_timeout: time(self.idle_timeout, file.idle_timeout, defaults.idle_timeout),
            body_timeout: defaults.body_timeout,
        };
        let mut locks = Config::default();
        if let Some(most) = count(self.max_waiters, file.max_waiters) {
            locks.max_waiters = most;
        }
        if let Some(most) = count(self.max_waiters_per_lock, file.max_waiters_per_lock) {
            locks.max_waiters_per_key = most;
        }
        if self.log_keys.or(file.log_keys).unwrap_or_default() {
            locks.keys = KeyStyle::Plain;
        }
        let tls = tls_files(
            self.tls_cert.or(file.tls_cert),
            self.tls_key.or(file.tls_key),
            self.tls_client_ca.or(file.tls_client_ca),
        )?;
        let strict = self.strict.or(file.strict).unwrap_or_default();
        Ok(Settings {
            listen: text(self.listen, file.listen, "127.0.0.1:7420"),
            unix: self.unix.or(file.unix),
            auth_file: self.auth_file.or(file.auth_file),
            is_insecure: self.insecure.or(file.insecure).unwrap_or_default(),
            tls,
            allowed_hosts: if self.allow_host.is_empty() {
                file.allow_host
            } else {
                self.allow_host
            },
            store: text(self.store, file.store, "embedded:./forrst-data"),
            durability: self.durability.or(file.durability).unwrap_or_default(),
            release_memory: self
                .remember_releases
                .or(file.remember_releases)
                .map_or_else(ReleaseMemory::default, |memory| memory.0),
            store_timeout: time(self.store_timeout, file.store_timeout, STORE_TIMEOUT),
            store_wait: self
                .store_wait
                .or(file.store_wait)
                .map_or(Duration::ZERO, |wait| wait.0),
            postgres: PostgresOptions {
                schema: text(self.postgres_schema, file.postgres_schema, "forrst"),
                strict,
                ca: self.postgres_ca.or(file.postgres_ca),
                ..PostgresOptions::default()
            },
            redis: RedisOptions {
                prefix: text(self.redis_prefix, file.redis_prefix, "forrst"),
                wait: self.redis_wait.or(file.redis_wait).unwrap_or_default(),
                strict,
                ca: self.redis_ca.or(file.redis_ca),
                ..RedisOptions::default()
            },
            demo: self.demo.or(file.demo).unwrap_or_default(),
            limits,
            locks,
            drain_timeout: time(
                self.drain_timeout,
                file.drain_timeout,
                Duration::from_secs(10),
            ),
            node: self.node.or(file.node),
            log_format: self.log_format.or(file.log_format).unwrap_or_default(),
            log_level: self.log_level.or(file.log_level).unwrap_or_default(),
            audit_log: self.audit_log.or(file.audit_log),
        })
    }
}

/// A certificate needs its key, and a key its certificate.
fn tls_files(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Result<Option<TlsFiles>, String> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
            certificate,
            key,
            client_ca,
        })),
        (None, None) if client_ca.is_none() => Ok(None),
        (None, None) => Err("--tls-client-ca needs --tls-cert and --tls-key".to_owned()),
        (Some(_), None) => Err("--tls-cert needs --tls-key".to_owned()),
        (None, Some(_)) => Err("--tls-key needs --tls-cert".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Options, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn options_have_defaults() {
        let settings = Options::default().or(Options::default()).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:7420");
        assert_eq!(settings.limits.max_ttl, Duration::from_secs(86_400));
        assert_eq!(settings.limits.max_block, Duration::from_secs(300));
        assert_eq!(settings.limits.max_body, 1024 * 1024);
        assert_eq!(settings.drain_timeout, Duration::from_secs(10));
        assert!(!settings.demo);
    }

    #[test]
    fn a_flag_overrides_the_file() {
        let flags = Options {
            max_ttl: Some(Time(Duration::from_secs(7))),
            ..Options::default()
        };
        let file = file("max-ttl = '1h'\nmax-block = '1m 30s'\ndemo = true\nmax-body = '2KiB'");
        let settings = flags.or(file.unwrap()).unwrap();
        assert_eq!(settings.limits.max_ttl, Duration::from_secs(7));
        assert_eq!(settings.limits.max_block, Duration::from_secs(90));
        assert_eq!(settings.limits.max_body, 2048);
        assert!(settings.demo);
    }

    #[test]
    fn an_unknown_or_invalid_option_in_the_file_is_an_error() {
        for text in [
            "max_ttl = '1h'",
            "max-ttl = 5",
            "max-ttl = 'soon'",
            "max-ttl = '0s'",
        ] {
            assert!(file(text).is_err(), "{text}");
        }
    }
}
