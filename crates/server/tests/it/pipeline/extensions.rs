//! Extensions: which are accepted, in which order they act, and those that a service adds.

use async_trait::async_trait;
use forrst_protocol::{ErrorCode, ErrorObject, Errors, Urn};
use forrst_server::{
    Around, Context, Extension, ExtensionCall, Function, Next, Outcome, ServerBuilder,
};
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, Seen, failed};
use crate::wire::{CANCELLATION, DEADLINE, LOCK, RETRY, TRACING, ask, data, expect, seconds};

const AUDIT: &str = "urn:acme:forrst:ext:audit";
const QUOTA: &str = "urn:acme:forrst:ext:quota";

/// Notes what it sees before and after the call. With `{"refuse": true}`, it refuses the call.
struct Watch {
    urn: &'static str,
    seen: Seen,
}

impl Extension for Watch {
    fn urn(&self) -> &str {
        self.urn
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let options = call.options.and_then(|options| options.deserialize().ok());
        let options: Map<String, Value> = options.unwrap_or_default();
        let refuse = match options.get("refuse") {
            None => false,
            Some(Value::Bool(refuse)) => *refuse,
            Some(_) => {
                let error = ErrorObject::new(ErrorCode::InvalidArguments, "must be a boolean");
                let at = call.pointer().key("options").key("refuse");
                return Err(error.at(at).into());
            }
        };
        Ok(Box::new(Watching {
            urn: call.urn.clone(),
            refuse,
            seen: self.seen.clone(),
        }))
    }
}

struct Watching {
    urn: Urn,
    refuse: bool,
    seen: Seen,
}

#[async_trait]
impl Around for Watching {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        let name = self.urn.as_str().rsplit(':').next().unwrap_or_default();
        let locked = context.lease().is_some();
        let traced = context.trace().is_some();
        let timed = context.remaining().is_some();
        self.seen
            .note(format!("{name} before: {locked} {traced} {timed}"));
        if self.refuse {
            let error = ErrorObject::new(ErrorCode::Forbidden, "not today");
            return Outcome::failure(error);
        }
        let outcome = next.run(context).await;
        self.seen
            .note(format!("{name} after: {}", outcome.result.is_ok()));
        outcome.with_data(self.urn.clone(), &json!({"watched": name}))
    }
}

fn watched(builder: ServerBuilder, seen: &Seen) -> ServerBuilder {
    let watch = |urn| Watch {
        urn,
        seen: seen.clone(),
    };
    let nothing = async |_: Context, _: Map<String, Value>| Ok("done");
    builder
        .extension(watch(AUDIT))
        .extension(watch(QUOTA))
        .register(
            Function::new("test.only-audit", "1.0.0", nothing)
                .extensions([AUDIT, "urn:cline:forrst:ext:deadline"]),
        )
        .register(Function::new("test.none", "1.0.0", nothing).extensions([]))
}

fn trace() -> Value {
    json!({"trace_id": "trace-7", "span_id": "span-1", "parent_span_id": "root", "baggage": {"tenant": "acme"}})
}

