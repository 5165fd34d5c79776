//! `forrst lock force-release`, which asks first.

use std::time::Duration;

use forrst_testkit::Lock;
use serde_json::{Value, json};

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;
use crate::commands::shown;
use crate::commands::terminal::AtTerminal;

const HOUR: Duration = Duration::from_secs(60 * 60);
const FORCE: [&str; 3] = ["lock", "force-release", "k"];

fn held() -> Server {
    let server = Server::start();
    Forrst::new(
        &server,
        &["lock", "acquire", "k", "--ttl", "1h", "--owner", "me"],
    )
    .run()
    .check(0);
    server
}

fn is_held(server: &Server) -> bool {
    let status: Value = Forrst::new(server, &["lock", "status", "k", "--json"]).json();
    status["locked"] == true
}

#[test]
fn without_a_terminal_the_flag_yes_is_required() {
    let server = held();
    let refused = Forrst::new(&server, &FORCE).run().check(2);
    shown::check("force-release-refused", &refused.errors);
    assert!(is_held(&server));
    let forced = Forrst::new(&server, &[&FORCE[..], &["--yes", "--json"]].concat()).json();
    assert_eq!(
        forced,
        json!({"released": true, "key": "lock:k", "forced": true, "leases": 1})
    );
    assert!(!is_held(&server));
    let nothing = Forrst::new(&server, &[&FORCE[..], &["--yes"]].concat())
        .run()
        .check(1);
    nothing.check_errors(&["LOCK_NOT_FOUND"]);
}

#[test]
fn on_a_terminal_it_asks() {
    for (answer, code, is_released) in [
        ("y\n", 0, true),
        ("yes\n", 0, true),
        ("n\n", 1, false),
        ("\n", 1, false),
    ] {
        let server = held();
        let mut asking = AtTerminal::start(&FORCE, &server.url());
        asking.until_shown("[y/N]");
        assert!(
            asking.screen().contains("lock:k is held by me"),
            "{}",
            asking.screen()
        );
        assert!(is_held(&server), "not before the answer");
        asking.types(answer);
        assert_eq!(asking.wait(), Some(code), "{answer:?} {}", asking.screen());
        assert_eq!(!is_held(&server), is_released, "{answer:?}");
    }
}

#[test]
fn a_fence_names_the_lease_that_is_released() {
    let server = held();
    let with = |fence: &str| {
        [&FORCE[..], &["--yes", "--fence", fence]]
            .concat()
            .join(" ")
    };
    let run = |fence: &str, code| {
        let arguments = with(fence);
        let arguments: Vec<&str> = arguments.split(' ').collect();
        Forrst::new(&server, &arguments).run().check(code)
    };
    let status: Value = Forrst::new(&server, &["lock", "status", "k", "--json"]).json();
    run("000000000000999", 1).check_errors(&["LOCK_OWNERSHIP_MISMATCH"]);
    assert!(is_held(&server));
    run(status["fence"].as_str().unwrap(), 0);
    assert!(!is_held(&server));
}

#[test]
fn a_lease_that_was_granted_after_the_question_is_not_released() {
    let server = held();
    let mut asking = AtTerminal::start(&FORCE, &server.url());
    asking.until_shown("[y/N]");
    let release = ["lock", "release", "k", "--owner", "me"];
    Forrst::new(&server, &release).run().check(0);
    let acquire = ["lock", "acquire", "k", "--ttl", "1h", "--owner", "next"];
    Forrst::new(&server, &acquire).run().check(0);
    asking.types("y\n");
    assert_eq!(asking.wait(), Some(1), "{}", asking.screen());
    asking.until_shown("LOCK_OWNERSHIP_MISMATCH");
    assert!(is_held(&server));
}

fn acquire(server: &Server, arguments: &[&str]) {
    let common = ["lock", "acquire", "--ttl", "1h"];
    Forrst::new(server, &[&common, arguments].concat())
        .run()
        .check(0);
}

#[test]
fn the_question_names_all_keys_of_a_set() {
    let server = Server::start();
    acquire(&server, &["k", "other", "--owner", "me"]);
    let mut asking = AtTerminal::start(&FORCE, &server.url());
    asking.until_shown("[y/N]");
    asking.until_shown("lock:k is held by me");
    asking.until_shown("Released with it: lock:other.");
    asking.types("y\n");
    assert_eq!(asking.wait(), Some(0), "{}", asking.screen());
    assert!(!is_held(&server));
}

#[test]
fn the_question_names_all_holders() {
    let server = Server::start();
    for owner in ["one", "two"] {
        acquire(&server, &["k", "--shared", "--owner", owner]);
    }
    let mut asking = AtTerminal::start(&FORCE, &server.url());
    asking.until_shown("Release these 2 leases by force? [y/N]");
    for owner in ["one", "two"] {
        asking.until_shown(owner);
    }
    // One lease ends by itself, and one is granted after the question: the latter is not released.
    let release = ["lock", "release", "k", "--owner", "one"];
    Forrst::new(&server, &release).run().check(0);
    acquire(&server, &["k", "--shared", "--owner", "three"]);
    asking.types("y\n");
    assert_eq!(asking.wait(), Some(0), "{}", asking.screen());
    let status: Value = Forrst::new(&server, &["lock", "status", "k", "--json"]).json();
    assert_eq!(status["owner"], "three", "{status}");
    assert_eq!(status["holder_count"], 1);
}

#[test]
fn with_yes_all_leases_are_released() {
    let server = Server::start();
    for owner in ["one", "two"] {
        acquire(&server, &["k", "--limit", "2", "--owner", owner]);
    }
    let forced = Forrst::new(&server, &[&FORCE[..], &["--yes", "--json"]].concat()).json();
    assert_eq!(
        forced,
        json!({"released": true, "key": "lock:k", "forced": true, "leases": 2})
    );
}

#[test]
fn holders_that_were_not_shown_are_not_released_but_counted() {
    let server = Server::start();
    for number in 0..101 {
        let mut request = Lock::global("k").acquire(&format!("owner {number}"), HOUR);
        request["call"]["arguments"]["mode"] = "shared".into();
        assert_eq!(server.ask(&request).status, 200);
    }
    let mut asking = AtTerminal::start(&FORCE, &server.url());
    asking.until_shown("Release these 100 leases by force? [y/N]");
    asking.types("y\n");
    assert_eq!(asking.wait(), Some(0), "{}", asking.screen());
    asking.until_shown("1 more hold it, which were not shown");
    let status: Value = Forrst::new(&server, &["lock", "status", "k", "--json"]).json();
    assert_eq!(status["holder_count"], 1);
}

#[test]
fn errors_are_red_on_a_terminal_unless_no_color_is_set() {
    let server = held();
    let mut refused = AtTerminal::start(&["lock", "acquire", "k"], &server.url());
    assert_eq!(refused.wait(), Some(75));
    refused.until_shown("\x1b[1m\x1b[31merror:");
    let forrst = env!("CARGO_BIN_EXE_forrst");
    let plain = ["NO_COLOR=1", forrst, "lock", "acquire", "k"];
    let mut refused = AtTerminal::start_program("env", &plain, &server.url());
    assert_eq!(refused.wait(), Some(75));
    refused.until_shown("error:");
    assert!(!refused.screen().contains('\x1b'), "{:?}", refused.screen());
}
