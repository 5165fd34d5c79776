//! `forrst conformance`.

use crate::forrst::Forrst;
use crate::server::Server;

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
