//! `forrst lock`: acquire, status, extend, release and their errors.

use std::fs::File;
use std::process::Command;

use forrst_testkit::Proxy;
use serde_json::json;

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;
use crate::commands::shown;

#[test]
fn a_lock_is_acquired_shown_extended_and_released() {
    let server = Server::start();
    let forrst = |arguments: &[&str]| Forrst::new(&server, arguments).run();
    let acquired = forrst(&["lock", "acquire", "export:orders", "--ttl", "1h"]).check(0);
    shown::check("lock-acquired", &acquired.output);
    shown::check(
        "lock-held",
        &forrst(&["lock", "status", "export:orders"]).check(0).output,
    );
    shown::check("lock-list", &forrst(&["lock", "list"]).check(0).output);

    let owner = acquired
        .output
        .lines()
        .find_map(|line| line.strip_prefix("  owner     "));
    let owner = owner.expect("the owner is shown in full");
    let extend = [
        "lock",
        "extend",
        "export:orders",
        "--owner",
        owner,
        "--ttl",
        "10m",
    ];
    shown::check("lock-extended", &forrst(&extend).check(0).output);
    let release = ["lock", "release", "lock:export:orders", "--owner", owner];
    assert_eq!(
        forrst(&release).check(0).output,
        "lock:export:orders is released\n"
    );
    assert_eq!(
        forrst(&["lock", "status", "export:orders"]).check(0).output,
        "lock:export:orders is free\n"
    );
    assert_eq!(
        forrst(&["lock", "list"]).check(0).output,
        "No locks are held\n"
    );
    forrst(&release)
        .check(1)
        .check_errors(&["LOCK_ALREADY_RELEASED"]);
}

#[test]
fn an_acquisition_without_an_answer_leaves_no_lock() {
    let server = Server::start();
    let link = Proxy::start(server.port());
    let status = ["lock", "status", "k", "--json"];
    // As many answers as there are tries, and all answers.
    for lost in [4, usize::MAX] {
        link.lose_answers(lost);
        let url = link.http_url();
        let acquire = ["lock", "acquire", "k", "--ttl", "10m", "--url", &url];
        Forrst::alone(&acquire).run().check(69);
        assert_eq!(Forrst::new(&server, &status).json()["locked"], false);
    }
}

#[test]
fn json_is_what_the_functions_answer() {
    let server = Server::start();
    let forrst =
        |arguments: &[&str]| Forrst::new(&server, &[arguments, &["--json"]].concat()).json();
    let acquire = [
        "lock",
        "acquire",
        "k",
        "--function",
        "demo.echo",
        "--owner",
        "me",
        "--ttl",
        "1h",
    ];
    let acquired = forrst(&acquire);
    let expected = json!({
        "key": "k", "acquired": true, "owner": "me", "scope": "function", "full_key": "lock:demo.echo:k",
        "fence": acquired["fence"], "expires_at": acquired["expires_at"],
        "ttl_remaining_ms": acquired["ttl_remaining_ms"], "elapsed_ms": acquired["elapsed_ms"],
    });
    assert_eq!(acquired, expected);
    let status = forrst(&["lock", "status", "k", "--function", "demo.echo"]);
    assert_eq!(status["owner"], "me");
    assert_eq!(status["fence"], acquired["fence"]);
    assert_eq!(status["expires_at"], acquired["expires_at"]);
    let listed = forrst(&["lock", "list"]);
    assert_eq!(listed["cursor"], json!(null));
    assert_eq!(listed["locks"][0]["fence"], status["fence"]);
    assert_eq!(listed["locks"][0]["holder_count"], 1);
    let fence = acquired["fence"].as_str().unwrap();
    let lease = ["lock:demo.echo:k", "--owner", "me", "--fence", fence];
    let extended = forrst(&[&["lock", "extend", "--ttl", "2h"][..], &lease].concat());
    assert_eq!(extended["extended"], true);
    assert!(extended["expires_at"].as_str() > acquired["expires_at"].as_str());
    let released = forrst(&[&["lock", "release"][..], &lease].concat());
    assert_eq!(
        released,
        json!({"released": true, "key": "lock:demo.echo:k"})
    );
    let free = forrst(&["lock", "status", "lock:demo.echo:k"]);
    assert_eq!(
        free,
        json!({"key": "lock:demo.echo:k", "locked": false, "waiters": 0})
    );
}

