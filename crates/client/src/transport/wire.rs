//! What a kind of connection has to provide, to carry many calls at once.

use forrst_protocol::{Request, Response};

use crate::{Cause, Error};

pub(crate) type Answer = Result<Response, Error>;

/// A kind of connection that many calls share.
///
/// Every call has a number that no other call of its connection has. It travels with the request, and its answer brings it
/// back: ids of requests are repeated when a request is.
pub(crate) trait Wire: Send + Sync + 'static {
    type Reader: Reader;
    type Writer: Writer;

    /// Whether a server that is silent is pinged, and given up if it stays silent.
    const PINGS: bool;

    fn open(&self) -> impl Future<Output = Result<(Self::Reader, Self::Writer), Error>> + Send;

    /// The frame that carries a request.
    fn encode(number: u64, request: Request<'_>) -> Result<String, Error>;
}

pub(crate) trait Reader: Send + 'static {
    /// Waits for what arrives next.
    fn next(&mut self) -> impl Future<Output = Result<Incoming, End>> + Send;
}

pub(crate) trait Writer: Send + 'static {
    /// Writes these frames together, and drains them. Calls `begun` before the server can have any of them in full; if it fails
    /// or is dropped before that, none of them was sent.
    fn write(
        &mut self,
        frames: &mut Vec<String>,
        begun: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<(), Cause>> + Send;

    /// Asks the server for a sign of life.
    fn ping(&mut self) -> impl Future<Output = Result<(), Cause>> + Send {
        async { Ok(()) }
    }

    /// Tells the server that nothing more will come.
    fn close(&mut self) -> impl Future<Output = Result<(), Cause>> + Send {
        async { Ok(()) }
    }
}

/// What arrived.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// An answer, and the number of its call, unless the server could not read that.
    Answer { number: Option<u64>, answer: Answer },
    /// Nothing that a call waits for.
    Other,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It broke, and what was sent may have been carried out.
    Broken(String),
    /// The server closed it without reading anything.
    TurnedAway(String),
}
