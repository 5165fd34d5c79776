//! Which files are vectors, and what the others are refused for.

#![expect(
    clippy::needless_pass_by_value,
    reason = "JSON made on the spot reads better without `&`"
)]

use serde_json::{Value, json};

use super::{Action, Message, Profile, Transport, Vector, VectorError};

fn parse(steps: Value) -> Result<Vector, VectorError> {
    parse_file(json!({"name": "n", "source": "s", "about": "a", "steps": steps}))
}

fn parse_file(file: Value) -> Result<Vector, VectorError> {
    parse_table(file).map(|mut vectors| vectors.remove(0))
}

fn parse_table(file: Value) -> Result<Vec<Vector>, VectorError> {
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
fn a_core_vector_expects_neither_a_status_nor_headers() {
    let file = |expect: Value| {
        parse_file(json!({
            "name": "n", "source": "s", "about": "a", "profile": "core",
            "steps": [{"request": {}, "expect": expect}]
        }))
    };
    assert_eq!(file(json!({"body": {}})).unwrap().profile, Profile::Core);
    assert!(file(json!({"status": 200})).is_err());
    assert!(file(json!({"headers": {"x": "y"}})).is_err());
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

/// A table whose steps have the options of a lock, and a call.
fn table(cases: Value) -> Value {
    json!({
        "name": "n", "source": "s", "about": "a", "cases": cases,
        "steps": [
            {
                "call": {"function": "a.b", "arguments": {"list": [1, 2]}},
                "extensions": [{"urn": "u", "options": {"key": "k", "ttl": {"value": 1}}}],
                "change": "/extensions/0/options",
                "expect": {"body": {"errors": [{"source": {"pointer": "${at}"}}]}}
            },
            {
                "request": {"call": {"arguments": {"key": "k", "ttl": {"value": 1}}}},
                "change": "/call/arguments",
                "expect": {"body": {"errors": [{"source": {"pointer": "${at}"}}]}}
            },
            {"call": {"function": "a.b"}, "expect": {}}
        ]
    })
}

/// The messages and expectations of the steps of a vector.
fn sends(vector: &Vector) -> Vec<(&Value, &Value)> {
    let sends = vector.steps.iter().map(|step| match &step.action {
        Action::Send {
            message: Message::Envelope(envelope),
            expect,
            ..
        } => (envelope, &expect.as_written),
        other => panic!("{other:?}"),
    });
    sends.collect()
}

#[test]
fn each_case_of_a_table_is_a_vector() {
    let vectors = parse_table(table(json!([
        {"name": "key-null", "about": "Null.", "set": {"/key": null}},
        {"name": "no-ttl", "about": "None.", "source": "t", "remove": ["/ttl"]},
        {"name": "both", "about": "Two.", "set": {"/ttl/value": 0, "/x": 1}, "at": "/ttl/value"},
        {"name": "other", "about": "Any.", "set": {"/key": 1}, "expect": {"status": 400}},
        {"name": "pattern", "about": "Any.", "set": {"/key": 1}, "at": "$regex:^/"},
    ])))
    .unwrap();
    let paths: Vec<String> = vectors.iter().map(Vector::path).collect();
    assert_eq!(
        paths,
        [
            "g/n/key-null",
            "g/n/no-ttl",
            "g/n/both",
            "g/n/other",
            "g/n/pattern"
        ]
    );
    assert_eq!((&*vectors[0].source, &*vectors[0].about), ("s", "Null."));
    assert_eq!(vectors[1].source, "t");
    let at = |pointer: &str| json!({"body": {"errors": [{"source": {"pointer": pointer}}]}});
    let options = |vector: &Vector| {
        let sent = sends(vector);
        (
            sent[0].0["extensions"][0]["options"].clone(),
            sent[1].0["call"]["arguments"].clone(),
        )
    };
    let both = |value: Value| (value.clone(), value);
    assert_eq!(
        options(&vectors[0]),
        both(json!({"key": null, "ttl": {"value": 1}}))
    );
    assert_eq!(options(&vectors[1]), both(json!({"key": "k"})));
    assert_eq!(
        options(&vectors[2]),
        both(json!({"key": "k", "ttl": {"value": 0}, "x": 1}))
    );
    assert_eq!(*sends(&vectors[0])[0].1, at("/extensions/0/options/key"));
    assert_eq!(*sends(&vectors[1])[1].1, at("/call/arguments/ttl"));
    assert_eq!(*sends(&vectors[2])[1].1, at("/call/arguments/ttl/value"));
    assert_eq!(*sends(&vectors[3])[1].1, json!({"status": 400}));
    assert_eq!(*sends(&vectors[4])[0].1, at("$regex:^/"));
    assert_eq!(*sends(&vectors[4])[2].1, json!({}));
}

#[test]
fn a_whole_message_and_an_element_can_be_set() {
    let file = |step: Value, set: Value| {
        json!({
            "name": "n", "source": "s", "about": "a", "steps": [step],
            "cases": [{"name": "c", "about": "a", "set": set}]
        })
    };
    let text = json!({"rpc_text": "", "change": "", "expect": {}});
    let vector = parse_file(file(text, json!({"": "5"}))).unwrap();
    let Action::Send {
        message: Message::FrameText(text),
        ..
    } = &vector.steps[0].action
    else {
        panic!("{vector:?}");
    };
    assert_eq!(text.to_string(), "\"5\"");
    let list = json!({"request": {"a": [1, 2]}, "change": "/a", "expect": {}});
    let vector = parse_file(file(list, json!({"/1": 3}))).unwrap();
    assert_eq!(*sends(&vector)[0].0, json!({"a": [1, 3]}));
}

#[test]
fn invalid_cases_are_refused_by_name() {
    for (case, reason) in [
        (json!({}), "it has to say `at`"),
        (
            json!({"set": {"/a/b": 1}}),
            "no place for /extensions/0/options/a/b",
        ),
        (json!({"set": {"key": 1}}), "is not a JSON pointer"),
        (
            json!({"remove": ["/x"]}),
            "there is no /extensions/0/options/x",
        ),
        (json!({"set": {"/key": 1, "/ttl": 1}}), "it has to say `at`"),
        (
            json!({"set": {"/key": 1}, "at": "/key", "expect": {}}),
            "nothing expects ${at}",
        ),
        (json!({"set": {"/key": "${"}}), "never closed"),
        (
            json!({"set": {"/key": 1}, "expect": {"stauts": 1}}),
            "stauts",
        ),
    ] {
        let mut case = case;
        case["name"] = json!("wrong");
        case["about"] = json!("a");
        let error = parse_table(table(json!([case]))).unwrap_err().to_string();
        assert!(error.contains("case `wrong`"), "{error}");
        assert!(error.contains(reason), "{reason} in {error}");
    }
    let good = || json!({"name": "c", "about": "a", "set": {"/key": 1}});
    for cases in [json!([]), json!([good(), good()])] {
        assert!(parse_table(table(cases)).is_err());
    }
    let mut unchanged = table(json!([good()]));
    unchanged["steps"] = json!([{"request": {"key": 1}, "expect": {}}]);
    assert!(parse_table(unchanged).is_err());
    let change_without_cases = json!([{"request": {}, "change": "", "expect": {}}]);
    assert!(parse(change_without_cases).is_err());
}
