//! `source.position` of a `PARSE_ERROR` is the exact byte where the body stops being JSON.

mod reference;

use forrst_protocol::{ErrorCode, Request, Source};
use proptest::prelude::*;

fn position(body: &[u8]) -> Option<usize> {
    let errors = Request::parse(body).err()?.errors().clone();
    let [error] = errors.as_slice() else {
        return None;
    };
    match (&error.code, &error.source) {
        (ErrorCode::ParseError, Some(Source::Position(position))) => Some(*position),
        (ErrorCode::ParseError, source) => panic!("a parse error at {source:?}"),
        _ => None,
    }
}

/// The offending byte is marked by a `^` before it.
fn check(marked: &str) {
    let expected = marked.find('^').expect("a mark");
    let body = marked.replacen('^', "", 1);
    assert_eq!(position(body.as_bytes()), Some(expected), "{marked:?}");
}

#[test]
fn an_early_end_is_at_the_length_of_the_body() {
    for marked in [
        "^",
        "  ^",
        "\n\n^",
        "{^",
        "[^",
        "{\"a\"^",
        "{\"a\":^",
        "{\"a\":1^",
        "{\"a\":1,^",
        "{\"a\": \"x^",
        "{\"a\": \"x\\^",
        "{\"a\": \"\\u12^",
        "{\"a\": tru^",
        "{\"a\": nul^",
        "[1,\n^",
    ] {
        check(marked);
    }
    assert_eq!(position(b""), Some(0));
}

#[test]
fn a_truncated_number_is_an_early_end() {
    for marked in [
        "-^",
        "{\"a\":-^",
        "1.^",
        "[1e^",
        "[1e+^",
        "[1E-^",
        "{\"a\":-0.^",
    ] {
        check(marked);
    }
}

#[test]
fn a_bad_number_is_at_the_byte_that_is_wrong() {
    for marked in [
        "0^1",
        "-^-",
        "1.^.",
        "1.^x",
        "1.^\n",
        "[1e^]",
        "[1e+^ ",
        "[1e^e",
        "[^+1]",
        "[^.5]",
        "{\"a\":1^x}",
        "[-^a]",
        "[0^0]",
        "{\"a\": ^NaN}",
        "[^Infinity]",
        "[-^Infinity]",
    ] {
        check(marked);
    }
}

#[test]
fn a_bad_escape_is_at_the_byte_that_is_wrong() {
    for marked in [
        r#"["\^q"]"#,
        r#"["\u^g000"]"#,
        r#"["\u0^g00"]"#,
        r#"["\u00^g0"]"#,
        r#"["\u000^g"]"#,
        r#"["\u12^\q"]"#,
        r#"["\u^\u12"]"#,
        r#"["\u^\u"#,
        r#"["\\u12\^q"]"#,
        r#"["\\\u12^\q"]"#,
        r#"["\u1^"]"#,
        r#"["\u12^"]"#,
        r#"["\u1^""#,
        r#"["\u^""#,
        r#"{"\^x": 1}"#,
        r#"{"\u00^x0": 1}"#,
    ] {
        check(marked);
    }
}

#[test]
fn a_control_character_in_a_string_is_at_its_own_byte() {
    for marked in [
        "[\"a^\n\"]",
        "[\"^\u{1}\"]",
        "{\"a^\tb\": 1}",
        "{\"a\":\n\"x^\u{1f}\"}",
        "[\"^\n",
    ] {
        check(marked);
    }
}

#[test]
fn positions_count_bytes_over_lines_and_characters() {
    for marked in [
        "{\n  \"id\": \"é\",\n  \"call\": ^}\n}",
        "{\n\n\n^x}",
        "{\"ключ\": \"значение\" ^\"x\"}",
        "{\"a\": \"😀\", ^}",
        "{\r\n\"a\": 1\r\n^\"b\": 2}",
        "{\"a\": 1}\n^x",
    ] {
        check(marked);
    }
}

#[test]
fn whatever_follows_the_request_is_garbage() {
    for marked in ["{}^{}", "{} ^,", "{}^\0", "[]\n^]", "null^l", "{}^//"] {
        check(marked);
    }
}

