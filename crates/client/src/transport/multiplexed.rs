//! A transport that sends all requests over one connection, which is opened when it is needed, and again after it broke.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forrst_protocol::Request;
use tokio::time::timeout;

use super::connection::Connection;
use super::wire::{Answer, Wire};
use crate::Error;

#[derive(Debug)]
pub(crate) struct Multiplexed<W> {
    wire: W,
    connect_timeout: Duration,
    current: Mutex<Option<Arc<Connection>>>,
    /// Locked while a connection is opened, so that concurrent callers open only one.
    opening: tokio::sync::Mutex<()>,
}

impl<W: Wire> Multiplexed<W> {
    pub(super) fn new(wire: W, connect_timeout: Duration) -> Self {
        Self {
            wire,
            connect_timeout,
            current: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    pub(super) async fn send(&self, request: Request<'_>) -> Answer {
        let connection = self.connection().await?;
        connection.call::<W>(request).await
    }

    /// Lets the next request open another connection. Requests under way stay on the old one.
    pub(super) fn retire(&self) {
        self.current().take();
    }

    async fn connection(&self) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let _opening = self.opening.lock().await;
        // Another caller may have opened one meanwhile.
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let opened = timeout(self.connect_timeout, self.wire.open()).await;
        let (reader, writer) = opened.unwrap_or_else(|_| {
            let why = format!("not connected within {:?}", self.connect_timeout);
            Err(Error::Unreachable(why.into()))
        })?;
        let connection = Arc::new(Connection::start::<W>(reader, writer));
        *self.current() = Some(connection.clone());
        Ok(connection)
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        let current = self.current();
        let connection = current.as_ref();
        connection.filter(|current| current.is_open()).cloned()
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
