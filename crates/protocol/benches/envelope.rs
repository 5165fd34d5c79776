//! Parsing and serialising the envelope, compared with `serde_json::Value`, which does not know its structure.
//!
//! The parsed value is dropped within the measured time, because freeing its memory is part of the cost.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use forrst_protocol::{RawObject, Request, Response};
use serde_json::{Value, json};

fn main() {
    divan::main();
}

/// As a client with a pretty printer sends it.
fn typical() -> Vec<u8> {
    let request = request(&json!({"user_id": "user_123", "amount": 100}));
    serde_json::to_vec_pretty(&request).unwrap()
}

/// About 1 MiB of arguments, with as much structure as an order has.
fn large() -> Vec<u8> {
    let item = json!({
        "sku": "WIDGET-01", "quantity": 2, "price": 19.99, "gift": false, "note": null,
        "tags": ["fragile", "überraschend", "quoted \"text\""],
        "address": {"street": "1 Long Road", "city": "Springfield", "zip": "12345"},
    });
    let count = 1024 * 1024 / (item.to_string().len() + 1);
    serde_json::to_vec(&request(&json!({"items": vec![item; count]}))).unwrap()
}

fn request(arguments: &Value) -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_001",
        "call": {"function": "payments.charge", "version": "1.0.0", "arguments": arguments},
        "extensions": [{
            "urn": "urn:forrst:ext:atomicLock",
            "options": {"key": "user:123", "ttl": {"value": 30, "unit": "second"}},
        }],
    })
}

fn response() -> Response {
    let data = json!({
        "key": "user:123", "acquired": true, "owner": "550e8400-e29b-41d4-a716-446655440000",
        "scope": "function", "expires_at": "2024-03-15T10:30:30.000Z",
    });
    Response::success(
        "req_001".parse().unwrap(),
        &json!({"charge_id": "ch_abc", "status": "succeeded"}),
    )
    .unwrap()
    .with_extension(
        "urn:forrst:ext:atomicLock".parse().unwrap(),
        RawObject::from_serialize(&data).unwrap(),
    )
    .with_node("orders-api-2")
}

fn parse_as_request(bencher: Bencher<'_, '_>, body: &[u8]) {
    bencher
        .counter(BytesCount::of_slice(body))
        .bench(|| drop(black_box(Request::parse(black_box(body)).unwrap())));
}

fn parse_as_value(bencher: Bencher<'_, '_>, body: &[u8]) {
    let parse = |body| serde_json::from_slice::<Value>(body).unwrap();
    bencher
        .counter(BytesCount::of_slice(body))
        .bench(|| drop(black_box(parse(black_box(body)))));
}

#[divan::bench(sample_size = 1000)]
fn parse_typical_as_request(bencher: Bencher<'_, '_>) {
    parse_as_request(bencher, &typical());
}

#[divan::bench(sample_size = 1000)]
fn parse_typical_as_value(bencher: Bencher<'_, '_>) {
    parse_as_value(bencher, &typical());
}

#[divan::bench]
fn parse_1_mib_as_request(bencher: Bencher<'_, '_>) {
    parse_as_request(bencher, &large());
}

#[divan::bench]
fn parse_1_mib_as_value(bencher: Bencher<'_, '_>) {
    parse_as_value(bencher, &large());
}

#[divan::bench(sample_size = 1000)]
fn write_typical_response(bencher: Bencher<'_, '_>) {
    let response = response();
    bencher.bench(|| serde_json::to_vec(black_box(&response)).unwrap());
}

#[divan::bench(sample_size = 1000)]
fn write_typical_response_from_value(bencher: Bencher<'_, '_>) {
    let response = serde_json::to_value(response()).unwrap();
    bencher.bench(|| serde_json::to_vec(black_box(&response)).unwrap());
}
