//! `forrst conformance`.

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

/// All of them are played by the tests of the vectors themselves.
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
fn what_cannot_be_played_is_told() {
    let server = Server::start();
    Forrst::new(&server, &["conformance", "--filter", "no such vector"])
        .run()
        .check(2);
    let nobody = ["conformance", "--url", "http://127.0.0.1:1"];
    Forrst::alone(&nobody)
        .run()
        .check(69)
        .complains(&["http://127.0.0.1:1"]);
}

/// A program that reads JSON gets some, whatever happens.
#[test]
fn what_cannot_be_played_is_told_to_programs_too() {
    for (url, code, said) in [
        ("http://127.0.0.1:1", 69, "UNAVAILABLE"),
        ("https://127.0.0.1:1", 2, "INVALID_REQUEST"),
        ("ws://127.0.0.1:1", 2, "INVALID_REQUEST"),
    ] {
        let play = ["conformance", "--url", url, "--json"];
        let ended = Forrst::alone(&play).run().check(code);
        assert_eq!(ended.json()["errors"][0]["code"], said, "{url}");
    }
}

#[test]
fn they_are_played_by_whoever_has_the_key() {
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
