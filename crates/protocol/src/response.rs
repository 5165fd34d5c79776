//! A response: a result, or at least one error, and the data of the extensions that the request asked for. A server writes it
//! straight into the buffer that is sent.

mod wire;

use std::sync::Arc;

use serde::Serialize;
use serde::ser::{Error as _, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::version::PROTOCOL_VERSION_TEXT;
use crate::write::{push_json, push_string};
use crate::{Errors, PROTOCOL_VERSION, RawObject, RequestId, Urn, Version};

pub use wire::InvalidResponse;

/// The answer to a request: a result, or at least one error, and never both.
///
/// ```
/// use forrst_protocol::{ErrorCode, ErrorObject, Response};
///
/// let failed = Response::failure(None, ErrorObject::new(ErrorCode::Unavailable, "Shutting down"));
/// assert_eq!(failed.http_status(), 503);
///
/// let read = Response::parse(&serde_json::to_vec(&failed)?)?;
/// assert_eq!(read.result().unwrap_err(), failed.result().unwrap_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Response {
    protocol: Version,
    id: Option<RequestId>,
    outcome: Result<Box<RawValue>, Errors>,
    extensions: Vec<ExtensionData>,
    node: Option<Arc<str>>,
}

/// What an extension adds to a response.
#[derive(Debug, Clone)]
pub struct ExtensionData {
    urn: Urn,
    data: RawObject<'static>,
}

impl ExtensionData {
    /// The data of the extension of that name.
    pub fn new(urn: Urn, data: RawObject<'static>) -> Self {
        Self { urn, data }
    }

    /// Which extension, by the name that the request used for it.
    pub fn urn(&self) -> &Urn {
        &self.urn
    }

    /// The data.
    pub fn data(&self) -> &RawObject<'static> {
        &self.data
    }
}

