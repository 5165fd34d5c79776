//! `forrst call`.

use forrst_testkit::{Proxy, Traffic, Way};
use serde_json::json;

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;
use crate::commands::shown;

#[test]
fn the_result_is_printed() {
    let server = Server::start();
    for arguments in [
        &["greeting=hello", "count=2"][..],
        &[r#"{"greeting": "hello", "count": 2}"#],
    ] {
        let ended = Forrst::new(&server, &[&["call", "demo.echo"], arguments].concat()).run();
        let ended = ended.check(0);
        let result: serde_json::Value = serde_json::from_str(&ended.output).unwrap();
        assert_eq!(result, json!({"greeting": "hello", "count": 2}));
        assert_eq!(ended.errors, "");
    }
    let call = Forrst::new(&server, &["call", "demo.echo", "-"]);
    let ended = call.run_with_input(r#"{"a": [true], "z": 1.0}"#).check(0);
    assert_eq!(
        ended.output,
        "{\n  \"a\": [\n    true\n  ],\n  \"z\": 1.0\n}\n"
    );
}

#[test]
fn with_json_it_is_the_whole_answer() {
    let server = Server::start();
    let call = [
        "call",
        "demo.echo",
        "x=1",
        "--lock",
        "k",
        "--owner",
        "me",
        "--json",
    ];
    let answer = Forrst::new(&server, &call).json();
    assert_eq!(answer["result"], json!({"x": 1}));
    assert_eq!(answer["extensions"][0]["data"]["owner"], "me");
    assert_eq!(
        answer["extensions"][0]["data"]["full_key"],
        "lock:demo.echo:k"
    );
}

/// Which of the two would count is anybody's guess, so servers refuse it.
#[test]
fn a_member_that_stands_twice_is_not_dropped_on_the_way() {
    let server = Server::start();
    let call = ["call", "demo.echo", r#"{"amount": 1, "amount": 100}"#];
    let ended = Forrst::new(&server, &call).run().check(1);
    ended.complains(&["/call/arguments/amount"]);
}

#[test]
fn errors_are_told_in_plain_words_with_their_place() {
    let server = Server::start();
    let call = ["call", "payments.charge", "user_id=user_123", "amount=-1"];
    let ended = Forrst::new(&server, &call).run().check(1);
    assert_eq!(ended.output, "");
    shown::check("call-error", &ended.errors);
    let call = ["call", "demo.nothing"];
    shown::check(
        "call-no-such-function",
        &Forrst::new(&server, &call).run().check(1).errors,
    );
    let several = ["call", "payments.charge", "--json"];
    let ended = Forrst::new(&server, &several).run().check(1);
    let errors = ended.json()["errors"].as_array().unwrap().len();
    assert_eq!(ended.errors.matches("error:").count(), errors, "{ended:#?}");
    ended.complains(&["/call/arguments/user_id", "/call/arguments/amount"]);
}

#[test]
fn a_lock_is_held_while_it_runs_and_after_it_where_asked_to() {
    let server = Server::start();
    let locked = ["call", "demo.echo", "--lock", "k"];
    Forrst::new(&server, &locked).run().check(0);
    let status = ["lock", "status", "k", "--function", "demo.echo", "--json"];
    assert_eq!(Forrst::new(&server, &status).json()["locked"], false);

    let held = Forrst::new(&server, &[&locked[..], &["--hold", "--ttl", "1h"]].concat())
        .run()
        .check(0);
    shown::check("call-held", &held.errors);
    assert_eq!(Forrst::new(&server, &status).json()["locked"], true);

    let refused = Forrst::new(&server, &locked).run().check(75);
    shown::check("call-refused", &refused.errors);
    let waited = Forrst::new(
        &server,
        &[&locked[..], &["--block", "100ms", "--json"]].concat(),
    )
    .run();
    let waited = waited.check(75);
    assert_eq!(waited.json()["errors"][0]["code"], "LOCK_TIMEOUT");
    // The global lock of the same key is another one.
    Forrst::new(&server, &[&locked[..], &["--global"]].concat())
        .run()
        .check(0);
}

#[test]
fn a_server_that_is_not_there_is_69() {
    let call = ["call", "demo.echo", "--url", "http://127.0.0.1:1"];
    let ended = Forrst::alone(&call).run().check(69);
    shown::check("call-unreachable", &ended.errors);
    let ended = Forrst::alone(&[&call[..], &["--json"]].concat())
        .run()
        .check(69);
    assert_eq!(ended.json()["errors"][0]["code"], "UNAVAILABLE");
}

/// Where `FORRST_URL` says something else.
#[test]
fn the_flag_counts_more_than_the_environment() {
    let server = Server::start();
    let url = server.url();
    let call = ["call", "demo.echo", "--url", &url];
    Forrst::alone(&call)
        .variable("FORRST_URL", "http://127.0.0.1:1")
        .run()
        .check(0);
}

/// It would be another lock, whose name nobody guesses.
#[test]
fn a_full_key_is_not_taken_for_a_key() {
    for (arguments, own) in [
        (
            &["lock", "acquire", "lock:export:orders"][..],
            "write export:orders",
        ),
        (&["run", "--key", "lock:k", "--", "true"], "write k"),
        (
            &["call", "demo.echo", "--lock", "lock:demo.echo:k"],
            "write k",
        ),
    ] {
        let ended = Forrst::alone(arguments).run().check(2);
        ended.complains(&["full key", own]);
    }
}

#[test]
fn a_variable_that_is_empty_is_as_good_as_none() {
    // Whoever runs a server at the usual place gets an answer, and all others this.
    let ended = Forrst::alone(&["lock", "status", "k"])
        .variable("FORRST_URL", "")
        .run();
    assert!(
        ended.code == Some(0) || ended.errors.contains("http://127.0.0.1:7420"),
        "{ended:#?}"
    );
}

#[test]
fn a_url_without_its_scheme_is_told_what_to_write() {
    for url in ["localhost:7420", "127.0.0.1:7420", "locks.example"] {
        for command in [&["lock", "status", "k"][..], &["call", "demo.echo"]] {
            let arguments = [command, &["--url", url, "--json"]].concat();
            let ended = Forrst::alone(&arguments).run().check(2);
            ended.complains(&[&format!("write http://{url}")]);
            assert_eq!(ended.json()["errors"][0]["code"], "INVALID_REQUEST");
        }
    }
}

#[test]
fn a_call_is_ended_when_its_time_is_over() {
    let server = Server::start();
    let call = ["call", "demo.sleep", "ms=60000", "--timeout", "300ms"];
    let ended = Forrst::new(&server, &call).run().check(1);
    ended.complains(&["deadline"]);
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    let server = Server::start();
    let link = Proxy::start(server.port());
    link.swallow(Way::ToClient, Traffic::All);
    let url = link.http_url();
    let status = ["lock", "status", "k", "--url", &url, "--timeout", "100ms"];
    Forrst::alone(&status).run().check(69);
}
