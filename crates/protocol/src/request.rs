//! A request: which function to call with which arguments, and the extensions to apply. A server gets it from
//! [`Request::parse`], a client builds it.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::version::Protocol;
use crate::{FunctionName, PROTOCOL_VERSION, RawObject, Rejection, RequestId, Urn, Version};

/// A request to call one function.
///
/// A server gets it from [`Request::parse`]; a client builds it:
///
/// ```
/// use forrst_protocol::{Duration, ExtensionRequest, RawObject, Request, Unit};
/// use serde_json::json;
///
/// let request = Request::new("req_001".parse()?, "payments.charge".parse()?)
///     .with_version("1.0.0".parse()?)
///     .with_arguments(RawObject::from_serialize(&json!({"amount": 100}))?)
///     .with_extension(
///         ExtensionRequest::new("urn:forrst:ext:atomicLock".parse()?).with_options(
///             RawObject::from_serialize(&json!({"key": "user:123", "ttl": Duration::new(30, Unit::Second)}))?,
///         ),
///     );
///
/// let body = serde_json::to_vec(&request)?;
/// assert_eq!(Request::parse(&body)?.call.function.as_str(), "payments.charge");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Request<'a> {
    // Not public, so that it is always a supported version.
    protocol: Version,
    /// The answer repeats it.
    pub id: RequestId,
    /// What to call.
    pub call: Call<'a>,
    /// What the caller passes on to the function, and to those that it calls in turn.
    pub context: Option<RawObject<'a>>,
    /// The extensions to apply, in any order.
    pub extensions: Vec<ExtensionRequest<'a>>,
}

/// The function to call.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// Its name.
    pub function: FunctionName,
    /// Its version; `None` means the highest stable one.
    pub version: Option<Version>,
    /// Its arguments, `{}` where none were sent.
    pub arguments: RawObject<'a>,
}

/// An extension that a request asks for.
#[derive(Debug, Clone)]
pub struct ExtensionRequest<'a> {
    /// Which extension.
    pub urn: Urn,
    /// Its options.
    pub options: Option<RawObject<'a>>,
    /// Whether the request has to fail if the server does not know the extension.
    pub required: bool,
}

impl<'a> Request<'a> {
    /// Parses a request from the body of a message, or says everything that is wrong with it.
    ///
    /// Arguments, context and options stay where they are in `body`. They are known to be JSON objects without
    /// repeated keys; nothing else about them is checked.
    ///
    /// # Errors
    ///
    /// A body that is not JSON has one error, `PARSE_ERROR`, with the byte where it stops being JSON. In one that is,
    /// all problems are found together, each with its pointer, 64 at most. The rejection has the
    /// request's id wherever there is exactly one and it is valid.
    pub fn parse(body: &'a [u8]) -> Result<Self, Rejection> {
        crate::parse::request(body)
    }

    /// A request to call a function without arguments.
    pub fn new(id: RequestId, function: FunctionName) -> Self {
        let call = Call {
            function,
            version: None,
            arguments: RawObject::default(),
        };
        Self::from_parts(PROTOCOL_VERSION.clone(), id, call)
    }

    pub(crate) fn from_parts(protocol: Version, id: RequestId, call: Call<'a>) -> Self {
        Self {
            protocol,
            id,
            call,
            context: None,
            extensions: Vec::new(),
        }
    }

    /// Calls this version of the function.
    #[must_use]
    pub fn with_version(mut self, version: Version) -> Self {
        self.call.version = Some(version);
        self
    }

    /// Passes arguments to the function.
    #[must_use]
    pub fn with_arguments(mut self, arguments: RawObject<'a>) -> Self {
        self.call.arguments = arguments;
        self
    }

    /// Sends this context.
    #[must_use]
    pub fn with_context(mut self, context: RawObject<'a>) -> Self {
        self.context = Some(context);
        self
    }

