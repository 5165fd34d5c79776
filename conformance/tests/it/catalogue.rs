//! Every vector can be parsed, names its source, and has a name of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forrst_conformance::{Transport, embedded, in_folder};

#[test]
fn every_vector_can_be_parsed() {
    let vectors = embedded().unwrap();
    let groups: BTreeSet<&str> = vectors.iter().map(|vector| vector.group.as_str()).collect();
    assert_eq!(
        groups.into_iter().collect::<Vec<_>>(),
        [
            "1-envelope",
            "1-http",
            "1-json-rpc",
            "2-atomic-lock",
            "3-system-functions",
            "4-safety",
            "5-extensions",
            "6-kinds",
            "php-library",
            "specification"
        ]
    );
}

#[test]
fn every_vector_has_a_description_and_a_source() {
    for vector in embedded().unwrap() {
        let path = vector.path();
        assert!(vector.about.ends_with('.'), "{path}: {}", vector.about);
        let known = ["contract ", "atomicLock specification, ", "PHP library, "];
        let is_known = known.iter().any(|source| vector.source.starts_with(source));
        assert!(is_known, "{path}: {}", vector.source);
    }
}

#[test]
fn no_two_vectors_have_the_same_name() {
    let mut seen = BTreeMap::new();
    for vector in embedded().unwrap() {
        let name = vector.name.rsplit('/').next().unwrap_or_default();
        let other = seen.insert(name.to_owned(), vector.group.clone());
        assert_eq!(other, None, "{} is in {} too", vector.path(), vector.group);
    }
}

#[test]
fn each_group_runs_over_its_transports() {
    for vector in embedded().unwrap() {
        let path = vector.path();
        match vector.group.as_str() {
            "1-http" => assert_eq!(vector.transports, [Transport::Http], "{path}"),
            "1-json-rpc" => {
                assert_eq!(vector.transports, [Transport::Rpc, Transport::Ws], "{path}");
            }
            _ => assert!(vector.transports.contains(&Transport::Http), "{path}"),
        }
    }
}

#[test]
fn the_embedded_vectors_are_those_in_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let paths = |vectors: Vec<forrst_conformance::Vector>| -> Vec<String> {
        vectors
            .iter()
            .map(forrst_conformance::Vector::path)
            .collect()
    };
    assert_eq!(
        paths(embedded().unwrap()),
        paths(in_folder(&folder).unwrap())
    );
}
