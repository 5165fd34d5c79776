//! Which files are vectors, and what the others are refused for.

#![expect(
    clippy::needless_pass_by_value,
    reason = "JSON made on the spot reads better without `&`"
)]

use serde_json::{Value, json};

use super::{Action, Message, Transport, Vector, VectorError};

fn parse(steps: Value) -> Result<Vector, VectorError> {
    parse_file(json!({"name": "n", "source": "s", "about": "a", "steps": steps}))
}

fn parse_file(file: Value) -> Result<Vector, VectorError> {
    Vector::parse("g", "n", &file.to_string())
}

fn refused(steps: Value) -> String {
    parse(steps).expect_err("to be refused").to_string()
}

#[test]
fn a_call_gets_its_envelope() {
    let vector = parse(json!([
        {"sleep_ms": 1},
        {"call": {"function": "a.b"}, "context": {"c": 1}, "extensions": [], "expect": {}}
    ]))
    .unwrap();
    let Action::Send {
        message: Message::Envelope(envelope),
        ..
    } = &vector.steps[1].action
    else {
        panic!("{vector:?}");
    };
    assert_eq!(
        *envelope,
        json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": "${unique}-2",
            "call": {"function": "a.b"},
            "context": {"c": 1},
            "extensions": []
        })
    );
}

#[test]
fn transports_follow_from_the_steps() {
    let transports = |steps| parse(steps).unwrap().transports;
    assert_eq!(
        transports(json!([{"request": {}, "expect": {}}])),
        Transport::ALL
    );
    assert_eq!(
        transports(json!([{"http": {}, "expect": {}}])),
        [Transport::Http]
    );
    assert_eq!(
        transports(json!([{"start": "x", "rpc": {}}, {"hang_up": "x"}])),
        [Transport::Rpc, Transport::Ws]
    );
    let mixed = json!([{"http": {}, "expect": {}}, {"rpc": {}, "expect": {}}]);
    assert!(refused(mixed).contains("transports"));
}

#[test]
fn transports_can_be_fewer_but_not_others() {
    let file = |transports: Value| {
        parse_file(json!({
            "name": "n", "source": "s", "about": "a", "transports": transports,
            "steps": [{"rpc": {}, "expect": {}}]
        }))
    };
    assert_eq!(file(json!(["ws"])).unwrap().transports, [Transport::Ws]);
    assert!(file(json!(["http"])).is_err());
    assert!(file(json!([])).is_err());
}

#[test]
fn the_name_is_that_of_the_file() {
    let file = json!({"name": "m", "source": "s", "about": "a", "steps": [{"sleep_ms": 1}]});
    assert!(parse_file(file).is_err());
}

#[test]
fn a_started_step_is_awaited_or_disconnected() {
    assert!(refused(json!([{"start": "x", "request": {}}])).contains("no `await`"));
    assert!(refused(json!([{"await": "x", "expect": {}}])).contains("has not been started"));
    let twice = json!([{"start": "x", "request": {}}, {"start": "x", "request": {}}]);
    assert!(refused(twice).contains("started twice"));
}

#[test]
fn invalid_steps_are_refused() {
    for steps in [
        json!([]),
        json!([{}]),
        json!([{"request": {}}]),
        json!([{"request": {}, "text": "{}", "expect": {}}]),
        json!([{"request": {}, "extensions": [], "expect": {}}]),
        json!([{"request": {}, "expect": {"stauts": 200}}]),
        json!([{"request": {}, "expect": {"nothing": true, "body": {}}}]),
        json!([{"request": {"id": "${"}, "expect": {}}]),
        json!([{"request": {}, "expect": {"body": "$wrong"}}]),
        json!([{"request": {}, "expected": {}}]),
        json!([{"start": "x", "request": {}, "expect": {}}, {"await": "x", "expect": {}}]),
        json!([{"sleep_ms": 1, "expect": {}}]),
        json!([{"http": {"body_base64": "!"}, "expect": {}}]),
        json!([{"http": {"body_base64": "", "body": ""}, "expect": {}}]),
        json!([{"together": [{"sleep_ms": 1}]}]),
        json!([{"together": [{"request": {}, "expect": {}, "until_ms": 1}]}]),
        json!([{"sleep_ms": 1, "times": 2}]),
    ] {
        assert!(parse(steps.clone()).is_err(), "{steps}");
    }
}
