//! Calls over a unix socket: four bytes of length, big-endian, then the JSON of a request or an answer.

use std::io;
use std::path::PathBuf;

use forrst_protocol::{ErrorCode, Request, RequestId, Response};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use super::MAX_ANSWER_BYTES;
use super::wire::{End, Incoming, Reader, Wire, Writer};
use crate::{Cause, Error, Failure};

/// How much of the buffer stays allocated between writes.
const KEPT_BUFFER: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct UnixSocket {
    path: PathBuf,
}

impl UnixSocket {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

impl Wire for UnixSocket {
    type Reader = FrameReader<OwnedReadHalf>;
    type Writer = FrameWriter<OwnedWriteHalf>;

    /// The kernel reports when the server has disconnected.
    const PINGS: bool = false;

    async fn open(&self) -> Result<(Self::Reader, Self::Writer), Error> {
        let stream = UnixStream::connect(&self.path).await;
        let stream = stream.map_err(|why| {
            let why = format!("no connection to {}: {why}", self.path.display());
            Error::Unreachable(why.into())
        })?;
        let (reader, writer) = stream.into_split();
        Ok((FrameReader::new(reader), FrameWriter::new(writer)))
    }

    /// The number is appended to the request id, so that the id is still found in the server's logs.
    fn encode(number: u64, mut request: Request<'_>) -> Result<String, Error> {
        let id = format!("{}.{number}", request.id);
        request.id = RequestId::try_from(id).map_err(|why| Error::InvalidRequest(why.into()))?;
        let frame =
            serde_json::to_string(&request).map_err(|why| Error::InvalidRequest(why.into()))?;
        match u32::try_from(frame.len()) {
            Ok(_) => Ok(frame),
            Err(_) => Err(Error::InvalidRequest(
                "the request is larger than 4 GiB".into(),
            )),
        }
    }
}

/// The id of the request, and the number that was appended to it.
fn split(id: &str) -> Option<(RequestId, u64)> {
    let (id, number) = id.rsplit_once('.')?;
    Some((id.parse().ok()?, number.parse().ok()?))
}

pub(crate) struct FrameReader<R> {
    frames: FramedRead<R, LengthDelimitedCodec>,
    is_new: bool,
}

impl<R: AsyncRead> FrameReader<R> {
    pub(super) fn new(reader: R) -> Self {
        let codec = LengthDelimitedCodec::builder()
            .max_frame_length(MAX_ANSWER_BYTES)
            .new_codec();
        Self {
            frames: FramedRead::new(reader, codec),
            is_new: true,
        }
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Reader for FrameReader<R> {
    async fn next(&mut self) -> Result<Incoming, End> {
        let frame = match self.frames.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(End::Broken(broken(&error))),
            None => return Err(End::Broken("the connection ended".to_owned())),
        };
        let incoming = decode(&frame);
        match std::mem::take(&mut self.is_new).then(|| refusal(&incoming)) {
            Some(Some(why)) => Err(End::Refused(why)),
            _ => Ok(incoming),
        }
    }
}

fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => format!("an answer is larger than {MAX_ANSWER_BYTES} bytes"),
        _ => format!("the connection broke: {error}"),
    }
}

/// The answer of a full server, which it sends before it reads anything.
fn refusal(first: &Incoming) -> Option<String> {
    let Incoming::Answer {
        number: None,
        answer: Ok(response),
    } = first
    else {
        return None;
    };
    let failure = Failure::check(response.clone()).err()?;
    let is_unavailable = *failure.code() == ErrorCode::Unavailable;
    is_unavailable.then(|| format!("the server accepts no connection: {failure}"))
}

fn decode(frame: &[u8]) -> Incoming {
    let (number, answer) = match Response::parse(frame) {
        Ok(response) => match response.id().map(|id| split(id.as_str())) {
            None => (None, Ok(response)),
            Some(Some((id, number))) => (Some(number), Ok(response.with_id(id))),
            Some(None) => {
                tracing::warn!("a server answered a request that was not sent");
                return Incoming::Other;
            }
        },
        // An invalid answer still belongs to its call.
        Err(why) => {
            let id = serde_json::from_slice::<OnlyId>(frame).ok();
            let split = id.and_then(|OnlyId { id }| split(&id?));
            (
                split.map(|(_, number)| number),
                Err(Error::Protocol(why.into())),
            )
        }
    };
    Incoming::Answer { number, answer }
}

#[derive(Deserialize)]
struct OnlyId {
    id: Option<String>,
}

pub(crate) struct FrameWriter<W> {
    stream: W,
    buffer: Vec<u8>,
}

impl<W> FrameWriter<W> {
    pub(super) fn new(stream: W) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> Writer for FrameWriter<W> {
    async fn write(
        &mut self,
        frames: &mut Vec<String>,
        begun: impl FnOnce() + Send,
    ) -> Result<(), Cause> {
        self.buffer.clear();
        for frame in frames.drain(..) {
            let length = u32::try_from(frame.len())?;
            self.buffer.extend_from_slice(&length.to_be_bytes());
            self.buffer.extend_from_slice(frame.as_bytes());
        }
        // If the first write fails, nothing was sent.
        let written = self.stream.write(&self.buffer).await?;
        begun();
        self.stream.write_all(&self.buffer[written..]).await?;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BUFFER);
        Ok(())
    }
}
