//! The dashboard for Grafana shows all metrics, and no others.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use forrst_testkit::{Serve, request};
use serde_json::{Value, json};

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// Every query of a dashboard.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        Value::Object(members) => {
            found.extend(
                members
                    .get("expr")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            members.values().for_each(|member| queries(member, found));
        }
        _ => {}
    }
}

/// The names of metrics in a query: words with one of our prefixes.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| {
        ["lock_", "locks_", "leases_", "forrst_", "store_"]
            .iter()
            .any(|start| word.starts_with(start))
    })
}

#[test]
fn the_dashboard_shows_every_metric_and_no_others() {
    let dashboard: Value = serde_json::from_str(&read("examples/grafana-dashboard.json")).unwrap();
    let mut all = Vec::new();
    queries(&dashboard, &mut all);
    let named: BTreeSet<&str> = all.iter().flat_map(|query| names(query)).collect();
    assert!(named.len() >= 12, "{named:?}");

    let running = Serve::new(
        env!("CARGO_BIN_EXE_forrst"),
        &["--demo", "--store", "memory:"],
    )
    .start();
    running.ask(&request("demo.echo", json!({})));
    let mut stream = TcpStream::connect(running.address()).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let series: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    for name in &named {
        assert!(series.contains(name), "{name} is not in\n{text}");
    }
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let families = families.filter_map(|line| line.split(' ').next());
    for family in families.filter(|family| *family != "forrst_build") {
        let is_shown = named.iter().any(|name| name.starts_with(family));
        assert!(is_shown, "the dashboard does not show {family}");
    }
}
