//! What is measured: a request that is sent to a server over a transport, with the codec of that transport.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::{Callers, Measured, Pace, Watched, drive};
use crate::serve::{Address, ServerProcess};
use crate::wire::{Codec, Frames, Http1, Http2, SLOT, WebSocket};

/// How requests are sent to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Http1,
    /// JSON-RPC over HTTP/1.1.
    Rpc,
    Http2,
    WebSocket,
    /// Frames over TCP.
    Tcp,
    Unix,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Rpc => "JSON-RPC",
            Self::Http2 => "HTTP/2",
            Self::WebSocket => "WebSocket",
            Self::Tcp => "TCP frames",
            Self::Unix => "unix socket",
        }
    }

    /// Whether a connection can have many requests in flight.
    pub(crate) fn is_multiplexed(self) -> bool {
        !matches!(self, Self::Http1 | Self::Rpc)
    }
}

/// A request, the server that it is sent to, and the transport.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) served: Arc<ServerProcess>,
    pub(crate) transport: Transport,
    pub(crate) request: Value,
    /// Whether each caller has its own connection, even if they could share one.
    pub(crate) connection_each: bool,
    /// The process of the store.
    pub(crate) store: Option<u32>,
}

impl Subject {
    pub(crate) fn new(served: &Arc<ServerProcess>, transport: Transport, request: Value) -> Self {
        Self {
            served: served.clone(),
            transport,
            request,
            connection_each: !transport.is_multiplexed(),
            store: None,
        }
    }

    pub(crate) async fn drive(
        &self,
        callers: usize,
        pace: Pace,
        duration: Duration,
    ) -> Result<Measured, String> {
        let callers = Callers {
            count: callers,
            share_connection: !self.connection_each,
        };
        let watched = Watched {
            server: Some(self.served.pid()),
            store: self.store,
        };
        let codec = || self.codec();
        drive(self.address(), &codec, callers, pace, duration, watched).await
    }

    fn address(&self) -> &Address {
        match self.transport {
            Transport::Unix => &self.served.unix,
            _ => &self.served.tcp,
        }
    }

    fn codec(&self) -> Box<dyn Codec> {
        match self.transport {
            Transport::Http1 => Box::new(Http1::post("/forrst", &self.request)),
            Transport::Rpc => {
                let call = json!({
                    "jsonrpc": "2.0", "id": SLOT, "method": "forrst.call", "params": self.request
                });
                Box::new(Http1::post("/rpc", &call))
            }
            Transport::Http2 => Box::new(Http2::post("/forrst", &self.request)),
            Transport::WebSocket => Box::new(WebSocket::call("/rpc", "forrst.call", &self.request)),
            Transport::Tcp | Transport::Unix => Box::new(Frames::new(&self.request)),
        }
    }
}
