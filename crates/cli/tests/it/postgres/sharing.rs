//! Nodes that share a Postgres share their locks.

use forrst_testkit::{Lock, SharedPostgres, list};

use crate::redis::nodes::{HOUR, give_back, node_with, take};

#[test]
fn nodes_of_one_schema_share_their_locks() {
    let postgres = SharedPostgres::join();
    let arguments = ["--postgres-schema", postgres.schema()];
    let [one, other] = [(); 2].map(|()| node_with(&postgres.url(), &arguments));
    let lock = Lock::global("k");
    let lease = take(&one, &lock, "a", HOUR);
    let refused = other.ask(&lock.acquire("b", HOUR));
    assert_eq!(refused.code(), Some("LOCK_ACQUISITION_FAILED"));
    assert_eq!(other.ask(&list()).listed(), ["lock:k"]);
    give_back(&other, &lock, &lease);
    assert_eq!(one.ask(&list()).listed(), Vec::<&str>::new());
}

/// Special characters in a key have no meaning.
#[test]
fn keys_with_special_characters_are_distinct() {
    let postgres = SharedPostgres::join();
    let arguments = ["--postgres-schema", postgres.schema()];
    let [one, other] = [(); 2].map(|()| node_with(&postgres.url(), &arguments));
    let keys = [
        "{a}b",
        "a}{b",
        "{}",
        "a b",
        "%",
        "_",
        "\"a\"",
        "'",
        "\\",
        "ä",
        "\u{10ffff}",
    ];
    for key in keys {
        let lock = Lock::global(key);
        let lease = take(&one, &lock, "\"o'\\", HOUR);
        assert_eq!(other.ask(&lock.status()).holder(), Some(lease));
    }
    let answer = other.ask(&list());
    assert_eq!(answer.listed().len(), keys.len(), "{answer:?}");
}
