//! All requests over one WebSocket, which is opened when it is needed and again after it broke.

mod connection;
mod frame;
mod open;

use forrst_protocol::{Request, Response};
use tokio::sync::Mutex;
use url::Url;

use self::connection::Connection;
use self::open::Opener;
use super::Access;
use crate::Error;

#[derive(Debug)]
pub(crate) struct WebSocket {
    opener: Opener,
    /// Locked while it is opened, so that many callers do not open many.
    current: Mutex<Option<Connection>>,
}

impl WebSocket {
    pub(super) fn new(url: Url, access: Access) -> Self {
        Self {
            opener: Opener::new(url, access),
            current: Mutex::new(None),
        }
    }

    pub(super) async fn send(&self, request: &Request<'_>) -> Result<Response, Error> {
        let connection = self.connection().await?;
        let answer = connection.call(request).await?;
        Response::parse(answer.get().as_bytes()).map_err(|why| Error::Protocol(why.into()))
    }

    /// Opens another connection for what comes next. What is under way stays where it is.
    pub(super) fn retire(&self) {
        // Where it is locked, somebody opens another one already.
        if let Ok(mut current) = self.current.try_lock() {
            current.take();
        }
    }

    async fn connection(&self) -> Result<Connection, Error> {
        let mut current = self.current.lock().await;
        match &*current {
            Some(connection) if connection.is_open() => Ok(connection.clone()),
            _ => {
                let connection = Connection::start(self.opener.open().await?);
                Ok(current.insert(connection).clone())
            }
        }
    }
}
