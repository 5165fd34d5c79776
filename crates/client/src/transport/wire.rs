//! The interface of a connection that carries many calls at once: how it is opened, and how frames are encoded, read and written.

use forrst_protocol::{Request, Response};

use crate::{Cause, Error};

pub(crate) type Answer = Result<Response, Error>;

/// A kind of connection that calls share.
///
/// Every call has a number that is unique on its connection. It is sent with the request and returned with the answer. The id of
/// the request cannot serve for that, since a retry has the same one.
pub(crate) trait Wire: Send + Sync + 'static {
    type Reader: Reader;
    type Writer: Writer;

    /// Whether a silent server is pinged, and the connection given up if it stays silent.
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
    /// Writes these frames together, and drains them. Calls `begun` before the server can have received a whole frame: if it
    /// fails or is dropped before that, none of them was sent.
    fn write(
        &mut self,
        frames: &mut Vec<String>,
        begun: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<(), Cause>> + Send;

    /// Sends a ping, which makes the server answer.
    fn ping(&mut self) -> impl Future<Output = Result<(), Cause>> + Send {
        async { Ok(()) }
    }

    /// Closes the connection in order.
    fn close(&mut self) -> impl Future<Output = Result<(), Cause>> + Send {
        async { Ok(()) }
    }
}

/// What arrived.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// An answer, and the number of its call, unless the server could not read the number.
    Answer { number: Option<u64>, answer: Answer },
    /// Anything else, such as a pong.
    Other,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It broke, and what was sent may have been carried out.
    Broken(String),
    /// The server refused it without reading anything.
    Refused(String),
}
