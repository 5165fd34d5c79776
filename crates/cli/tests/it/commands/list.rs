//! `forrst lock list`, once and with `--watch`.

use forrst_testkit::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::commands::forrst::Forrst;
use crate::commands::server::Server;
use crate::commands::terminal::AtTerminal;

fn acquire(server: &Server, key: &str) {
    Forrst::new(server, &["lock", "acquire", key, "--ttl", "1h"])
        .run()
        .check(0);
}

#[test]
fn a_list_can_be_limited_to_a_prefix_and_a_number() {
    let server = Server::start();
    for key in ["a:1", "a:2", "b:1"] {
        acquire(&server, key);
    }
    let keys = |arguments: &[&str]| -> Vec<String> {
        let list = Forrst::new(&server, &[&["lock", "list", "--json"], arguments].concat()).json();
        let locks = list["locks"].as_array().unwrap();
        let keys = locks.iter().map(|lock| lock["key"].as_str().unwrap());
        let mut keys: Vec<String> = keys.map(str::to_owned).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&[]), ["lock:a:1", "lock:a:2", "lock:b:1"]);
    assert_eq!(keys(&["--prefix", "a:"]), ["lock:a:1", "lock:a:2"]);
    assert_eq!(keys(&["--prefix", "lock:b"]), ["lock:b:1"]);
    assert_eq!(keys(&["--limit", "2"]).len(), 2);
    assert!(keys(&["--prefix", "c"]).is_empty());
    let table = Forrst::new(&server, &["lock", "list"])
        .run()
        .check(0)
        .output;
    let shown: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(shown, ["lock:a:1", "lock:a:2", "lock:b:1"]);
}

#[test]
fn watch_shows_changes() {
    let server = Server::start();
    let watch = ["lock", "list", "--watch", "--interval", "50ms"];
    let watching = Forrst::new(&server, &watch).start();
    until("it shows that nothing is held", || {
        watching.output().contains("No locks are held")
    });
    acquire(&server, "k");
    until("it shows the lock", || watching.output().contains("lock:k"));
    let shown = watching.output().len();
    Forrst::new(&server, &["lock", "force-release", "k", "--yes"])
        .run()
        .check(0);
    until("it shows that it is gone", || {
        watching.output()[shown..].contains("No locks are held")
    });
    assert!(
        !watching.output().contains('\x1b'),
        "nothing is redrawn without a terminal"
    );
    watching.signal(Signal::INT);
    assert_eq!(watching.wait().code, None, "ended by the signal");
}

#[test]
fn on_a_terminal_the_list_is_redrawn() {
    let server = Server::start();
    let watching = AtTerminal::start(
        &["lock", "list", "--watch", "--interval", "50ms"],
        &server.url(),
    );
    watching.until_shown("\x1b[HNo locks are held\x1b[K");
    acquire(&server, "k");
    watching.until_shown("lock:k");
}

#[test]
fn watch_continues_after_a_restart_of_the_server() {
    let mut server = Server::durable();
    acquire(&server, "k");
    let watch = ["lock", "list", "--watch", "--interval", "50ms", "--json"];
    let watching = Forrst::new(&server, &watch).start();
    until("it shows the lock", || watching.output().contains("lock:k"));
    server.kill();
    let shown = watching.output().len();
    server.restart();
    until("it shows the lock again", || {
        watching.output()[shown..].contains("lock:k")
    });
    let documents = watching.output();
    for line in documents.lines().take(3) {
        assert!(serde_json::from_str::<Value>(line).unwrap()["locks"].is_array());
    }
}