#[test]
fn printed_commands_can_be_copied_into_a_shell() {
    let server = Server::start();
    let forrst = env!("CARGO_BIN_EXE_forrst");
    for (key, owner) in [("it's $HOME", "-me"), ("a b", "o'x")] {
        let owner = format!("--owner={owner}");
        let acquire = ["lock", "acquire", key, "--ttl", "1h", &owner];
        let acquired = Forrst::new(&server, &acquire).run().check(0);
        let refused = Forrst::new(&server, &["lock", "acquire", key])
            .run()
            .check(75);
        let status = refused
            .errors
            .split_once("who holds it: forrst ")
            .unwrap()
            .1;
        let release = acquired
            .output
            .split_once("To release it: forrst ")
            .unwrap()
            .1;
        for (command, says) in [(status, "is held"), (release, "is released")] {
            let shell = Command::new("sh")
                .args(["-c", &format!("{forrst} {command}")])
                .env("FORRST_URL", server.url())
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&shell.stdout);
            assert!(printed.contains(says), "{command}: {shell:?}");
        }
    }
}

#[test]
fn a_result_that_cannot_be_printed_is_an_error_and_leaves_no_lock() {
    let server = Server::start();
    let acquire = ["lock", "acquire", "k", "--ttl", "1h", "--json"];
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let ended = Forrst::new(&server, &acquire).run_into(full()).check(1);
    ended.check_errors(&["standard output"]);
    let status = ["lock", "status", "k", "--json"];
    assert_eq!(Forrst::new(&server, &status).json()["locked"], false);
    for arguments in [
        &["lock", "status", "k"][..],
        &["lock", "list"],
        &["call", "demo.echo"],
        &["completions", "bash"],
    ] {
        Forrst::new(&server, arguments).run_into(full()).check(1);
    }
    // A reader that has closed the pipe is not an error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Forrst::new(&server, &["lock", "status", "k"])
        .run_into(writer)
        .check(0);
}

#[test]
fn a_release_whose_answer_was_lost_succeeds() {
    let server = Server::start();
    let link = Proxy::start(server.port());
    let acquire = ["lock", "acquire", "k", "--ttl", "1h", "--owner", "me"];
    Forrst::new(&server, &acquire).run().check(0);
    link.lose_answers(1);
    let url = link.http_url();
    let release = ["lock", "release", "k", "--owner", "me", "--url", &url];
    Forrst::alone(&release).run().check(0);
}

#[test]
fn refusals_are_explained() {
    let server = Server::start();
    let forrst = |arguments: &[&str]| Forrst::new(&server, arguments).run();
    forrst(&["lock", "acquire", "k", "--ttl", "1h", "--owner", "me"]).check(0);
    let refused = forrst(&["lock", "acquire", "k", "--json"]).check(75);
    assert_eq!(
        refused.json()["errors"][0]["code"],
        "LOCK_ACQUISITION_FAILED"
    );
    forrst(&["lock", "acquire", "k", "--block", "50ms"])
        .check(75)
        .check_errors(&["LOCK_TIMEOUT"]);
    let release = forrst(&["lock", "release", "k", "--owner", "you"]).check(1);
    shown::check("lock-mismatch", &release.errors);
    let missing = forrst(&["lock", "extend", "other", "--owner", "me", "--ttl", "1s"]).check(1);
    shown::check("lock-not-found", &missing.errors);
    let too_long = forrst(&["lock", "acquire", "k2", "--ttl", "100days"]).check(1);
    too_long.check_errors(&["INVALID_ARGUMENTS", "/call/arguments/ttl"]);
}

#[test]
fn status_has_an_exit_code_only_with_its_flag() {
    let server = Server::start();
    let status = |arguments: &[&str]| {
        let arguments = [&["lock", "status", "k"], arguments].concat();
        Forrst::new(&server, &arguments).run().code
    };
    assert_eq!(status(&[]), Some(0));
    assert_eq!(status(&["--exit-code"]), Some(0));
    Forrst::new(&server, &["lock", "acquire", "k", "--ttl", "1h"])
        .run()
        .check(0);
    assert_eq!(status(&[]), Some(0));
    assert_eq!(status(&["--exit-code"]), Some(75));
}
