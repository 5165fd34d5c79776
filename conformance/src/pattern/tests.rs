//! Each matcher: what it matches, and where it reports a difference.

#![expect(
    clippy::needless_pass_by_value,
    reason = "JSON made on the spot reads better without `&`"
)]

use serde_json::{Value, json};

use super::Pattern;
use crate::template::Variables;

fn variables() -> Variables {
    Variables::from([
        ("owner".to_owned(), json!("me")),
        ("fence".to_owned(), json!("000000000000042")),
        ("at".to_owned(), json!("2024-03-15T10:30:30.000Z")),
    ])
}

/// Where the two differ, one pointer for each difference.
fn differences(pattern: Value, found: Value) -> Vec<String> {
    Pattern::parse(&pattern)
        .unwrap()
        .mismatches(Some(&found), &variables())
        .into_iter()
        .map(|mismatch| mismatch.at)
        .collect()
}

fn matches(pattern: Value, found: Value) -> bool {
    differences(pattern, found).is_empty()
}

#[test]
fn objects_match_with_more_members_and_not_with_fewer() {
    assert!(matches(json!({"a": 1}), json!({"a": 1, "b": 2})));
    assert_eq!(
        differences(json!({"a": 1, "b": 2}), json!({"a": 1})),
        ["/b"]
    );
    assert_eq!(differences(json!({"a": 1}), json!([1])), [""]);
}

#[test]
fn exact_objects_have_no_other_members() {
    assert!(matches(json!({"$exact": {"a": 1}}), json!({"a": 1})));
    assert_eq!(
        differences(json!({"$exact": {"a": 1}}), json!({"a": 1, "b/c~": 2})),
        ["/b~1c~0"]
    );
    assert!(matches(json!({"$exact": {}}), json!({})));
}

#[test]
fn absent_members_must_not_be_present_even_as_null() {
    assert!(matches(json!({"a": "$absent"}), json!({})));
    assert!(!matches(json!({"a": "$absent"}), json!({"a": null})));
    assert!(matches(json!({"a": null}), json!({"a": null})));
    assert!(!matches(json!({"a": null}), json!({})));
    assert!(!matches(json!({"a": "$any"}), json!({})));
    assert!(matches(json!({"a": "$any"}), json!({"a": null})));
}

#[test]
fn arrays_have_the_same_length_and_order() {
    assert!(matches(json!([1, 2]), json!([1, 2])));
    assert_eq!(differences(json!([1, 2]), json!([2, 1])), ["/0", "/1"]);
    assert_eq!(differences(json!([1]), json!([1, 2])), [""]);
}

#[test]
fn unordered_arrays_pair_each_pattern_with_an_element_of_its_own() {
    assert!(matches(json!({"$unordered": [1, 2]}), json!([2, 1])));
    assert!(!matches(json!({"$unordered": [1, 1]}), json!([1, 2])));
    assert!(!matches(json!({"$unordered": [1]}), json!([1, 1])));
    // The first pattern must not take the only element that the second one matches.
    assert!(matches(
        json!({"$unordered": ["$integer", 1]}),
        json!([1, 2])
    ));
}

#[test]
fn contains_and_each_compare_the_elements() {
    assert!(matches(json!({"$contains": [2, 1]}), json!([1, 2, 3])));
    assert!(!matches(json!({"$contains": [4]}), json!([1, 2, 3])));
    assert!(matches(json!({"$each": "$integer"}), json!([1, 2])));
    assert_eq!(
        differences(json!({"$each": "$integer"}), json!([1, "x"])),
        ["/1"]
    );
    assert!(!matches(json!({"$each": "$integer"}), json!({})));
}

#[test]
fn types_are_distinguished() {
    for (pattern, value) in [
        ("$string", json!("")),
        ("$integer", json!(-3)),
        ("$number", json!(1.5)),
        ("$boolean", json!(false)),
        ("$object", json!({})),
        ("$array", json!([])),
    ] {
        assert!(matches(json!(pattern), value), "{pattern}");
        assert!(!matches(json!(pattern), Value::Null), "{pattern}");
    }
    assert!(!matches(json!("$integer"), json!(1.0)));
}

