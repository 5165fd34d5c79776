//! The client and what it can do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forrst_protocol::{ExtensionRequest, RawObject, Request, RequestId, Response, Urn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
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
    pub(crate) retry: Retry,
    pub(crate) timeout: Duration,
    pub(crate) background: Background,
}

impl Client {
    /// Connects to a server, and makes sure that it is one.
    ///
    /// The scheme of the URL decides how: `http` and `https` send each request by itself over connections that are kept; `ws`
    /// and `wss` send all of them over one WebSocket, which suits many small calls, and open it again when it breaks;
    /// `unix:/run/forrst.sock` does the same over the unix socket of a server on this machine, and is the fastest. Proxies that the
    /// environment names are not used.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] for a URL that is none of those, and whatever [`ping`](Self::ping) says.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A client with more to say about it.
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
    /// The arguments must be a JSON object when written.
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

    /// Takes a lock on 2 to 16 keys for work that runs here: all of them or none, in one step. They may come in any order, without
    /// fear of a deadlock.
    pub fn lock_all<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Acquire {
        Acquire::new(self.clone(), Keys::several(keys))
    }

    /// Locks by their full keys: to see, release, extend and withdraw them, and who waits.
    pub fn locks(&self) -> Locks {
        Locks::new(self.clone())
    }

    /// Waits until nothing is done in the background any more, for so long at most, and says whether that is so.
    ///
    /// An acquisition that is given up and a [`Lease`](crate::Lease) that is dropped go on giving back what they may have been
    /// granted. A program that ends before that is done leaves locks to their expiry: call this at its end.
    pub async fn settle(&self, limit: Duration) -> bool {
        timeout(limit, self.inner.background.is_done())
            .await
            .is_ok()
    }

    /// Does something that nobody waits for, but [`settle`](Self::settle).
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

    /// How long the answer to a request may take that wants to wait so long for its lock.
    pub(crate) fn patience(&self, deadline: Option<Instant>, wait: Option<Duration>) -> Patience {
        match deadline {
            Some(deadline) => Patience::Until(deadline),
            None => Patience::For(self.timeout().saturating_add(wait.unwrap_or_default())),
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.inner.transport
    }

    /// Sends a request once. A failure that the server names is an error, too.
    pub(crate) async fn send(
        &self,
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
        let answer = self.inner.transport.send(request);
        let response = match until {
            Some(until) => match timeout_at(until, answer).await {
                Ok(answer) => answer?,
                Err(_) => return Err(patience.is_over()),
            },
            None => answer.await?,
        };
        Ok(Failure::check(response)?)
    }
}

/// How long an answer is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    For(Duration),
    /// The server is told, too.
    Until(Instant),
}

impl Patience {
    fn is_over(self) -> Error {
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

/// A request of this client's own naming.
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
    let result = response.into_result().map_err(|_| {
        Error::Protocol("an answer of failure where one of success was expected".into())
    })?;
    serde_json::from_str(result.get()).map_err(|why| Error::Protocol(why.into()))
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.inner.url).finish()
    }
}
