//! Parses responses. They may come from any server, so an illegal response is an error that says what is wrong with it.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::value::RawValue;

use super::{ExtensionData, Response};
use crate::{
    Errors, PROTOCOL_NAME, RawObject, RequestId, UnsupportedVersion, Urn, Version, negotiate,
};

/// Why a body is not a [`Response`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidResponse {
    /// It is not JSON, or a part of it has the wrong form.
    #[error("the response cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// Its `protocol.name` is that of another protocol.
    #[error("`protocol.name` must be \"forrst\", found {0:?}")]
    OtherProtocol(String),
    /// Its version of the protocol is not supported.
    #[error(transparent)]
    UnsupportedVersion(#[from] UnsupportedVersion),
    /// It has both errors and a result.
    #[error("the response has `errors`, so its `result` must be null")]
    ResultAndErrors,
    /// It has neither errors nor a result.
    #[error("the response has neither `result` nor `errors`")]
    NeitherResultNorErrors,
    /// It has a result, and does not say for which request.
    #[error("the response has a result, so its `id` must not be null")]
    ResultWithoutId,
}

#[derive(serde::Deserialize)]
struct Wire {
    protocol: WireProtocol,
    // Naming the function makes the member required: a derived `Option` could also be missing.
    #[serde(deserialize_with = "Option::deserialize")]
    id: Option<RequestId>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    errors: Option<Errors>,
    #[serde(default)]
    extensions: Vec<WireExtension>,
    #[serde(default)]
    meta: WireMeta,
}

#[derive(serde::Deserialize)]
struct WireProtocol {
    name: String,
    version: Version,
}

#[derive(serde::Deserialize)]
struct WireExtension {
    urn: Urn,
    data: Option<RawObject<'static>>,
}

#[derive(Default, serde::Deserialize)]
struct WireMeta {
    node: Option<String>,
}

/// A member that is present, where null is a value and not absence.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

pub(super) fn response(body: &[u8]) -> Result<Response, InvalidResponse> {
    Response::try_from(serde_json::from_slice::<Wire>(body)?)
}

impl TryFrom<Wire> for Response {
    type Error = InvalidResponse;

    fn try_from(wire: Wire) -> Result<Self, Self::Error> {
        if wire.protocol.name != PROTOCOL_NAME {
            return Err(InvalidResponse::OtherProtocol(wire.protocol.name));
        }
        negotiate(&wire.protocol.version)?;
        let outcome = match (wire.result, wire.errors) {
            (None, None) => return Err(InvalidResponse::NeitherResultNorErrors),
            (Some(_), None) if wire.id.is_none() => return Err(InvalidResponse::ResultWithoutId),
            (Some(result), None) => Ok(result),
            (Some(result), Some(_)) if result.get() != "null" => {
                return Err(InvalidResponse::ResultAndErrors);
            }
            (_, Some(errors)) => Err(errors),
        };
        Ok(Self {
            protocol: wire.protocol.version,
            id: wire.id,
            outcome,
            extensions: wire
                .extensions
                .into_iter()
                .filter_map(WireExtension::with_data)
                .collect(),
            node: wire.meta.node.map(Into::into),
        })
    }
}

impl WireExtension {
    /// An extension without data is not kept.
    fn with_data(self) -> Option<ExtensionData> {
        let urn = self.urn;
        self.data.map(|data| ExtensionData { urn, data })
    }
}

impl<'de> Deserialize<'de> for Response {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Wire::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(mut response: Value) -> Result<Response, InvalidResponse> {
        response["protocol"] = json!({"name": "forrst", "version": "0.1.0"});
        Response::parse(response.to_string().as_bytes())
    }

    #[test]
    fn unknown_members_are_ignored_everywhere() {
        let response = read(json!({
            "id": "r", "result": [1], "async": {}, "meta": {"node": "n", "region": "eu"},
            "extensions": [{"urn": "urn:forrst:ext:retry", "data": {"a": 1}, "x": 1}],
        }))
        .unwrap();
        assert_eq!(response.result().unwrap().get(), "[1]");
        assert_eq!(response.node(), Some("n"));
        assert_eq!(
            response.extension("urn:forrst:ext:retry").unwrap().get(),
            r#"{"a":1}"#
        );
        assert!(response.extension("urn:forrst:ext:other").is_none());
    }

    #[test]
    fn a_null_result_is_a_success_when_there_are_no_errors() {
        assert_eq!(
            read(json!({"id": "r", "result": null}))
                .unwrap()
                .result()
                .unwrap()
                .get(),
            "null"
        );
    }

    #[test]
    fn illegal_combinations_are_rejected() {
        let error = json!({"code": "FORBIDDEN", "message": "no"});
        for (response, reason) in [
            (
                json!({"id": "r", "result": 1, "errors": [error]}),
                "must be null",
            ),
            (
                json!({"id": "r", "result": null, "errors": []}),
                "at least one error",
            ),
            (
                json!({"id": "r", "result": 1, "errors": null}),
                "invalid type: null",
            ),
            (json!({"id": "r"}), "neither"),
            (json!({"id": null, "result": 1}), "`id` must not be null"),
            (json!({"result": 1}), "missing field `id`"),
            (json!({"id": "", "result": 1}), "must not be empty"),
            (
                json!({"id": "r", "result": 1, "extensions": [{"urn": "lock"}]}),
                "URN",
            ),
            (
                json!({"id": "r", "result": 1, "extensions": [{"urn": "urn:ab:c", "data": 1}]}),
                "expected an object",
            ),
        ] {
            let found = read(response.clone()).unwrap_err().to_string();
            assert!(found.contains(reason), "{response}: {found}");
        }
    }

    #[test]
    fn a_failure_may_leave_out_its_result() {
        let response =
            read(json!({"id": null, "errors": [{"code": "FORBIDDEN", "message": "no"}]}));
        assert_eq!(response.unwrap().http_status(), 403);
    }

    #[test]
    fn messages_of_other_protocols_are_rejected() {
        let read = |protocol: Value| {
            let text = json!({"protocol": protocol, "id": "r", "result": 1}).to_string();
            Response::parse(text.as_bytes()).unwrap_err()
        };
        assert!(matches!(
            read(json!({"name": "soap", "version": "0.1.0"})),
            InvalidResponse::OtherProtocol(_)
        ));
        assert!(matches!(
            read(json!({"name": "forrst", "version": "1.0.0"})),
            InvalidResponse::UnsupportedVersion(_)
        ));
        assert!(matches!(
            read(json!("forrst/0.1")),
            InvalidResponse::Unreadable(_)
        ));
        assert!(matches!(
            Response::parse(b"<html>").unwrap_err(),
            InvalidResponse::Unreadable(_)
        ));
    }

    #[test]
    fn another_minor_version_of_the_protocol_is_kept() {
        let text = r#"{"protocol":{"name":"forrst","version":"0.2.0"},"id":"r","result":1}"#;
        let response: Response = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&response).unwrap(), text);
    }
}