#[test]
fn other_syntax_errors_are_at_the_byte_that_is_wrong() {
    for marked in [
        "{^1:2}",
        "{^a:1}",
        "{\"a\" ^1}",
        "{\"a\":1 ^\"b\":2}",
        "{\"a\":1,^}",
        "[1,^]",
        "[^,]",
        "[1 ^2]",
        "{\"a\":[1^}}",
        "{\"a\":^'x'}",
        "^'",
        "^<html>",
        "[t^ue]",
        "[nul^x]",
        "{^,}",
        "^\u{feff}{}",
        "^\u{a0}{}",
    ] {
        check(marked);
    }
    assert_eq!(position(b"\x0c{}"), Some(0));
}

#[test]
fn invalid_utf_8_is_at_its_first_byte() {
    assert_eq!(position(b"\xff"), Some(0));
    assert_eq!(position(b"{\"a\": \"\xc3\x28\"}"), Some(7));
    assert_eq!(position(b"{\"a\": \"\xe2\x82"), Some(7));
    assert_eq!(position(b"{\"a\": \"\xed\xa0\x80\"}"), Some(7));
}

#[derive(Debug, Clone)]
enum Damage {
    Cut(usize),
    Remove(usize),
    Insert(usize, char),
    Replace(usize, char),
}

fn damage() -> impl Strategy<Value = Damage> {
    let character = || {
        let likely = "{}[]:,\"\\u0123456789abcdefF+-.eEtrulns \t\n\r\u{1}é😀/".chars();
        prop::sample::select(likely.collect::<Vec<char>>())
    };
    prop_oneof![
        any::<usize>().prop_map(Damage::Cut),
        any::<usize>().prop_map(Damage::Remove),
        (any::<usize>(), character()).prop_map(|(at, with)| Damage::Insert(at, with)),
        (any::<usize>(), character()).prop_map(|(at, with)| Damage::Replace(at, with)),
    ]
}

fn damaged(text: &str, damages: &[Damage]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for damage in damages {
        let length = text.len();
        match *damage {
            Damage::Cut(at) => text.truncate(at % (length + 1)),
            Damage::Insert(at, with) => text.insert(at % (length + 1), with),
            Damage::Remove(at) if length > 0 => drop(text.remove(at % length)),
            Damage::Replace(at, with) if length > 0 => text[at % length] = with,
            Damage::Remove(_) | Damage::Replace(..) => {}
        }
    }
    text.into_iter().collect()
}

const VALID: &str = r#"{
  "protocol": { "name": "forrst", "version": "0.1.0" }, "id": "r\u00e9q\n1",
  "call": { "function": "a.b", "arguments": { "x": [-0.5e+10, 1E-7, true, false, null, "\\u12\"é😀\/"] } },
  "extensions": [ { "urn": "urn:forrst:ext:retry", "options": { "a": 10.25 }, "required": false } ], "other": [[], {}]
}"#;

#[test]
fn the_valid_request_is_valid() {
    assert_eq!(reference::first_error(VALID.as_bytes()), None);
    Request::parse(VALID.as_bytes()).unwrap();
}

#[test]
fn every_truncated_request_is_an_early_end() {
    for end in 0..VALID.len() {
        let expected = reference::first_error(&VALID.as_bytes()[..end]);
        let whole_characters = str::from_utf8(&VALID.as_bytes()[..end]).is_ok();
        if whole_characters {
            assert_eq!(expected, Some(end));
            assert_eq!(position(&VALID.as_bytes()[..end]), Some(end), "{end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn damaged_requests_stop_being_json_where_the_reference_says(
        damages in prop::collection::vec(damage(), 1..4)
    ) {
        let body = damaged(VALID, &damages);
        prop_assert_eq!(position(body.as_bytes()), reference::first_error(body.as_bytes()), "{}", body);
    }

    #[test]
    fn short_texts_stop_being_json_where_the_reference_says(
        body in r#"[\[\]{}:,"\\u0-9a-fxtrlnsE+. \n-]{0,12}"#
    ) {
        prop_assert_eq!(position(body.as_bytes()), reference::first_error(body.as_bytes()), "{}", body);
    }

    #[test]
    fn bytes_are_a_parse_error_exactly_where_serde_json_rejects_them(
        body in prop::collection::vec(any::<u8>(), 0..64)
    ) {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok()
            && str::from_utf8(&body).is_ok();
        prop_assert_eq!(position(&body).is_none(), is_json);
    }
}
