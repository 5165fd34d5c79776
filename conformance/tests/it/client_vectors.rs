//! The vectors for clients match their schema, and name statements of the protocol that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use forrst_conformance::embedded_client_vectors;
use serde_json::Value;

#[test]
fn every_client_vector_matches_the_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("client");
    let read = |path: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let schema = jsonschema::validator_for(&read(&folder.join("schema.json"))).unwrap();
    let vectors = embedded_client_vectors().unwrap();
    assert!(vectors.len() >= 40, "{} vectors", vectors.len());
    let mut wrong = Vec::new();
    for vector in &vectors {
        let name = &vector.name;
        let file = read(&folder.join(format!("{name}.json")));
        wrong.extend(
            schema
                .iter_errors(&file)
                .map(|error| format!("{name}{}: {error}", error.instance_path())),
        );
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_client_vector_cites_statements_that_exist() {
    let protocol = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    let protocol = fs::read_to_string(protocol).unwrap();
    let statements: BTreeSet<&str> = protocol
        .lines()
        .filter_map(|line| {
            let line = line.trim_start_matches(['-', '|', '*', ' ']);
            let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '.')?;
            line.starts_with('P').then(|| &line[..end])
        })
        .collect();
    for vector in embedded_client_vectors().unwrap() {
        for source in vector.source.split(", ") {
            assert!(statements.contains(source), "{}: {source}", vector.name);
        }
    }
}

#[test]
fn no_statement_of_the_protocol_has_the_number_of_another() {
    let protocol = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    let protocol = fs::read_to_string(protocol).unwrap();
    let mut seen = BTreeSet::new();
    for line in protocol.lines() {
        let statement = line.strip_prefix("- **P").or(line.strip_prefix("| P"));
        let number = statement.and_then(|text| text.split([' ', '*']).next());
        if let Some(number) = number {
            assert!(seen.insert(number), "P{number} is there twice");
        }
    }
    assert!(seen.len() > 100, "{}", seen.len());
}
