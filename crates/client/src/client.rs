//! The client: where calls and acquisitions begin, and how a single request is sent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forrst_protocol::{ExtensionRequest, RawObject, Request, RequestId, Response, Urn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::background::Background;
use crate::keys::Keys;
use crate::transport::Transport;
use crate::wire_duration::millis;
use crate::{Acquire, Call, ClientBuilder, Error, Failure, Key, Locks, Retry};

/// A client of one Forrst server. Cheap to clone: all clones share their connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) url: String,
    pub(crate) transport: Transport,
    /// For requests that watch a lock.
    pub(crate) watching: Transport,
    /// A permit for each lease that is watched.
    pub(crate) watched_leases: Semaphore,
    pub(crate) retry: Retry,
    pub(crate) timeout: Duration,
    pub(crate) background: Background,
}

impl Client {
    /// Connects to a server, and checks that it is a Forrst server.
    ///
    /// The scheme of the URL selects the transport: `http` and `https` use a pool of connections, one for each request under way;
    /// `ws` and `wss` send all requests over one WebSocket, which suits many small calls, and open it again when it breaks;
    /// `unix:/run/forrst.sock` does the same over the unix socket of a server on this machine, and is the fastest. Proxies that the
    /// environment names are not used.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] for a URL that is not one of these, and the errors of [`ping`](Self::ping).
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Builds a client with other settings than the defaults.
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(url.into())
    }

    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Calls a function. Nothing happens until the call is awaited.
    ///
    /// The arguments have to serialise to a JSON object.
    pub fn call<Args: Serialize, Out: DeserializeOwned>(
        &self,
        function: &str,
        arguments: Args,
    ) -> Call<Out> {
        Call::new(
            self.clone(),
            function,
            RawObject::from_serialize(&arguments),
        )
    }

    /// Calls a function with arguments that are JSON already; [`Call::response`] gives the whole answer.
    pub fn call_raw(&self, function: &str, arguments: RawObject<'_>) -> Call<Box<RawValue>> {
        Call::new(self.clone(), function, Ok(arguments.into_owned()))
    }

    /// Takes a lock for work that runs here. Nothing happens until it is acquired.
    ///
    /// The key is the lock's own (`export:orders`), not its full one (`lock:export:orders`).
    pub fn lock(&self, key: impl Into<String>) -> Acquire {
        Acquire::new(self.clone(), Keys::one(key.into()))
    }

    /// Takes a lock on 2 to 16 keys for work that runs here: all of them or none, in one step. No order of the keys can deadlock.
    pub fn lock_all<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Acquire {
        Acquire::new(self.clone(), Keys::several(keys))
    }

    /// Operations on locks by their full keys: status, list, waiters, watch, release, extend and withdraw.
    pub fn locks(&self) -> Locks {
        Locks::new(self.clone())
    }

    /// Waits for background work, `limit` at most. Whether all of it is done.
    ///
    /// An acquisition that is given up and a [`Lease`](crate::Lease) that is dropped release their locks in the background. If the
    /// program ends before that is done, the locks stay held until they expire: call this at the end of the program.
    pub async fn settle(&self, limit: Duration) -> bool {
        timeout(limit, self.inner.background.until_idle())
            .await
            .is_ok()
    }

    /// Runs background work, which [`settle`](Self::settle) waits for.
    pub(crate) fn in_background(
        &self,
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        self.inner.background.spawn(runtime, work);
    }

    pub(crate) fn retry(&self) -> &Retry {
        &self.inner.retry
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// How long to wait for the answer to a request that itself waits for a lock.
    pub(crate) fn patience(&self, deadline: Option<Instant>, wait: Option<Duration>) -> Patience {
        match deadline {
            Some(deadline) => Patience::Until(deadline),
            None => Patience::For(self.timeout().saturating_add(wait.unwrap_or_default())),
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.inner.transport
    }

    pub(crate) fn watching(&self) -> &Transport {
        &self.inner.watching
    }

    pub(crate) fn watched_leases(&self) -> &Semaphore {
        &self.inner.watched_leases
    }

    /// Sends a request once. A failure that the server reports is an error, too.
    pub(crate) async fn send(
        &self,
        request: Request<'_>,
        patience: Patience,
    ) -> Result<Response, Error> {
        self.send_over(self.transport(), request, patience).await
    }

    pub(crate) async fn send_over(
        &self,
        transport: &Transport,
        mut request: Request<'_>,
        patience: Patience,
    ) -> Result<Response, Error> {
        let until = match patience {
            Patience::For(time) => Instant::now().checked_add(time),
            Patience::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left < Duration::from_millis(1) {
                    return Err(Error::DeadlineExceeded(None));
                }
                request.extensions.push(deadline_in(left)?);
                Some(deadline)
            }
        };
        let answer = transport.send(request);
        let response = match until {
            Some(until) => match timeout_at(until, answer).await {
                Ok(answer) => answer?,
                Err(_) => return Err(patience.exceeded()),
            },
            None => answer.await?,
        };
        Ok(Failure::check(response)?)
    }
}

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    For(Duration),
    /// Also sent to the server, as the deadline of the call.
    Until(Instant),
}

impl Patience {
    fn exceeded(self) -> Error {
        match self {
            Self::For(time) => Error::Interrupted(format!("no answer within {time:?}").into()),
            Self::Until(_) => Error::DeadlineExceeded(None),
        }
    }
}

fn deadline_in(left: Duration) -> Result<ExtensionRequest<'static>, Error> {
    let urn = Urn::parse("urn:forrst:ext:deadline");
    let urn = urn.map_err(|why| Error::InvalidRequest(why.into()))?;
    let options = RawObject::from_serialize(&millis(left));
    let options = options.map_err(|why| Error::InvalidRequest(why.into()))?;
    Ok(ExtensionRequest::new(urn).with_options(options))
}

/// A request with a new id.
pub(crate) fn request_to(function: &str) -> Result<Request<'static>, Error> {
    let id = RequestId::try_from(uuid::Uuid::new_v4().to_string());
    let id = id.map_err(|why| Error::InvalidRequest(why.into()))?;
    let function = function.parse();
    let function =
        function.map_err(|why: forrst_protocol::InvalidName| Error::InvalidRequest(why.into()))?;
    Ok(Request::new(id, function))
}

/// Reads the result of a function.
pub(crate) fn result_of<Out: DeserializeOwned>(response: Response) -> Result<Out, Error> {
    let result = response
        .into_result()
        .map_err(|_| Error::Protocol("the answer has errors where a result was expected".into()))?;
    serde_json::from_str(result.get()).map_err(|why| Error::Protocol(why.into()))
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.inner.url).finish()
    }
}
