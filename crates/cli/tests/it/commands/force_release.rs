//! `forrst lock force-release`, which asks first.

use serde_json::{Value, json};

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;
use crate::commands::shown;
use crate::commands::terminal::AtTerminal;

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
fn without_a_terminal_it_wants_to_be_told() {
    let server = held();
    let refused = Forrst::new(&server, &FORCE).run().check(2);
    shown::check("force-release-refused", &refused.errors);
    assert!(is_held(&server));
    let forced = Forrst::new(&server, &[&FORCE[..], &["--yes", "--json"]].concat()).json();
    assert_eq!(
        forced,
        json!({"released": true, "key": "lock:k", "forced": true})
    );
    assert!(!is_held(&server));
    let nothing = Forrst::new(&server, &[&FORCE[..], &["--yes"]].concat())
        .run()
        .check(1);
    nothing.complains(&["LOCK_NOT_FOUND"]);
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
    run("000000000000999", 1).complains(&["LOCK_OWNERSHIP_MISMATCH"]);
    assert!(is_held(&server));
    run(status["fence"].as_str().unwrap(), 0);
    assert!(!is_held(&server));
}

#[test]
fn a_lease_that_was_granted_while_the_question_was_open_is_spared() {
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

#[test]
fn errors_are_red_on_a_terminal_unless_colours_are_not_wanted() {
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
