//! `forrst conformance`.

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

/// The other vectors are run by the test program `vectors`.
#[test]
fn the_vectors_are_built_in() {
    let server = Server::start();
    let play = [
        "conformance",
        "--filter",
        "held-lock",
        "--transport",
        "http",
    ];
    let ended = Forrst::new(&server, &play).run().check(0);
    let last = ended.output.lines().last().unwrap();
    assert!(last.ends_with("passed, 0 failed"), "{ended:#?}");
    assert!(!last.starts_with("0 "), "{ended:#?}");
    let report = Forrst::new(&server, &[&play[..], &["--json"]].concat()).json();
    assert_eq!(report["outcomes"][0]["verdict"], "passed");
}

#[test]
fn the_core_profile_asks_for_less_and_a_websocket_url_names_the_transport() {
    let server = Server::start();
    let play = |more: &[&str]| {
        let all = [&["conformance", "--filter", "release-of-a", "--json"], more].concat();
        Forrst::new(&server, &all).json()
    };
    let (core, whole) = (play(&["--profile", "core"]), play(&[]));
    assert_eq!(core["transports"], serde_json::json!(["http"]));
    let count = |report: &serde_json::Value| report["outcomes"].as_array().unwrap().len();
    assert!(count(&core) > 0);
    assert!(count(&core) * 3 < count(&whole));

    let socket = server.url().replace("http", "ws");
    let play = ["conformance", "--filter", "ping-answers", "--url", &socket];
    let ended = Forrst::alone(&play).run().check(0);
    assert!(ended.output.contains("1 passed, 0 failed"), "{ended:#?}");
    let over_http = [&play[..], &["--transport", "http"]].concat();
    Forrst::alone(&over_http)
        .run()
        .check(2)
        .check_errors(&["ws"]);
}

#[test]
fn an_unknown_vector_and_an_unreachable_server_are_reported() {
    let server = Server::start();
    Forrst::new(&server, &["conformance", "--filter", "no such vector"])
        .run()
        .check(2);
    let unreachable = ["conformance", "--url", "http://127.0.0.1:1"];
    Forrst::alone(&unreachable)
        .run()
        .check(69)
        .check_errors(&["http://127.0.0.1:1"]);
}

/// A program that reads JSON gets JSON, whatever happens.
#[test]
fn errors_are_reported_as_json() {
    for (url, code, said) in [
        ("http://127.0.0.1:1", 69, "UNAVAILABLE"),
        ("https://127.0.0.1:1", 69, "UNAVAILABLE"),
        ("wss://127.0.0.1:1", 69, "UNAVAILABLE"),
        ("unix:/run/forrst.sock", 2, "INVALID_REQUEST"),
    ] {
        let play = ["conformance", "--url", url, "--json"];
        let ended = Forrst::alone(&play).run().check(code);
        assert_eq!(ended.json()["errors"][0]["code"], said, "{url}");
    }
}

#[test]
fn the_api_key_is_used() {
    let made = ["key", "new", "--name", "me", "--role", "call", "--json"];
    let made = Forrst::alone(&made).json();
    let [key, entry] = ["key", "toml"].map(|name| made[name].as_str().unwrap());
    let server = Server::with_keys(entry);
    let play = |filter| Forrst::new(&server, &["conformance", "--filter", filter]);
    play("ping-answers").run().check(1);
    let ended = play("ping-answers")
        .variable("FORRST_API_KEY", key)
        .run()
        .check(0);
    assert!(ended.output.contains("3 passed, 0 failed"), "{ended:#?}");
}