    /// Adds an extension.
    #[must_use]
    pub fn with_extension(mut self, extension: ExtensionRequest<'a>) -> Self {
        self.extensions.push(extension);
        self
    }

    /// The version of the protocol that the request is written in.
    pub fn protocol_version(&self) -> &Version {
        &self.protocol
    }

    /// Copies what is borrowed, so that the request may outlive its body.
    pub fn into_owned(self) -> Request<'static> {
        Request {
            protocol: self.protocol,
            id: self.id,
            call: self.call.into_owned(),
            context: self.context.map(RawObject::into_owned),
            extensions: self
                .extensions
                .into_iter()
                .map(ExtensionRequest::into_owned)
                .collect(),
        }
    }
}

impl Call<'_> {
    /// Copies what is borrowed, so that the call may outlive its body.
    pub fn into_owned(self) -> Call<'static> {
        Call {
            function: self.function,
            version: self.version,
            arguments: self.arguments.into_owned(),
        }
    }
}

impl<'a> ExtensionRequest<'a> {
    /// An extension without options that the server has to know.
    pub fn new(urn: Urn) -> Self {
        Self {
            urn,
            options: None,
            required: true,
        }
    }

    /// Sets the options.
    #[must_use]
    pub fn with_options(mut self, options: RawObject<'a>) -> Self {
        self.options = Some(options);
        self
    }

    /// Lets the request go on if the server does not know the extension.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Copies what is borrowed, so that the extension may outlive its body.
    pub fn into_owned(self) -> ExtensionRequest<'static> {
        ExtensionRequest {
            urn: self.urn,
            options: self.options.map(RawObject::into_owned),
            required: self.required,
        }
    }
}

impl Serialize for Request<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut request = serializer.serialize_struct("Request", 5)?;
        request.serialize_field("protocol", &Protocol(&self.protocol))?;
        request.serialize_field("id", &self.id)?;
        request.serialize_field("call", &self.call)?;
        if let Some(context) = &self.context {
            request.serialize_field("context", context)?;
        }
        if !self.extensions.is_empty() {
            request.serialize_field("extensions", &self.extensions)?;
        }
        request.end()
    }
}

impl Serialize for Call<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut call = serializer.serialize_struct("Call", 3)?;
        call.serialize_field("function", &self.function)?;
        if let Some(version) = &self.version {
            call.serialize_field("version", version)?;
        }
        call.serialize_field("arguments", &self.arguments)?;
        call.end()
    }
}

impl Serialize for ExtensionRequest<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut extension = serializer.serialize_struct("ExtensionRequest", 3)?;
        extension.serialize_field("urn", &self.urn)?;
        if let Some(options) = &self.options {
            extension.serialize_field("options", options)?;
        }
        if !self.required {
            extension.serialize_field("required", &false)?;
        }
        extension.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bare_request_has_no_more_than_it_needs() {
        let request = Request::new("r".parse().unwrap(), "a.b".parse().unwrap());
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"r","call":{"function":"a.b","arguments":{}}}"#
        );
    }

    #[test]
    fn a_full_request_is_written_in_the_order_of_the_contract() {
        let object = |value| RawObject::from_serialize(&value).unwrap();
        let request = Request::new("r".parse().unwrap(), "a.b".parse().unwrap())
            .with_version(Version::new(2, 0, 0))
            .with_arguments(object(json!({"x": 1})))
            .with_context(object(json!({"caller": "c"})))
            .with_extension(
                ExtensionRequest::new("urn:forrst:ext:retry".parse().unwrap())
                    .with_options(object(json!({})))
                    .optional(),
            );
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            concat!(
                r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"r","#,
                r#""call":{"function":"a.b","version":"2.0.0","arguments":{"x":1}},"#,
                r#""context":{"caller":"c"},"#,
                r#""extensions":[{"urn":"urn:forrst:ext:retry","options":{},"required":false}]}"#
            )
        );
    }
}
