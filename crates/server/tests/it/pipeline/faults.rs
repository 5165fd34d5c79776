//! Panics in functions, in extensions and while arguments are read: each becomes an internal error, and no lock is left.

use async_trait::async_trait;
use forrst_protocol::{ErrorCode, Errors};
use forrst_server::{Around, Context, Extension, ExtensionCall, Next, Outcome};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, failed};
use crate::wire::{LOCK, ask, data, expect, millis, seconds};

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_internal_error_and_the_server_goes_on() {
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
async fn after_a_panic_a_lock_without_auto_release_stays_held() {
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
async fn a_panic_ends_the_renewal_and_releases_the_lock() {
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

/// A function may panic when it is called, before its future is polled.
#[tokio::test(start_paused = true)]
async fn a_panic_before_the_future_of_the_function_exists_is_caught() {
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

const PANICKING: &str = "urn:acme:forrst:ext:panicking";

/// Panics at the point that its option names.
struct PanickingExtension;

impl Extension for PanickingExtension {
    fn urn(&self) -> &'static str {
        PANICKING
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let options = call.options.and_then(|options| options.deserialize().ok());
        let options: Map<String, Value> = options.unwrap_or_default();
        let panics_at = options["at"].as_str().unwrap_or_default().to_owned();
        assert_ne!(panics_at, "prepare", "as the test wants it");
        Ok(Box::new(PanicsAt(panics_at)))
    }
}

struct PanicsAt(String);

#[async_trait]
impl Around for PanicsAt {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        assert_ne!(self.0, "before", "as the test wants it");
        let outcome = next.run(context).await;
        assert_ne!(self.0, "after", "as the test wants it");
        outcome
    }
}

async fn check_panic(at: &str, with_lock: bool) {
    let probe = Probe::with(|builder, _| builder.extension(PanickingExtension));
    let mut request = ask("test.echo").with(PANICKING, json!({"at": at}));
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
    check_panic("before", true).await;
    check_panic("after", true).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_panics_around_a_call_is_an_internal_error() {
    check_panic("before", false).await;
    check_panic("after", false).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_panics_in_prepare_is_an_internal_error() {
    check_panic("prepare", false).await;
    check_panic("prepare", true).await;
}

#[derive(JsonSchema)]
struct PanickingArguments;

impl<'de> Deserialize<'de> for PanickingArguments {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("as the test wants it")
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_arguments_are_read_is_an_internal_error() {
    let probe = Probe::with(|builder, _| {
        builder.function(
            "test.panicking",
            "1.0.0",
            async |_, _: PanickingArguments| Ok(()),
        )
    });
    let request = ask("test.panicking").lock(json!({"key": "k"}));
    probe
        .check(&request, &failed(&ErrorCode::InternalError))
        .await;
    probe.expect_nothing_left().await;
}
