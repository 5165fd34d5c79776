//! Every option about access can also come from the environment and from the file.

use forrst_testkit::Serve;

use crate::access::client::{connect, exchange, post};
use crate::access::keys::{FORRST, make_key};

/// Each option, and a value that has an effect or is at least accepted.
const OPTIONS: [(&str, &str); 10] = [
    ("auth-file", "keys.toml"),
    ("insecure", "true"),
    ("allow-host", "one.test,two.test"),
    ("max-head", "16KiB"),
    ("max-in-flight", "5"),
    ("max-waiters", "6"),
    ("max-waiters-per-lock", "7"),
    ("max-locks-per-caller", "8"),
    ("max-rate", "1"),
    ("idle-timeout", "9s"),
];

fn check(serve: &Serve, key: &(String, String)) {
    std::fs::write(serve.path("keys.toml"), &key.1).unwrap();
    let running = serve.start();
    let address = running.address();
    let (_, port) = address.rsplit_once(':').unwrap();
    let address = format!("127.0.0.1:{port}");
    let reply = post(&address, "/forrst", &[], &forrst_testkit::list());
    assert_eq!(reply.status, 401);
    for (host, status) in [("two.test", 200), ("three.test", 403)] {
        let text = format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert_eq!(exchange(connect(&address), &text).status, status);
    }
    let padding = "x".repeat(20_000);
    let text = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {padding}\r\n\r\n");
    assert_eq!(exchange(connect(&address), &text).status, 431);
    let own = format!("x-api-key: {}", key.0);
    let mut statuses =
        (0..30).map(|_| post(&address, "/forrst", &[&own], &forrst_testkit::list()).status);
    assert!(statuses.any(|status| status == 429));
}

#[test]
fn options_come_from_the_environment() {
    let key = make_key("a", &["--role", "observe"]);
    let mut serve = Serve::bare(FORRST, &["--store", "memory:", "--listen", "0.0.0.0:0"]);
    for (name, value) in OPTIONS {
        let name = format!("FORRST_{}", name.to_uppercase().replace('-', "_"));
        serve = serve.variable(&name, value);
    }
    check(&serve, &key);
}

#[test]
fn options_come_from_the_file() {
    let key = make_key("a", &["--role", "observe"]);
    let text: String = OPTIONS
        .iter()
        .map(|(name, value)| match *name {
            "allow-host" => format!("{name} = ['one.test', 'two.test']\n"),
            "insecure" => format!("{name} = {value}\n"),
            _ if value.bytes().all(|digit| digit.is_ascii_digit()) => format!("{name} = {value}\n"),
            _ => format!("{name} = '{value}'\n"),
        })
        .collect();
    let serve = Serve::bare(FORRST, &["--store", "memory:", "--listen", "0.0.0.0:0"]);
    check(&serve.config(&text), &key);
}

#[test]
fn the_help_names_all_of_them() {
    let (code, output, _) = Serve::bare(FORRST, &["--help"]).run();
    assert_eq!(code, Some(0));
    let tls = ["tls-cert", "tls-key", "tls-client-ca"];
    for name in OPTIONS.iter().map(|(name, _)| *name).chain(tls) {
        assert!(output.contains(&format!("--{name}")), "{name}");
        let variable = format!("FORRST_{}", name.to_uppercase().replace('-', "_"));
        assert!(output.contains(&variable), "{variable}");
    }
}

#[test]
fn limits_of_zero_are_refused() {
    for option in [
        "--max-rate",
        "--max-locks-per-caller",
        "--max-in-flight",
        "--max-waiters",
    ] {
        let (code, _, errors) = Serve::new(FORRST, &["--store", "memory:", option, "0"]).run();
        assert_eq!(code, Some(2), "{option}");
        assert!(errors.contains(option), "{errors}");
    }
}
