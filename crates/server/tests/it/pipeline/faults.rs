//! Panics: of functions, of extensions, and of what reads arguments.

use async_trait::async_trait;
use forrst_protocol::{ErrorCode, Errors};
use forrst_server::{Around, Context, Extension, ExtensionCall, Next, Outcome};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, failed};
use crate::wire::{LOCK, ask, data, expect, millis, seconds};

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_internal_error_and_the_server_lives() {
    let probe = Probe::new();
    for _ in 0..3 {
        let request = ask("test.panic").lock(json!({"key": "k"}));
        let answer = probe
            .check(&request, &failed(&ErrorCode::InternalError))
            .await;
        assert!(
            !answer.to_string().contains("as the test wants it"),
            "{answer}"
        );
        expect(
            data(&answer, LOCK),
            &json!({"acquired": true, "fence": "<fence>"}),
        );
        probe.expect_nothing_left().await;
    }
    probe
        .check(&ask("test.panic"), &failed(&ErrorCode::InternalError))
        .await;
    probe.check(&ask("test.echo"), &json!({"result": {}})).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_with_a_lock_to_be_kept_keeps_it() {
    let probe = Probe::new();
    let request = ask("test.panic").lock(json!({"key": "k", "owner": "me", "auto_release": false}));
    probe
        .check(&request, &failed(&ErrorCode::InternalError))
        .await;
    assert_eq!(
        probe.holder("lock:test.panic:k").await.as_deref(),
        Some("me")
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_renewal_and_hands_the_lock_on() {
    let probe = Probe::with(|builder, seen| {
        let seen = seen.clone();
        builder.function(
            "test.panic-late",
            "1.0.0",
            move |_, _: Map<String, Value>| {
                let seen = seen.clone();
                async move {
                    let _running = seen.run();
                    seen.pass_gate().await;
                    assert!(seen.started() == 0, "as the test wants it");
                    Ok(())
                }
            },
        )
    });
    let lock = json!({"key": "k", "scope": "global", "ttl": millis(100), "renew": true});
    let panics = probe
        .start_running(&ask("test.panic-late").lock(lock))
        .await;
    let waits = ask("test.echo").lock(json!({"key": "k", "scope": "global", "block": seconds(60)}));
    let waits = probe.start_waiting(&waits).await;
    probe.seen.open_gate();
    expect(&panics.await.unwrap(), &failed(&ErrorCode::InternalError));
    expect(&waits.await.unwrap(), &json!({"result": {}}));
    probe.expect_nothing_left().await;
}

/// A function may panic before its first await, which is when it is called and not when it is polled.
#[tokio::test(start_paused = true)]
async fn a_panic_before_the_function_s_future_is_there_is_caught() {
    let probe = Probe::with(|builder, _| {
        builder.function("test.panic-early", "1.0.0", |_, _: Map<String, Value>| {
            assert!(std::env::args().count() == 0, "as the test wants it");
            std::future::ready(Ok(()))
        })
    });
    let request = ask("test.panic-early").lock(json!({"key": "k"}));
    probe
        .check(&request, &failed(&ErrorCode::InternalError))
        .await;
    probe.expect_nothing_left().await;
}

const CLUMSY: &str = "urn:acme:forrst:ext:clumsy";

/// Panics where its option says.
struct Clumsy;

impl Extension for Clumsy {
    fn urn(&self) -> &'static str {
        CLUMSY
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let options = call.options.and_then(|options| options.deserialize().ok());
        let options: Map<String, Value> = options.unwrap_or_default();
        let stumbles_at = options["at"].as_str().unwrap_or_default().to_owned();
        assert_ne!(stumbles_at, "prepare", "as the test wants it");
        Ok(Box::new(Stumble(stumbles_at)))
    }
}

struct Stumble(String);

#[async_trait]
impl Around for Stumble {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        assert_ne!(self.0, "before", "as the test wants it");
        let outcome = next.run(context).await;
        assert_ne!(self.0, "after", "as the test wants it");
        outcome
    }
}

async fn check_stumble(at: &str, with_lock: bool) {
    let probe = Probe::with(|builder, _| builder.extension(Clumsy));
    let mut request = ask("test.echo").with(CLUMSY, json!({"at": at}));
    if with_lock {
        request = request.lock(json!({"key": "k"}));
    }
    probe
        .check(&request, &failed(&ErrorCode::InternalError))
        .await;
    probe.expect_nothing_left().await;
    probe.check(&ask("test.echo"), &json!({"result": {}})).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_panics_around_a_locked_call_leaves_no_lock() {
    check_stumble("before", true).await;
    check_stumble("after", true).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_panics_around_a_call_is_an_internal_error() {
    check_stumble("before", false).await;
    check_stumble("after", false).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_panics_over_its_options_is_an_internal_error() {
    check_stumble("prepare", false).await;
    check_stumble("prepare", true).await;
}

#[derive(JsonSchema)]
struct Explosive;

impl<'de> Deserialize<'de> for Explosive {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("as the test wants it")
    }
}

#[tokio::test(start_paused = true)]
async fn arguments_whose_reading_panics_are_an_internal_error() {
    let probe = Probe::with(|builder, _| {
        builder.function("test.explosive", "1.0.0", async |_, _: Explosive| Ok(()))
    });
    let request = ask("test.explosive").lock(json!({"key": "k"}));
    probe
        .check(&request, &failed(&ErrorCode::InternalError))
        .await;
    probe.expect_nothing_left().await;
}
