//! Typed arguments and results: what is read, and how invalid arguments are reported.

use std::collections::BTreeMap;
use std::io;

use forrst_protocol::ErrorCode;
use forrst_server::{Context, FunctionError, ServerBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, Seen, failed};
use crate::wire::{RETRY, ask, expect, pointers};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    customer: String,
    items: Vec<Item>,
    note: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Item {
    sku: String,
    quantity: u8,
}

#[derive(Serialize, JsonSchema)]
struct Placed {
    total: u32,
    summary: String,
}

async fn place(_: Context, order: Order) -> Result<Placed, FunctionError> {
    let total = order
        .items
        .iter()
        .map(|item| u32::from(item.quantity))
        .sum();
    let skus: Vec<&str> = order.items.iter().map(|item| item.sku.as_str()).collect();
    let note = order.note.unwrap_or_else(|| "no note".to_owned());
    Ok(Placed {
        total,
        summary: format!("{} for {} ({note})", skus.join("+"), order.customer),
    })
}

/// The schema allows any string; only the deserializer knows that the number must be even.
#[derive(Deserialize, JsonSchema)]
struct Pair {
    #[serde(deserialize_with = "even")]
    #[schemars(with = "String")]
    size: u32,
}

fn even<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.parse().ok().filter(|number| number % 2 == 0);
    number.ok_or_else(|| serde::de::Error::custom("must be an even number"))
}

fn orders(builder: ServerBuilder, _: &Seen) -> ServerBuilder {
    builder
        .function("orders.place", "1.0.0", place)
        .function("orders.pair", "1.0.0", async |_, pair: Pair| Ok(pair.size))
        .function("orders.unwritable", "1.0.0", async |_, _: Value| {
            // A list cannot be a key in JSON, so this cannot be serialised.
            Ok(BTreeMap::from([(vec![1, 2], "x".to_owned())]))
        })
        .function("orders.broken", "1.0.0", async |_, _: Value| {
            let secret: Result<Value, _> = Err(io::Error::other("password=hunter2"));
            Ok(secret?)
        })
        .function("orders.declined", "1.0.0", async |_, _: Value| {
            let error = FunctionError::application("ORDERS_DECLINED", "No more of these")
                .with_detail("left", 3)
                .at_argument(["items", "0", "a/b"]);
            Err::<Value, _>(error)
        })
}

#[tokio::test(start_paused = true)]
async fn typed_arguments_reach_the_function_and_its_result_the_caller() {
    let probe = Probe::with(orders);
    let order = json!({"customer": "ann", "items": [
        {"sku": "tea", "quantity": 2}, {"sku": "jam", "quantity": 255},
    ]});
    let expected = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "result": {"total": 257, "summary": "tea+jam for ann (no note)"},
        "errors": "<absent>",
        "extensions": "<absent>",
        "meta": {"node": "node-test"},
    });
    probe
        .check(&ask("orders.place").arguments(order), &expected)
        .await;
}

#[tokio::test(start_paused = true)]
async fn all_invalid_arguments_are_named_at_once() {
    let probe = Probe::with(orders);
    let at = |below: &str| format!("/call/arguments{below}");
    for (arguments, places) in [
        (json!({}), vec![at("/customer"), at("/items")]),
        (
            json!({"customer": 7, "items": [{"sku": "tea"}, {"quantity": -1}]}),
            vec![
                at("/customer"),
                at("/items/0/quantity"),
                at("/items/1/quantity"),
                at("/items/1/sku"),
            ],
        ),
        (
            json!({"customer": "ann", "items": [], "note": 1, "nota": "x", "a/b~": 1}),
            vec![at("/a~1b~0"), at("/nota"), at("/note")],
        ),
        (
            json!({"customer": null, "items": {"0": 1}}),
            vec![at("/customer"), at("/items")],
        ),
        (
            json!({"customer": "ann", "items": [{"sku": "tea", "quantity": 256}]}),
            vec![at("/items/0/quantity")],
        ),
    ] {
        let answer = probe.call(&ask("orders.place").arguments(arguments)).await;
        assert_eq!(pointers(&answer), places, "{answer:#}");
        for error in answer["errors"].as_array().unwrap() {
            expect(
                error,
                &json!({"code": "INVALID_ARGUMENTS", "message": "<text>"}),
            );
        }
        expect(&answer, &json!({"id": "req_1", "result": null}));
    }
}

