//! Requests about locks that return a typed answer, and also the JSON of it, for programs that pass it on.

use std::fmt;
use std::pin::Pin;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Client, Error, Page};

/// A request about locks that may safely be repeated. It is sent when it is awaited, and returns the answer.
#[must_use = "a query is not sent until it is awaited"]
#[derive(Clone)]
pub struct Query<Out> {
    client: Client,
    function: &'static str,
    arguments: Value,
    read: fn(&RawValue) -> serde_json::Result<Out>,
}

impl<Out: DeserializeOwned> Query<Out> {
    pub(crate) fn new(client: Client, function: &'static str, arguments: Value) -> Self {
        Self {
            client,
            function,
            arguments,
            read: |json| Out::deserialize(json),
        }
    }
}

impl<Out> Query<Out> {
    /// Reads the answer in another way.
    pub(crate) fn read_by<Other>(
        self,
        read: fn(&RawValue) -> serde_json::Result<Other>,
    ) -> Query<Other> {
        Query {
            client: self.client,
            function: self.function,
            arguments: self.arguments,
            read,
        }
    }

    /// Returns the answer, and the JSON that the server sent, which may have members that this client does not know.
    ///
    /// # Errors
    ///
    /// As those of the query itself.
    pub async fn with_json(self) -> Result<(Out, Box<RawValue>), Error> {
        let json: Box<RawValue> = self.client.ask(self.function, &self.arguments).await?;
        let out = (self.read)(&json).map_err(|why| Error::Protocol(why.into()))?;
        Ok((out, json))
    }
}

impl Query<Page> {
    /// Leaves the locks of the page as the JSON that the server sent.
    pub fn raw(self) -> Query<Page<Box<RawValue>>> {
        self.read_by(|json| Page::deserialize(json))
    }
}

impl<Out: 'static> IntoFuture for Query<Out> {
    type Output = Result<Out, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.with_json().await?.0) })
    }
}

impl<Out> fmt::Debug for Query<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("function", &self.function)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}
