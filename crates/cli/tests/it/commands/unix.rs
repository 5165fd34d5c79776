//! Commands with the URL of a unix socket.

use forrst_testkit::Serve;
use serde_json::Value;

use crate::commands::forrst::Forrst;

#[test]
fn commands_use_a_unix_socket() {
    let arguments = ["--store", "memory:", "--unix", "socket"];
    let serve = Serve::new(env!("CARGO_BIN_EXE_forrst"), &arguments);
    let _running = serve.start();
    let url = format!("unix:{}", serve.path("socket").display());
    let acquire = ["lock", "acquire", "k", "--url", &url];
    Forrst::alone(&acquire).run().check(0);
    let json = |arguments: &[&str]| -> Value {
        let forrst = Forrst::alone(arguments);
        forrst.variable("FORRST_URL", &url).json()
    };
    assert_eq!(json(&["lock", "status", "k", "--json"])["locked"], true);
    let bench = json(&["bench", "--duration", "200ms", "--json"]);
    assert!(bench["granted"].as_u64() > Some(0), "{bench}");
    let run = ["run", "--key", "job", "--url", &url, "--", "true"];
    Forrst::alone(&run).run().check(0);
}

#[test]
fn an_error_names_the_unix_socket_that_cannot_be_used() {
    let status = |url| Forrst::alone(&["lock", "status", "k", "--url", url]).run();
    let relative = status("unix:forrst.sock").check(2);
    relative.check_errors(&["unix:forrst.sock", "absolute path"]);
    assert!(!relative.errors.contains("http://"), "{relative:#?}");
    status("unix:/no/such.sock")
        .check(69)
        .check_errors(&["/no/such.sock", "No such file"]);
}