#[tokio::test(start_paused = true)]
async fn problems_of_arguments_and_extensions_are_reported_together() {
    let probe = Probe::with(orders);
    let request = ask("orders.place")
        .arguments(json!({"customer": 1, "items": []}))
        .lock(json!({"key": "", "ttl": {"value": 0, "unit": "week"}, "auto_relase": true}))
        .with("urn:acme:forrst:ext:nonsense", Value::Null)
        .with("urn:acme:forrst:ext:humbug", Value::Null)
        .with(RETRY, Value::Null);
    let answer = probe.call(&request).await;
    let expected = [
        "/call/arguments/customer",
        "/extensions/0/options/auto_relase",
        "/extensions/0/options/key",
        "/extensions/0/options/ttl/unit",
        "/extensions/0/options/ttl/value",
        "/extensions/1",
    ];
    assert_eq!(pointers(&answer), expected, "{answer:#}");
    let unsupported = answer["errors"].as_array().unwrap().iter();
    let unsupported: Vec<&Value> = unsupported
        .filter(|error| error["code"] == "EXTENSION_NOT_SUPPORTED")
        .collect();
    assert_eq!(unsupported.len(), 1);
    let urns = ["urn:acme:forrst:ext:nonsense", "urn:acme:forrst:ext:humbug"];
    expect(&unsupported[0]["details"]["unsupported"], &json!(urns));
    probe.expect_nothing_left().await;
}

/// The answer must not grow with the number of problems.
#[tokio::test(start_paused = true)]
async fn only_the_first_of_many_problems_are_named() {
    let probe = Probe::with(orders);
    let items = vec![json!({}); 500];
    let unknown = (0..500).map(|number| format!("urn:acme:forrst:ext:x{number}"));
    let request = ask("orders.place").arguments(json!({"customer": "ann", "items": items}));
    let request = unknown.fold(request, |request, urn| request.with(&urn, Value::Null));
    let options: Map<String, Value> = (0..500).map(|n| (format!("o{n}"), json!(n))).collect();
    let request = request.lock(options.into());
    let answer = probe.call(&request).await;
    let errors = answer["errors"].as_array().unwrap();
    assert!((2..=64).contains(&errors.len()), "{}", errors.len());
    let (sent, got) = (request.text().len(), answer.to_string().len());
    assert!(got < sent, "{got} bytes for {sent}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_function_and_an_invalid_option_are_reported_together() {
    let probe = Probe::new();
    let answer = probe
        .call(&ask("test.nothing").lock(json!({"key": 5})))
        .await;
    let codes: Vec<&Value> = answer["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["code"])
        .collect();
    assert_eq!(codes, ["FUNCTION_NOT_FOUND", "INVALID_ARGUMENTS"]);
    assert_eq!(
        pointers(&answer),
        ["/call/function", "/extensions/0/options/key"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_type_is_reported_with_its_pointer() {
    let probe = Probe::with(orders);
    let request = ask("orders.pair").arguments(json!({"size": "3"}));
    let expected = json!({"errors": [{
        "code": "INVALID_ARGUMENTS",
        "message": "must be an even number",
        "source": {"pointer": "/call/arguments/size"},
    }]});
    probe.check(&request, &expected).await;
    let request = ask("orders.pair").arguments(json!({"size": "4"}));
    probe.check(&request, &json!({"result": 4})).await;
}

#[tokio::test(start_paused = true)]
async fn omitted_arguments_are_an_empty_object() {
    let probe = Probe::new();
    probe.check(&ask("test.echo"), &json!({"result": {}})).await;
    probe
        .check(&ask("test.sleep"), &failed(&ErrorCode::InvalidArguments))
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_internal_error_reveals_nothing_to_the_caller() {
    let probe = Probe::with(orders);
    for function in ["orders.broken", "orders.unwritable"] {
        let request = ask(function).lock(json!({"key": "k"}));
        let answer = probe
            .check(&request, &failed(&ErrorCode::InternalError))
            .await;
        assert!(!answer.to_string().contains("hunter2"), "{answer}");
        probe.expect_nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_application_is_returned_unchanged() {
    let probe = Probe::with(orders);
    let expected = json!({"result": null, "errors": [{
        "code": "ORDERS_DECLINED",
        "message": "No more of these",
        "source": {"pointer": "/call/arguments/items/0/a~1b"},
        "details": {"left": 3},
    }]});
    probe.check(&ask("orders.declined"), &expected).await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_error_code_becomes_an_internal_error() {
    let probe = Probe::new();
    let request = ask("test.fail").arguments(json!({"code": "not a code"}));
    probe
        .check(&request, &failed(&ErrorCode::InternalError))
        .await;
}
