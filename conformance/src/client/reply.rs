//! How the stub replies to a request.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{SecondsFormat, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::view::{lock_of, milliseconds};
use crate::rules::status_of_code;

/// How the stub replies to a request.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) kind: Kind,
    pub(super) delay: Duration,
    /// By function: it is sent no earlier than this many milliseconds after the last request to it.
    pub(super) not_before: BTreeMap<String, u64>,
    /// The id of the answer, if it is not that of the request.
    id: Option<Value>,
    /// For this long after the reply, connections are refused.
    pub(super) down: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// The result of a function, and the lock that it ran under.
    Result(Value, Option<Grant>),
    Error(Failure),
    /// The answer to `acquire`.
    Grant(Grant),
    Extended,
    Released,
    Withdrawn(String),
    Http(HttpReply),
    /// The request is read, and the connection closed.
    Disconnect,
    /// The connection is closed in the middle of a successful answer.
    CutOff,
    Silence,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grant {
    fence: String,
    ttl_remaining_ms: Option<u64>,
    #[serde(default)]
    elapsed_ms: u64,
    /// Without the members that the specification's extension does not have.
    #[serde(default)]
    bare: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Failure {
    code: String,
    #[serde(default)]
    details: Map<String, Value>,
    /// The data of the lock, if the answer has any.
    acquired: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpReply {
    pub(super) status: u16,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) body: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplyFile {
    result: Option<Value>,
    lock: Option<Grant>,
    error: Option<Failure>,
    grant: Option<Grant>,
    #[serde(default)]
    extended: bool,
    #[serde(default)]
    released: bool,
    withdrawn: Option<String>,
    http: Option<HttpReply>,
    #[serde(default)]
    disconnect: bool,
    #[serde(default)]
    cut_off: bool,
    #[serde(default)]
    silence: bool,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    not_before: BTreeMap<String, u64>,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    down_ms: Option<u64>,
}

/// Tells a null from a member that is not there.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl TryFrom<ReplyFile> for Reply {
    type Error = String;

    fn try_from(file: ReplyFile) -> Result<Self, String> {
        let lock = file.lock;
        let kinds = [
            file.result.map(|result| Kind::Result(result, lock)),
            file.error.map(Kind::Error),
            file.grant.map(Kind::Grant),
            file.extended.then_some(Kind::Extended),
            file.released.then_some(Kind::Released),
            file.withdrawn.map(Kind::Withdrawn),
            file.http.map(Kind::Http),
            file.disconnect.then_some(Kind::Disconnect),
            file.cut_off.then_some(Kind::CutOff),
            file.silence.then_some(Kind::Silence),
        ];
        let mut kinds = kinds.into_iter().flatten();
        match (kinds.next(), kinds.next()) {
            (Some(kind), None) => Ok(Self {
                kind,
                delay: Duration::from_millis(file.delay_ms),
                not_before: file.not_before,
                id: file.id,
                down: file.down_ms.map(Duration::from_millis),
            }),
            _ => Err("a `reply` is exactly one of `result`, `error`, `grant`, `extended`, `released`, `withdrawn`, `http`, `disconnect`, `cut_off`, `silence`".to_owned()),
        }
    }
}

impl Reply {
    pub(super) fn error(code: &str) -> Self {
        let failure = Failure {
            code: code.to_owned(),
            details: Map::new(),
            acquired: None,
        };
        Self {
            kind: Kind::Error(failure),
            delay: Duration::ZERO,
            not_before: BTreeMap::new(),
            id: None,
            down: None,
        }
    }

    pub(super) fn silence() -> Self {
        Self {
            kind: Kind::Silence,
            ..Self::error("")
        }
    }

    pub(super) fn pong() -> Self {
        let pong = json!({"status": "healthy", "timestamp": timestamp_in(0)});
        Self {
            kind: Kind::Result(pong, None),
            ..Self::error("")
        }
    }

    /// The answer as HTTP; `None` for replies that are not one.
    pub(super) fn http(&self, request: &Value) -> Option<HttpReply> {
        let arguments = &request["call"]["arguments"];
        let key = || arguments["key"].clone();
        let mut body = json!({"protocol": {"name": "forrst", "version": "0.1.0"}, "id": self.id.as_ref().unwrap_or(&request["id"])});
        let mut status = 200;
        let mut headers = BTreeMap::new();
        match &self.kind {
            Kind::Http(reply) => return Some(reply.clone()),
            Kind::Disconnect | Kind::Silence => return None,
            Kind::CutOff => body["result"] = Value::Null,
            Kind::Grant(grant) => body["result"] = grant.data(arguments, None),
            Kind::Result(result, grant) => {
                body["result"] = result.clone();
                if let (Some(grant), Some(lock)) = (grant, lock_of(request)) {
                    let function = request["call"]["function"].as_str();
                    let data = grant.data(&lock["options"], function);
                    body["extensions"] = json!([{"urn": lock["urn"], "data": data}]);
                }
            }
            Kind::Extended => {
                let ttl = milliseconds(&arguments["ttl"]).unwrap_or_default();
                body["result"] = json!({"key": key(), "extended": true, "expires_at": timestamp_in(ttl), "fence": arguments["fence"]});
            }
            Kind::Released => body["result"] = json!({"released": true, "key": key()}),
            Kind::Withdrawn(was) => {
                body["result"] = json!({"withdrawn": true, "key": key(), "was": was});
            }
            Kind::Error(failure) => {
                status = status_of_code(&failure.code);
                body["result"] = Value::Null;
                let mut error = json!({"code": failure.code, "message": "as the vector wants it"});
                if !failure.details.is_empty() {
                    error["details"] = failure.details.clone().into();
                }
                body["errors"] = json!([error]);
                if let (Some(acquired), Some(lock)) = (failure.acquired, lock_of(request)) {
                    let data = json!({"key": lock["options"]["key"], "acquired": acquired});
                    body["extensions"] = json!([{"urn": lock["urn"], "data": data}]);
                }
                if matches!(status, 423 | 429 | 503) {
                    let after = failure.details.get("retry_after").and_then(milliseconds);
                    let seconds = after.unwrap_or_default().div_ceil(1000);
                    headers.insert("retry-after".to_owned(), seconds.to_string());
                }
            }
        }
        body["meta"] = json!({"node": "stub"});
        headers.insert("content-type".to_owned(), "application/json".to_owned());
        Some(HttpReply {
            status,
            headers,
            body: body.to_string(),
        })
    }
}

impl Grant {
    /// The data of a lock that was granted to these arguments of `acquire`, or options of a lock around this function.
    fn data(&self, options: &Value, locked: Option<&str>) -> Value {
        let ttl = milliseconds(&options["ttl"]).unwrap_or_default();
        let left = self.ttl_remaining_ms.unwrap_or(ttl);
        let is_global = match locked {
            Some(_) => options["scope"] == "global",
            None => options["function"].is_null(),
        };
        let function = locked.or(options["function"].as_str()).unwrap_or_default();
        let full = |key: &Value| match (is_global, key.as_str().unwrap_or_default()) {
            (true, key) => format!("lock:{key}"),
            (false, key) => format!("lock:{function}:{key}"),
        };
        let mut data = json!({
            "acquired": true,
            "owner": options.get("owner").cloned().unwrap_or_else(|| json!("made-up-by-the-server")),
            "scope": if is_global { "global" } else { "function" },
            "expires_at": timestamp_in(left),
            "fence": self.fence,
        });
        if let Some(keys) = options["keys"].as_array() {
            let keys = keys.iter().map(|entry| entry.get("key").unwrap_or(entry));
            data["full_keys"] = keys.clone().map(full).collect();
            data["keys"] = keys.cloned().collect();
        } else {
            data["full_key"] = full(&options["key"]).into();
            data["key"] = options["key"].clone();
        }
        for kind in ["mode", "limit"] {
            if let Some(value) = options.get(kind) {
                data[kind] = value.clone();
            }
        }
        if !self.bare {
            data["ttl_remaining_ms"] = left.into();
            data["elapsed_ms"] = self.elapsed_ms.into();
        }
        data
    }
}

fn timestamp_in(milliseconds: u64) -> String {
    let span = i64::try_from(milliseconds)
        .ok()
        .and_then(TimeDelta::try_milliseconds);
    let at = Utc::now() + span.unwrap_or_default();
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}
