//! Checks the rules of `deny.toml` about dependencies.
//!
//! `cargo deny` checks more, but takes minutes to build; this reads the same file and only needs cargo.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};
use toml::Table;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn rules() -> Table {
    let text = std::fs::read_to_string(format!("{ROOT}/deny.toml")).unwrap();
    text.parse().unwrap()
}

/// Every package that is built from, with all features, on the platform that `deploy/` is for.
fn packages() -> Vec<Value> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--all-features"])
        .args(["--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&metadata.stderr);
    assert!(metadata.status.success(), "{errors}");
    let mut metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let Value::Array(packages) = metadata["packages"].take() else {
        panic!("no packages");
    };
    assert!(packages.len() > 100, "only {}", packages.len());
    packages
}

/// All packages but our own.
fn dependencies() -> Vec<Value> {
    let mut packages = packages();
    packages.retain(|package| !package["source"].is_null());
    packages
}

#[test]
fn licences_are_allowed() {
    let rules = rules();
    let allowed = rules["licenses"]["allow"].as_array().unwrap();
    let refused = dependencies().into_iter().filter(|package| {
        let licence = package["license"].as_str().unwrap_or_default();
        let licence = Expression::parse_mode(licence, ParseMode::LAX);
        !licence.is_ok_and(|licence| {
            licence.evaluate(|wanted| {
                let id = wanted.license.id();
                id.is_some_and(|id| allowed.iter().any(|name| name.as_str() == Some(id.name)))
            })
        })
    });
    let refused: Vec<_> = refused
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn no_dependency_is_banned() {
    let rules = rules();
    for banned in rules["bans"]["deny"].as_array().unwrap() {
        let name = banned["crate"].as_str().unwrap();
        let found = dependencies().iter().any(|package| package["name"] == name);
        assert!(!found, "{name}: {}", banned["reason"]);
    }
}

#[test]
fn all_dependencies_come_from_one_registry() {
    let dependencies = dependencies();
    let sources = dependencies
        .iter()
        .map(|package| package["source"].as_str());
    let sources: BTreeSet<_> = sources.flatten().collect();
    let is_registry = |source: &&str| source.starts_with("registry+");
    assert_eq!(sources.len(), 1, "{sources:?}");
    assert!(sources.iter().all(is_registry), "{sources:?}");
}