impl Response {
    /// The response of a function that succeeded. Fails only if the value cannot be written as JSON.
    pub fn success<T: Serialize + ?Sized>(
        id: RequestId,
        result: &T,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self::success_raw(id, to_raw_value(result)?))
    }

    /// The response of a function whose result is JSON already.
    pub fn success_raw(id: RequestId, result: Box<RawValue>) -> Self {
        Self::from_outcome(Some(id), Ok(result))
    }

    /// The response to a request that failed, with its id where that could be read.
    pub fn failure(id: Option<RequestId>, errors: impl Into<Errors>) -> Self {
        Self::from_outcome(id, Err(errors.into()))
    }

    fn from_outcome(id: Option<RequestId>, outcome: Result<Box<RawValue>, Errors>) -> Self {
        Self {
            protocol: PROTOCOL_VERSION.clone(),
            id,
            outcome,
            extensions: Vec::new(),
            node: None,
        }
    }

    /// Parses a response from the body of a message.
    pub fn parse(body: &[u8]) -> Result<Self, InvalidResponse> {
        wire::response(body)
    }

    /// Adds the data of an extension.
    #[must_use]
    pub fn with_extension(mut self, urn: Urn, data: RawObject<'static>) -> Self {
        self.extensions.push(ExtensionData { urn, data });
        self
    }

    /// Sets the data of all extensions.
    #[must_use]
    pub fn with_extensions(mut self, extensions: Vec<ExtensionData>) -> Self {
        self.extensions = extensions;
        self
    }

    /// Sets the id of another request, for proxies that forward requests under ids of their own.
    #[must_use]
    pub fn with_id(mut self, id: RequestId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the node that answered.
    #[must_use]
    pub fn with_node(mut self, node: impl Into<Arc<str>>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// The version of the protocol that the response is written in.
    pub fn protocol_version(&self) -> &Version {
        &self.protocol
    }

    /// The id of the request, unless it could not be read.
    pub fn id(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// The result as JSON text, or what went wrong.
    pub fn result(&self) -> Result<&RawValue, &Errors> {
        self.outcome.as_deref()
    }

    /// The result as JSON text, or what went wrong, by value.
    pub fn into_result(self) -> Result<Box<RawValue>, Errors> {
        self.outcome
    }

    /// The data of the extensions.
    pub fn extensions(&self) -> &[ExtensionData] {
        &self.extensions
    }

    /// The data of the extension of that name.
    pub fn extension(&self, urn: &str) -> Option<&RawObject<'static>> {
        self.extensions
            .iter()
            .find(|extension| extension.urn.as_str() == urn)
            .map(ExtensionData::data)
    }

    /// The node that answered, if the response names it.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The HTTP status of this response.
    pub fn http_status(&self) -> u16 {
        match &self.outcome {
            Ok(_) => 200,
            Err(errors) => errors.http_status(),
        }
    }
}

impl Response {
    /// Appends the response as JSON.
    pub fn write_json(&self, text: &mut String) {
        text.push_str(r#"{"protocol":{"name":"forrst","version":"#);
        if self.protocol == PROTOCOL_VERSION {
            // Nearly every response has this one.
            push_string(text, PROTOCOL_VERSION_TEXT);
        } else {
            push_string(text, &self.protocol.to_string());
        }
        text.push_str(r#"},"id":"#);
        match &self.id {
            Some(id) => push_string(text, id.as_str()),
            None => text.push_str("null"),
        }
        text.push_str(r#","result":"#);
        match &self.outcome {
            Ok(result) => text.push_str(result.get()),
            Err(errors) => {
                text.push_str(r#"null,"errors":"#);
                push_json(text, errors);
            }
        }
        if let [first, others @ ..] = self.extensions.as_slice() {
            text.push_str(r#","extensions":["#);
            first.write_json(text);
            for extension in others {
                text.push(',');
                extension.write_json(text);
            }
            text.push(']');
        }
        if let Some(node) = &self.node {
            text.push_str(r#","meta":{"node":"#);
            push_string(text, node);
            text.push('}');
        }
        text.push('}');
    }
}

impl ExtensionData {
    fn write_json(&self, text: &mut String) {
        text.push_str(r#"{"urn":"#);
        push_string(text, self.urn.as_str());
        text.push_str(r#","data":"#);
        text.push_str(self.data.get());
        text.push('}');
    }
}

impl Serialize for Response {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        self.write_json(&mut text);
        let raw: &RawValue = serde_json::from_str(&text).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorCode, ErrorObject};
    use serde_json::json;

    fn id() -> RequestId {
        "req_1".parse().unwrap()
    }

    #[test]
    fn success_has_a_result_and_no_errors() {
        let response = Response::success(id(), &json!({"a": 1})).unwrap();
        assert_eq!(
            serde_json::to_string(&response).unwrap(),
            r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_1","result":{"a":1}}"#
        );
        assert_eq!(response.http_status(), 200);
    }

    #[test]
    fn a_function_that_returns_nothing_succeeds_with_null() {
        let response = Response::success(id(), &()).unwrap();
        assert_eq!(
            serde_json::to_string(&response).unwrap(),
            r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_1","result":null}"#
        );
        assert_eq!(response.result().unwrap().get(), "null");
    }

    #[test]
    fn failure_has_a_null_result_and_all_parts_in_their_order() {
        let urn: Urn = "urn:forrst:ext:atomicLock".parse().unwrap();
        let data = RawObject::from_serialize(&json!({"acquired": false})).unwrap();
        let response = Response::failure(
            None,
            ErrorObject::new(ErrorCode::LockTimeout, "Lock acquisition timed out"),
        )
        .with_extension(urn, data)
        .with_node("node-1");
        assert_eq!(
            serde_json::to_string(&response).unwrap(),
            concat!(
                r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":null,"result":null,"#,
                r#""errors":[{"code":"LOCK_TIMEOUT","message":"Lock acquisition timed out"}],"#,
                r#""extensions":[{"urn":"urn:forrst:ext:atomicLock","data":{"acquired":false}}],"#,
                r#""meta":{"node":"node-1"}}"#
            )
        );
        assert_eq!(response.http_status(), 423);
    }
}