#[tokio::test(start_paused = true)]
async fn a_function_accepts_only_the_extensions_that_it_names() {
    let probe = Probe::with(watched);
    for (function, urn, options) in [
        ("test.only-audit", QUOTA, Value::Null),
        (
            "test.only-audit",
            LOCK,
            json!({"key": "k", "ttl": seconds(1)}),
        ),
        ("test.only-audit", RETRY, Value::Null),
        ("test.none", AUDIT, Value::Null),
        ("test.none", DEADLINE, seconds(1)),
        (
            "urn:cline:forrst:fn:ping",
            LOCK,
            json!({"key": "k", "ttl": seconds(1)}),
        ),
        (
            "urn:cline:forrst:fn:ping",
            "urn:cline:forrst:ext:atomic-lock",
            Value::Null,
        ),
        ("urn:cline:forrst:fn:ping", AUDIT, Value::Null),
    ] {
        let expected = json!({"result": null, "errors": [{
            "code": "EXTENSION_NOT_APPLICABLE",
            "source": {"pointer": "/extensions/0"},
            "details": {"extension": urn, "function": function},
        }]});
        probe
            .check(&ask(function).with(urn, options), &expected)
            .await;
    }
    probe.expect_nothing_left().await;
    for urn in [DEADLINE, "urn:cline:forrst:ext:deadline"] {
        let request = ask("test.only-audit")
            .with(AUDIT, Value::Null)
            .with(urn, seconds(5));
        probe.check(&request, &json!({"result": "done"})).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_order_in_the_request_does_not_matter() {
    let probe = Probe::with(watched);
    let entries = [
        (LOCK, json!({"key": "k", "ttl": seconds(5)})),
        (AUDIT, Value::Null),
        (DEADLINE, seconds(5)),
        (QUOTA, Value::Null),
        (TRACING, trace()),
        (RETRY, Value::Null),
    ];
    for turn in 0..entries.len() {
        let mut turned = entries.clone();
        turned.rotate_left(turn);
        if turn % 2 == 1 {
            turned.reverse();
        }
        let request = turned
            .iter()
            .fold(ask("test.context"), |request, (urn, options)| {
                request.with(urn, options.clone())
            });
        let expected = json!({"result": {"lease": {"key": "lock:test.context:k"}, "trace": {"trace_id": "trace-7"}}});
        let answer = probe.check(&request, &expected).await;
        let notes = std::mem::take(&mut *probe.seen.notes.lock().unwrap());
        let expected = [
            "audit before: true true true",
            "quota before: true true true",
            "quota after: true",
            "audit after: true",
        ];
        assert_eq!(notes, expected);
        // The answer is in the order of the request; `retry` has no data for a success.
        let asked: Vec<&str> = turned
            .iter()
            .map(|(urn, _)| *urn)
            .filter(|urn| *urn != RETRY)
            .collect();
        let answered = answer["extensions"].as_array().unwrap();
        let answered: Vec<&Value> = answered.iter().map(|entry| &entry["urn"]).collect();
        assert_eq!(answered, asked);
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_of_the_service_wraps_the_call_and_adds_data() {
    let probe = Probe::with(watched);
    let request = ask("test.fail").with(AUDIT, Value::Null);
    let expected = json!({
        "errors": [{"code": "TEST_FAILED"}],
        "extensions": [{"urn": AUDIT, "data": {"watched": "audit"}}],
    });
    probe.check(&request, &expected).await;
    assert!(probe.seen.has_noted("audit after: false"));
    // Without an entry in the request, it does not act.
    probe
        .check(&ask("test.echo"), &json!({"extensions": "<absent>"}))
        .await;
    assert_eq!(probe.seen.notes.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_extension_can_keep_the_function_from_running() {
    let probe = Probe::with(watched);
    let request = ask("test.echo")
        .with(AUDIT, json!({"refuse": true}))
        .with(QUOTA, Value::Null)
        .lock(json!({"key": "k"}));
    let answer = probe.check(&request, &failed(&ErrorCode::Forbidden)).await;
    expect(data(&answer, LOCK), &json!({"acquired": true}));
    assert_eq!(probe.seen.started(), 0);
    assert!(!probe.seen.has_noted("quota before: true false false"));
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_option_of_an_extension_stops_the_call_before_it_begins() {
    let probe = Probe::with(watched);
    let request = ask("test.echo")
        .lock(json!({"key": "k", "auto_release": false}))
        .with(QUOTA, Value::Null)
        .with(AUDIT, json!({"refuse": "yes"}));
    let expected = json!({"errors": [{
        "code": "INVALID_ARGUMENTS",
        "source": {"pointer": "/extensions/2/options/refuse"},
    }]});
    probe.check(&request, &expected).await;
    assert_eq!(probe.seen.started(), 0);
    assert!(
        probe.seen.notes.lock().unwrap().is_empty(),
        "an extension ran"
    );
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_extension_fails_closed_unless_it_is_optional() {
    let probe = Probe::new();
    let misspelt = "urn:forrst:ext:atomiclock";
    let request = ask("test.echo").with(misspelt, json!({"key": "k", "ttl": seconds(1)}));
    let answer = probe
        .check(&request, &failed(&ErrorCode::ExtensionNotSupported))
        .await;
    let details = &answer["errors"][0]["details"];
    let both_names = [
        DEADLINE,
        "urn:cline:forrst:ext:deadline",
        TRACING,
        "urn:cline:forrst:ext:tracing",
        RETRY,
        "urn:cline:forrst:ext:retry",
        CANCELLATION,
        "urn:cline:forrst:ext:cancellation",
        LOCK,
        "urn:cline:forrst:ext:atomic-lock",
    ];
    expect(
        details,
        &json!({"unsupported": [misspelt], "supported": both_names}),
    );
    assert_eq!(probe.seen.started(), 0);

    let mut optional = request.value().clone();
    optional["extensions"][0]["required"] = false.into();
    let response = probe.server.handle(optional.to_string().as_bytes()).await;
    assert_eq!(response.http_status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_extension_is_refused_under_either_name() {
    let probe = Probe::new();
    let lock = json!({"key": "k", "ttl": seconds(1)});
    for second in [LOCK, "urn:cline:forrst:ext:atomic-lock"] {
        let request = ask("test.echo")
            .with(LOCK, lock.clone())
            .with(second, lock.clone());
        let expected = json!({"errors": [{
            "code": "INVALID_REQUEST",
            "source": {"pointer": "/extensions/1"},
        }]});
        probe.check(&request, &expected).await;
    }
    assert_eq!(probe.seen.started(), 0);
    probe.expect_nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn the_answer_uses_the_name_that_the_request_used() {
    let probe = Probe::new();
    for urn in [LOCK, "urn:cline:forrst:ext:atomic-lock"] {
        let request = ask("test.echo").with(urn, json!({"key": "k", "ttl": seconds(1)}));
        let expected = json!({"extensions": [{"urn": urn, "data": {"acquired": true}}]});
        probe.check(&request, &expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_function_gets_its_position_in_the_trace() {
    let probe = Probe::new();
    let request = ask("test.context").with(TRACING, trace());
    let expected = json!({
        "result": {"trace": {
            "trace_id": "trace-7",
            "span_id": "<span>",
            "parent_span_id": "span-1",
            "baggage": {"tenant": "acme"},
        }},
        "extensions": [{"urn": TRACING, "data": {
            "trace_id": "trace-7",
            "span_id": "<span>",
            "duration": {"value": "<number>", "unit": "millisecond"},
        }}],
    });
    let first = probe.check(&request, &expected).await;
    assert_eq!(
        data(&first, TRACING)["span_id"],
        first["result"]["trace"]["span_id"]
    );
    let second = probe.check(&request, &expected).await;
    assert_ne!(
        data(&first, TRACING)["span_id"],
        data(&second, TRACING)["span_id"]
    );
    probe
        .check(&ask("test.context"), &json!({"result": {"trace": null}}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_trace_needs_its_ids() {
    let probe = Probe::new();
    let request = ask("test.context").with(TRACING, json!({"trace_id": "", "baggage": [1]}));
    let answer = probe.call(&request).await;
    let expected = [
        "/extensions/0/options/baggage",
        "/extensions/0/options/span_id",
        "/extensions/0/options/trace_id",
    ];
    assert_eq!(crate::wire::pointers(&answer), expected);
}

#[tokio::test(start_paused = true)]
async fn retry_says_whether_and_when_to_try_again() {
    let probe = Probe::new();
    let _holder = probe
        .start_running(&ask("test.gate").lock(json!({"key": "k", "scope": "global"})))
        .await;
    let again = |strategy: &str| json!({"allowed": true, "strategy": strategy, "after": {"value": "<number>", "unit": "<text>"}, "max_attempts": "<number>"});
    let fail = |code: &str| ask("test.fail").arguments(json!({"code": code}));
    let held = json!({"key": "k", "scope": "global"});
    for (request, guidance) in [
        (fail("TEST_FAILED"), json!({"allowed": false})),
        (fail("RATE_LIMITED"), again("fixed")),
        (fail("DEADLINE_EXCEEDED"), again("immediate")),
        (fail("UNAVAILABLE"), again("exponential")),
        (ask("test.panic"), again("exponential")),
        (ask("test.nothing"), json!({"allowed": false})),
        (ask("test.sleep"), json!({"allowed": false})),
        (ask("test.echo").lock(held), again("exponential")),
    ] {
        let answer = probe.call(&request.with(RETRY, Value::Null)).await;
        expect(data(&answer, RETRY), &guidance);
        // If the error has its own time for a retry, this is the same in whole seconds.
        if let Some(hint) = answer["errors"][0]["details"].get("retry_after") {
            assert_eq!(hint["unit"], "millisecond");
            let seconds = hint["value"].as_u64().unwrap().div_ceil(1000);
            assert_eq!(
                data(&answer, RETRY)["after"],
                json!({"value": seconds.max(1), "unit": "second"})
            );
        }
    }
    let success = probe.call(&ask("test.echo").with(RETRY, Value::Null)).await;
    expect(&success, &json!({"result": {}, "extensions": "<absent>"}));
    let unasked = probe.call(&fail("UNAVAILABLE")).await;
    expect(&unasked, &json!({"extensions": "<absent>"}));
}

#[tokio::test(start_paused = true)]
async fn retry_takes_no_options() {
    let probe = Probe::new();
    let request = ask("test.echo").with(RETRY, json!({"max": 3}));
    let answer = probe
        .check(&request, &failed(&ErrorCode::InvalidArguments))
        .await;
    assert_eq!(
        crate::wire::pointers(&answer),
        ["/extensions/0/options/max"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_context_of_the_caller_is_passed_on_unchanged() {
    let probe = Probe::new();
    let odd = r#"{"b":1.0,"a":[1e2,{"":null}],"z":12345678901234567890123,"é":"\u00e9"}"#;
    let body = format!(
        r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"abc","call":{{"function":"test.context"}},"context":{odd}}}"#
    );
    let response = probe.server.handle(body.as_bytes()).await;
    let answer = serde_json::to_value(&response).unwrap();
    let expected = json!({"id": "abc", "result": {
        "id": "abc", "function": "test.context", "version": "1.0.0", "context": odd,
        "remaining_ms": null, "lease": null,
    }});
    expect(&answer, &expected);
    probe
        .check(&ask("test.context"), &json!({"result": {"context": null}}))
        .await;
}
