//! `forrst call`: results, errors, locks and timeouts.

use forrst_testkit::{Proxy, Traffic, Way, until};
use rustix::process::Signal;
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
fn with_json_the_whole_answer_is_printed() {
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

/// Servers refuse it, because it is ambiguous.
#[test]
fn a_duplicate_member_is_sent_as_it_is() {
    let server = Server::start();
    let call = ["call", "demo.echo", r#"{"amount": 1, "amount": 100}"#];
    let ended = Forrst::new(&server, &call).run().check(1);
    ended.check_errors(&["/call/arguments/amount"]);
}

#[test]
fn errors_are_printed_with_their_pointer() {
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
    ended.check_errors(&["/call/arguments/user_id", "/call/arguments/amount"]);
}

#[test]
fn a_lock_is_held_during_the_call_and_with_hold_after_it() {
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
fn an_unreachable_server_has_exit_code_69() {
    let call = ["call", "demo.echo", "--url", "http://127.0.0.1:1"];
    let ended = Forrst::alone(&call).run().check(69);
    shown::check("call-unreachable", &ended.errors);
    let ended = Forrst::alone(&[&call[..], &["--json"]].concat())
        .run()
        .check(69);
    assert_eq!(ended.json()["errors"][0]["code"], "UNAVAILABLE");
}

#[test]
fn the_flag_overrides_the_environment() {
    let server = Server::start();
    let url = server.url();
    let call = ["call", "demo.echo", "--url", &url];
    Forrst::alone(&call)
        .variable("FORRST_URL", "http://127.0.0.1:1")
        .run()
        .check(0);
}

/// It would lock `lock:lock:…`, another lock.
#[test]
fn a_full_key_is_refused_where_a_lock_is_acquired() {
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
        ended.check_errors(&["full key", own]);
    }
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    // On a machine with a server at the default address there is an answer; on others, this error.
    let ended = Forrst::alone(&["lock", "status", "k"])
        .variable("FORRST_URL", "")
        .run();
    assert!(
        ended.code == Some(0) || ended.errors.contains("http://127.0.0.1:7420"),
        "{ended:#?}"
    );
}

#[test]
fn the_error_about_a_url_without_a_scheme_says_what_to_write() {
    for url in ["localhost:7420", "127.0.0.1:7420", "locks.example"] {
        for command in [&["lock", "status", "k"][..], &["call", "demo.echo"]] {
            let arguments = [command, &["--url", url, "--json"]].concat();
            let ended = Forrst::alone(&arguments).run().check(2);
            ended.check_errors(&[&format!("write http://{url}")]);
            assert_eq!(ended.json()["errors"][0]["code"], "INVALID_REQUEST");
        }
    }
}

#[test]
fn a_call_ends_at_its_timeout() {
    let server = Server::start();
    let call = ["call", "demo.sleep", "ms=60000", "--timeout", "300ms"];
    let ended = Forrst::new(&server, &call).run().check(1);
    ended.check_errors(&["deadline"]);
}

#[test]
fn a_silent_server_is_given_up_after_the_timeout() {
    let server = Server::start();
    let link = Proxy::start(server.port());
    link.swallow(Way::ToClient, Traffic::All);
    let url = link.http_url();
    let status = ["lock", "status", "k", "--url", &url, "--timeout", "100ms"];
    Forrst::alone(&status).run().check(69);
}

#[test]
fn an_interrupt_cancels_a_function_that_runs() {
    let server = Server::start();
    let call = ["call", "demo.sleep", "ms=600000", "--lock", "k", "--global"];
    let running = Forrst::new(&server, &call).start();
    let status = || Forrst::new(&server, &["lock", "status", "k", "--json"]).json();
    until("the function runs", || status()["locked"] == true);
    running.signal(Signal::INT);
    let ended = running.wait().check(130);
    ended.check_errors(&["Cancelling the call", "CANCELLED"]);
    assert_eq!(status()["locked"], false);
}

#[test]
fn an_interrupt_cancels_a_call_that_waits_over_any_transport() {
    let server = Server::start();
    let hold = ["lock", "acquire", "k", "--ttl", "10m", "--owner", "me"];
    Forrst::new(&server, &hold).run().check(0);
    let status = || Forrst::new(&server, &["lock", "status", "k", "--json"]).json();
    for url in [server.url(), server.url().replace("http:", "ws:")] {
        let call = [
            "call",
            "demo.echo",
            "--lock",
            "k",
            "--global",
            "--block",
            "1m",
            "--url",
            &url,
        ];
        let running = Forrst::alone(&call).start();
        until("the call waits", || status()["waiters"] == 1);
        running.signal(Signal::INT);
        running.wait().check(130).check_errors(&["CANCELLED"]);
        until("the queue is empty", || status()["waiters"] == 0);
    }
}

#[test]
fn a_second_interrupt_ends_the_program_without_an_answer() {
    let server = Server::start();
    let call = ["call", "demo.sleep", "ms=600000", "--lock", "k", "--global"];
    let running = Forrst::new(&server, &call).start();
    let status = || Forrst::new(&server, &["lock", "status", "k", "--json"]).json();
    until("the function runs", || status()["locked"] == true);
    server.pause();
    running.signal(Signal::INT);
    until("the first interrupt is noticed", || {
        running.errors().contains("Cancelling")
    });
    running.signal(Signal::INT);
    running.wait().check(130);
}
