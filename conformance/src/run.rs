//! Runs the vectors against one or several servers.
//!
//! Vectors run concurrently, except those that use fixed names (`alone`), which run one at a time after the others.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::catalogue::{self, CatalogueError};
use crate::play::{How, play};
use crate::report::{Outcome, Report, Verdict};
use crate::transport::{ApiKey, Server, Servers, UrlError};
use crate::vector::{Profile, Transport, Vector};

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which vectors are played, and which rules hold for every answer. `Extended` includes the vectors of `Core`.
    pub profile: Profile,
    /// The transports to use.
    pub transports: Vec<Transport>,
    /// Only vectors whose `group/name` contains this.
    pub filter: Option<String>,
    /// Leaves out vectors whose `group/name` begins with one of these: features that the server does not have.
    pub without: Vec<String>,
    /// How many vectors run at once.
    pub jobs: usize,
    /// How long to wait for each answer.
    pub patience: Duration,
    /// Vectors of this folder instead of those of this crate.
    pub vectors: Option<PathBuf>,
    /// Sent with every request that has no `Authorization` header of its own.
    pub api_key: Option<ApiKey>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            transports: Transport::ALL.to_vec(),
            filter: None,
            without: Vec::new(),
            jobs: 16,
            patience: Duration::from_secs(60),
            vectors: None,
            api_key: None,
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The address is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The vectors could not be read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The scheme of the address is that of another transport.
    #[error("{url} is for the transport `ws`, not for `{}`", transport.name())]
    Transport {
        /// The address.
        url: String,
        /// The transport that was chosen.
        transport: Transport,
    },
    /// No server accepts connections there.
    #[error("no server can be reached at {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The error of the connection.
        reason: io::Error,
    },
    /// The filter matches no vector.
    #[error("no vector's path contains {0:?}")]
    NothingMatches(String),
}

impl RunError {
    /// Whether the server could not be reached because its certificate is not trusted, or is not for its name.
    pub fn is_certificate_error(&self) -> bool {
        let Self::Unreachable { reason, .. } = self else {
            return false;
        };
        let cause = reason.get_ref().and_then(|cause| cause.downcast_ref());
        matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
    }
}

/// Plays the vectors against the server at `url`, such as `http://127.0.0.1:7420`.
pub async fn run(url: &str, options: &Options) -> Result<Report, RunError> {
    run_in_turn(&[url], options).await
}

/// Plays the vectors against servers that share one store: the requests of a vector go to the servers in turn, and a step
/// with `until_ms` has to succeed at each of them.
///
/// Calls of `demo.counter` all go to the first server, because each server has counters of its own.
///
/// # Panics
///
/// If `urls` is empty.
pub async fn run_in_turn(urls: &[&str], options: &Options) -> Result<Report, RunError> {
    assert!(!urls.is_empty(), "there has to be a server");
    let servers: Result<Vec<Server>, UrlError> = urls
        .iter()
        .map(|url| Server::parse(url, options.api_key.clone()))
        .collect();
    let servers = servers?;
    for (server, url) in servers.iter().zip(urls) {
        for transport in options.transports.iter().copied() {
            if !server.has(transport) {
                let url = (*url).to_owned();
                return Err(RunError::Transport { url, transport });
            }
        }
    }
    let mut vectors = match &options.vectors {
        Some(folder) => catalogue::in_folder(folder)?,
        None => catalogue::embedded()?,
    };
    if options.profile == Profile::Core {
        vectors.retain(|vector| vector.profile == Profile::Core);
    }
    if let Some(filter) = &options.filter {
        vectors.retain(|vector| vector.path().contains(filter));
        if vectors.is_empty() {
            return Err(RunError::NothingMatches(filter.clone()));
        }
    }
    let is_left_out = |path: &str| options.without.iter().any(|start| path.starts_with(start));
    vectors.retain(|vector| !is_left_out(&vector.path()));
    for (server, url) in servers.iter().zip(urls) {
        let reached = server.reach().await;
        reached.map_err(|reason| RunError::Unreachable {
            url: (*url).to_owned(),
            reason,
        })?;
    }
    let servers = Servers::new(servers);
    let (alone, beside_others): (Vec<Vector>, Vec<Vector>) =
        vectors.into_iter().partition(|vector| vector.alone);
    let mut outcomes = play_all(beside_others, &servers, options, options.jobs).await;
    outcomes.extend(play_all(alone, &servers, options, 1).await);
    outcomes.sort_by(|one, other| {
        (&one.group, &one.name, one.transport).cmp(&(&other.group, &other.name, other.transport))
    });
    Ok(Report {
        transports: options.transports.clone(),
        outcomes,
    })
}

async fn play_all(
    vectors: Vec<Vector>,
    servers: &Servers,
    options: &Options,
    jobs: usize,
) -> Vec<Outcome> {
    let permits = Arc::new(Semaphore::new(jobs.max(1)));
    let mut tasks = JoinSet::new();
    for vector in vectors.into_iter().map(Arc::new) {
        for transport in options.transports.iter().copied() {
            let (vector, servers, permits) = (vector.clone(), servers.clone(), permits.clone());
            let how = How {
                transport,
                profile: options.profile,
                patience: options.patience,
            };
            tasks.spawn(async move {
                let _permit = permits.acquire().await;
                Outcome {
                    verdict: verdict(&vector, &servers, how).await,
                    group: vector.group.clone(),
                    name: vector.name.clone(),
                    transport,
                }
            });
        }
    }
    tasks.join_all().await
}

async fn verdict(vector: &Vector, servers: &Servers, how: How) -> Verdict {
    if !vector.transports.contains(&how.transport) {
        return Verdict::Skipped;
    }
    match play(vector, servers, how).await {
        Ok(()) => Verdict::Passed,
        Err(failure) => Verdict::Failed(Box::new(failure)),
    }
}
