//! What service authors can use besides functions: application state, stages of extensions, values that extensions
//! pass on, and a server that is a [`tower::Service`].

use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use forrst_protocol::{ErrorCode, Errors, Urn};
use forrst_server::{
    Around, Context, Extension, ExtensionCall, FunctionError, Next, Outcome, ServerBuilder, Stage,
};
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use crate::pipeline::probe::{Probe, Seen, failed};
use crate::wire::{LOCK, ask, seconds};

const OUTER: &str = "urn:acme:forrst:ext:outer";
const INNER: &str = "urn:acme:forrst:ext:inner";

/// An extension that notes the outcome of the inner call, and passes its own name on.
struct Noting {
    urn: &'static str,
    stage: Stage,
    seen: Seen,
}

/// What [`Noting`] passes on.
struct Tenant(&'static str);

impl Extension for Noting {
    fn urn(&self) -> &str {
        self.urn
    }

    fn stage(&self) -> Stage {
        self.stage
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        Ok(Box::new(NotingCall {
            urn: call.urn.clone(),
            stage: self.stage,
            seen: self.seen.clone(),
        }))
    }
}

struct NotingCall {
    urn: Urn,
    stage: Stage,
    seen: Seen,
}

#[async_trait]
impl Around for NotingCall {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        let (stage, locked) = (self.stage, context.lease().is_some());
        let outcome = next.run(context.with(Tenant("acme"))).await;
        let code = outcome.result.as_ref().err();
        let code = code.map_or("OK".to_owned(), |e| e.as_slice()[0].code.to_string());
        self.seen.note(format!("{stage:?} {locked} {code}"));
        outcome.with_data(self.urn, &json!({"stage": format!("{stage:?}")}))
    }
}

fn noting(builder: ServerBuilder, seen: &Seen) -> ServerBuilder {
    let extension = |urn, stage| Noting {
        urn,
        stage,
        seen: seen.clone(),
    };
    let tenant = async |context: Context, _: Map<String, Value>| {
        Ok(context.get::<Tenant>().map(|tenant| tenant.0))
    };
    // Registered in the other order: the stage decides.
    builder
        .extension(extension(INNER, Stage::InsideLock))
        .extension(extension(OUTER, Stage::BeforeLock))
        .function("test.tenant", "1.0.0", tenant)
}

#[tokio::test(start_paused = true)]
async fn an_extension_before_the_lock_sees_a_refusal_and_one_inside_does_not_run() {
    let probe = Probe::with(noting);
    let key = json!({"key": "k", "ttl": seconds(60), "auto_release": false});
    let request = ask("test.tenant")
        .with(INNER, Value::Null)
        .with(OUTER, Value::Null)
        .lock(key);
    let answer = probe.call(&request).await;
    assert_eq!(answer["result"], "acme", "{answer}");
    assert_eq!(urns(&answer), [INNER, OUTER, LOCK]);
    assert!(probe.seen.has_noted("InsideLock true OK"));
    assert!(probe.seen.has_noted("BeforeLock false OK"));

    let answer = probe.call(&request).await;
    assert_eq!(answer["errors"][0]["code"], "LOCK_ACQUISITION_FAILED");
    assert_eq!(urns(&answer), [OUTER, LOCK]);
    assert!(
        probe
            .seen
            .has_noted("BeforeLock false LOCK_ACQUISITION_FAILED")
    );
}

/// The URNs of the extensions in an answer.
fn urns(answer: &Value) -> Vec<&str> {
    let extensions = answer["extensions"].as_array().into_iter().flatten();
    extensions.filter_map(|e| e["urn"].as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_value_of_an_extension_is_visible_only_inside_of_it() {
    let probe = Probe::with(noting);
    for (request, expected) in [
        (ask("test.tenant").with(INNER, Value::Null), json!("acme")),
        (ask("test.tenant"), Value::Null),
    ] {
        let answer = probe.call(&request).await;
        assert_eq!(answer["result"], expected, "{answer}");
    }
}

/// An extension that delays the call.
struct Slow;

impl Extension for Slow {
    fn urn(&self) -> &str {
        OUTER
    }

    fn stage(&self) -> Stage {
        Stage::BeforeLock
    }

    fn prepare(&self, _: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        Ok(Box::new(Slow))
    }
}

#[async_trait]
impl Around for Slow {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        // It blocks its thread, so that no timer is checked before the function would run.
        let left = context.remaining().unwrap_or_default();
        std::thread::sleep(left + Duration::from_millis(1));
        next.run(context).await
    }
}

#[tokio::test]
async fn a_function_does_not_begin_after_its_deadline() {
    let probe = Probe::with(|builder, _| builder.extension(Slow));
    let request = ask("test.echo")
        .with(OUTER, Value::Null)
        .deadline(json!({"value": 20, "unit": "millisecond"}))
        .lock(json!({"key": "k", "ttl": seconds(60), "auto_release": false}));
    let expected = failed(&ErrorCode::DeadlineExceeded);
    probe.check(&request, &expected).await;
    // The caller does not get the token of the lease, so it is released.
    probe.expect_nothing_left().await;
}

struct Till {
    currency: &'static str,
}

#[tokio::test(start_paused = true)]
async fn functions_reach_the_state_of_the_application_by_its_type() {
    async fn currency(context: Context, _: Map<String, Value>) -> Result<Value, FunctionError> {
        Ok(json!(context.state::<Till>()?.currency))
    }
    let function = |builder: ServerBuilder| builder.function("test.currency", "1.0.0", currency);
    let probe = Probe::with(|builder, _| {
        let replaced = Till { currency: "DEM" };
        function(
            builder
                .state(replaced)
                .state(Till { currency: "EUR" })
                .state(7_u32),
        )
    });
    let answer = probe.call(&ask("test.currency")).await;
    assert_eq!(answer["result"], "EUR", "{answer}");

    let without = Probe::with(|builder, _| function(builder.state(7_u32)));
    let expected = failed(&ErrorCode::InternalError);
    without.check(&ask("test.currency"), &expected).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_is_a_tower_service_of_http_and_of_the_protocol() {
    let server = Probe::new().server;
    let body = ask("test.echo").text();
    let answer = server.clone().oneshot(Bytes::from(body.clone())).await;
    let answer = answer.unwrap_or_else(|never| match never {});
    assert!(answer.result().is_ok(), "{answer:?}");

    let post = |path: &str, host: &str| {
        let request = Request::post(path).header("host", host);
        let request = request.header("content-type", "application/json");
        request.body(Body::from(body.clone())).unwrap()
    };
    for (request, expected) in [
        (post("/forrst", "localhost"), StatusCode::OK),
        (post("/forrst", "evil.example"), StatusCode::FORBIDDEN),
        (post("/elsewhere", "localhost"), StatusCode::NOT_FOUND),
    ] {
        let answer = server.clone().oneshot(request).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        assert_eq!(answer.status(), expected);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(serde_json::from_slice::<Value>(&body).is_ok(), "{body:?}");
    }
}
