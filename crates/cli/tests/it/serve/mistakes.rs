//! Errors at startup name what is wrong. The exit code is 2 for wrong usage, and 1 when the server cannot run.

use std::net::TcpListener;

use forrst_testkit::{Serve, until};

use crate::serve::command::{bare, demo, serve, shown};

/// Checks that the server fails with this code, prints all of these words to standard error, and no banner.
#[track_caller]
fn check(serve: &Serve, code: i32, says: &[&str]) {
    let (actual, output, errors) = serve.run();
    assert_eq!(actual, Some(code), "{output}{errors}");
    for word in says {
        assert!(errors.contains(word), "`{word}` is not in\n{errors}");
    }
    assert!(!errors.contains("panicked"), "{errors}");
    assert!(!output.contains("curl"), "there is a banner:\n{output}");
}

#[test]
fn wrong_flags_and_values_are_refused() {
    for (arguments, says) in [
        (
            &["--lisen", "127.0.0.1:0"][..],
            &["--lisen", "--listen"][..],
        ),
        (&["extra"], &["extra"]),
        (&["--max-ttl"], &["--max-ttl"]),
        (&["--max-ttl", "soon"], &["--max-ttl", "soon", "30s"]),
        (&["--max-ttl", "5"], &["--max-ttl", "5"]),
        (&["--max-ttl", "0s"], &["--max-ttl", "0s"]),
        (&["--max-block", "-1s"], &["-1"]),
        (&["--drain-timeout", "never"], &["--drain-timeout", "never"]),
        (&["--store-wait", "soon"], &["--store-wait", "soon", "30s"]),
        (
            &["--remember-releases", "500ms"],
            &["--remember-releases", "500ms", "1s", "1h"],
        ),
        (
            &["--remember-releases", "2h"],
            &["--remember-releases", "2h"],
        ),
        (&["--max-body", "0"], &["--max-body", "0"]),
        (&["--max-body", "1GB"], &["--max-body", "1GB", "1MiB"]),
        (
            &["--max-connections", "many"],
            &["--max-connections", "many"],
        ),
        (&["--log-format", "xml"], &["--log-format", "xml", "json"]),
        (&["--log-level", "loud"], &["--log-level", "loud", "debug"]),
        (&["--durability", "some"], &["--durability", "some"]),
        (&["--demo", "--demo"], &["--demo"]),
    ] {
        check(&serve(arguments), 2, says);
    }
    check(
        &serve(&["--store", "memory:"]).variable("FORRST_MAX_TTL", "soon"),
        2,
        &["soon", "max-ttl"],
    );
    check(
        &serve(&["--store", "memory:"]).variable("FORRST_DEMO", "maybe"),
        2,
        &["maybe", "demo"],
    );
}

#[test]
fn a_limit_of_zero_connections_is_refused() {
    check(
        &serve(&["--store", "memory:", "--max-connections", "0"]),
        2,
        &["--max-connections", "0"],
    );
}

#[test]
fn invalid_files_are_refused() {
    check(
        &demo(&["--config", "missing.toml"]),
        1,
        &["missing.toml", "No such file"],
    );
    for (text, says) in [
        ("listen = ", &["forrst.toml", "listen"][..]),
        ("max_ttl = '1h'", &["forrst.toml", "max_ttl", "max-ttl"]),
        ("max-ttl = 5", &["forrst.toml", "max-ttl"]),
        ("max-ttl = 'soon'", &["forrst.toml", "max-ttl", "soon"]),
        ("store-wait = 30", &["forrst.toml", "store-wait"]),
        ("\nmax-body = '1GB'", &["forrst.toml", "2", "max-body"]),
        ("demo = 'yes'", &["forrst.toml", "demo"]),
        ("log-format = 'xml'", &["forrst.toml", "xml", "json"]),
        ("log-level = 'loud'", &["forrst.toml", "loud", "debug"]),
        (
            "[server]\nlisten = '127.0.0.1:0'",
            &["forrst.toml", "server"],
        ),
    ] {
        check(&demo(&[]).config(text), 1, says);
    }
}

#[test]
fn unknown_stores_are_refused() {
    for store in [
        "redis",
        "http://localhost",
        "memory",
        "memory:x",
        "",
        "Memory:",
    ] {
        check(
            &serve(&["--store", store]),
            1,
            &[&format!("`{store}`"), "memory:"],
        );
    }
    check(
        &serve(&["--store", "embedded:"]),
        1,
        &["embedded:", "folder"],
    );
    let serve = serve(&["--store", "embedded:file"]);
    std::fs::write(serve.path("file"), "not a folder").unwrap();
    check(&serve, 1, &["file"]);
}

#[test]
fn an_error_names_the_address_that_cannot_be_listened_on() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    check(
        &bare(&["--store", "memory:", "--listen", &address]),
        1,
        &[&address, "in use"],
    );
    for address in [
        "nonsense",
        "127.0.0.1",
        "256.0.0.1:80",
        "127.0.0.1:99999",
        "203.0.113.1:80",
        "",
    ] {
        let says = [format!("cannot listen on {address}")];
        check(
            &bare(&["--store", "memory:", "--listen", address]),
            1,
            &[&says[0]],
        );
    }
}

#[test]
fn a_node_name_that_is_not_a_header_value_is_refused() {
    check(&demo(&["--node", "two words"]), 1, &["node"]);
    check(&demo(&["--node", ""]), 1, &["node"]);
}

#[test]
fn a_store_that_another_server_uses_is_refused() {
    let serve = serve(&["--store", "embedded:locks"]);
    let running = serve.start();
    check(&serve, 1, &["locks"]);
    drop(running);
}

/// The error is found before the banner is printed.
#[test]
fn an_error_names_the_socket_that_cannot_be_listened_on() {
    let serve = demo(&["--unix", "no/such/folder/socket"]);
    check(&serve, 1, &["no/such/folder/socket"]);
    let serve = demo(&["--unix", "file"]);
    std::fs::write(serve.path("file"), "precious").unwrap();
    check(&serve, 1, &["file", "not a socket"]);
    assert_eq!(
        std::fs::read_to_string(serve.path("file")).unwrap(),
        "precious"
    );
    let first = demo(&["--unix", "socket"]);
    let running = first.start();
    let socket = shown(&first.path("socket"));
    until("it listens", || first.path("socket").exists());
    check(&demo(&["--unix", &socket]), 1, &[&socket, "another server"]);
    assert!(!running.has_ended());
}

#[test]
fn the_help_names_every_option_and_its_variable() {
    let (code, output, _) = bare(&["--help"]).run();
    assert_eq!(code, Some(0));
    for flag in [
        "listen",
        "unix",
        "store",
        "store-wait",
        "demo",
        "max-ttl",
        "max-block",
        "max-body",
        "max-connections",
        "drain-timeout",
        "remember-releases",
        "node",
        "log-format",
        "log-level",
        "config",
    ] {
        assert!(output.contains(&format!("--{flag}")), "{flag}");
        let variable = format!("FORRST_{}", flag.to_uppercase().replace('-', "_"));
        assert!(output.contains(&variable), "{variable}");
    }
}