#[test]
fn uuids_are_of_version_4() {
    assert!(matches(
        json!("$uuid"),
        json!("550e8400-e29b-41d4-a716-446655440000")
    ));
    for text in [
        "550e8400-e29b-11d4-a716-446655440000",
        "550e8400-e29b-41d4-c716-446655440000",
        "550E8400-E29B-41D4-A716-446655440000",
        "550e8400e29b41d4a716446655440000",
    ] {
        assert!(!matches(json!("$uuid"), json!(text)), "{text}");
    }
}

#[test]
fn fences_and_timestamps_have_one_form_and_an_order() {
    assert!(matches(json!("$fence"), json!("000000000000001")));
    assert!(!matches(json!("$fence"), json!("1")));
    assert!(!matches(json!("$fence"), json!(1)));
    assert!(matches(
        json!("$timestamp"),
        json!("2024-03-15T10:30:30.123Z")
    ));
    assert!(!matches(json!("$timestamp"), json!("2024-03-15T10:30:30Z")));
    assert!(matches(
        json!("$greater:${fence}"),
        json!("000000000000043")
    ));
    assert!(!matches(
        json!("$greater:${fence}"),
        json!("000000000000042")
    ));
    assert!(matches(
        json!("$less:${at}"),
        json!("2024-03-15T10:30:29.999Z")
    ));
}

#[test]
fn after_measures_the_distance_between_timestamps() {
    let pattern = json!({"$after": ["${at}", 1000, 2000]});
    assert!(matches(pattern.clone(), json!("2024-03-15T10:30:31.000Z")));
    assert!(matches(pattern.clone(), json!("2024-03-15T10:30:32.000Z")));
    assert!(!matches(pattern.clone(), json!("2024-03-15T10:30:32.001Z")));
    assert!(!matches(pattern, json!("2024-03-15T10:30:29.000Z")));
}

#[test]
fn numbers_are_equal_by_value() {
    assert!(matches(json!(1), json!(1.0)));
    assert!(!matches(json!(1), json!("1")));
    assert!(!matches(
        json!(9_007_199_254_740_993_u64),
        json!(9_007_199_254_740_992_u64)
    ));
    assert!(matches(json!({"$range": [0, 1]}), json!(0.25)));
    assert!(!matches(json!({"$range": [0, 1]}), json!(1.25)));
}

#[test]
fn strings_are_filled_in_and_dollars_escaped() {
    assert!(matches(json!("${owner}"), json!("me")));
    assert!(matches(json!("lock:${owner}"), json!("lock:me")));
    assert!(matches(json!("$$any"), json!("$any")));
    assert!(matches(json!("$regex:^a+$"), json!("aaa")));
    assert!(!matches(json!("$regex:^a+$"), json!("ab")));
    assert!(!matches(json!("${missing}"), json!("me")));
}

#[test]
fn patterns_combine() {
    assert!(matches(json!({"$not": "${owner}"}), json!("you")));
    assert!(!matches(json!({"$not": "${owner}"}), json!("me")));
    assert!(matches(json!({"$one_of": [1, "a"]}), json!("a")));
    assert!(!matches(json!({"$one_of": [1, "a"]}), json!("b")));
    assert!(matches(
        json!({"$all_of": [{"$contains": [1]}, {"$not": {"$contains": [2]}}]}),
        json!([1, 3])
    ));
    // An optional member, which has a fixed value if it is present.
    assert!(matches(
        json!({"a": {"$one_of": ["$absent", 1]}}),
        json!({})
    ));
}

#[test]
fn misspelt_matchers_are_found_when_reading() {
    for pattern in [
        json!("$timestmap"),
        json!({"$exactly": {}}),
        json!({"$exact": []}),
        json!({"$range": [2, 1]}),
        json!({"$range": [1]}),
        json!({"$after": ["${at}", 1]}),
        json!({"$contains": 1}),
        json!("$regex:("),
        json!({"a": ["${"]}),
    ] {
        assert!(Pattern::parse(&pattern).is_err(), "{pattern}");
    }
}

#[test]
fn a_mismatch_says_what_was_expected_and_what_was_found() {
    let pattern = Pattern::parse(&json!({"a": [{"b": "${owner}"}]})).unwrap();
    let found = json!({"a": [{"b": "you"}]});
    let mismatches = pattern.mismatches(Some(&found), &variables());
    assert_eq!(mismatches.len(), 1);
    assert_eq!(
        mismatches[0].to_string(),
        r#"/a/0/b: expected "me", found "you""#
    );
}
