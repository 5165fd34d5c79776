//! Bodies that are built to cost far more time or memory than their size.

use std::time::Duration;

use forrst_protocol::{DEFAULT_MAX_BODY_BYTES, Rejection, Request, Response};
use rustix::time::{ClockId, clock_gettime};

/// A limit on the CPU time of this thread, which does not depend on other programs. Generous for an unoptimised build on a slow machine,
/// and far below what anything quadratic takes.
const CPU_LIMIT: Duration = Duration::from_secs(10);

fn request(arguments: &str, extensions: &str) -> String {
    format!(
        r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"req_1",
            "call":{{"function":"a.b","arguments":{arguments}}},"extensions":{extensions}}}"#
    )
}

fn parse_within_limit(body: &str) -> Result<Request<'_>, Rejection> {
    let spent = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let start = spent();
    let parsed = Request::parse(body.as_bytes());
    let took = spent() - start;
    assert!(took < CPU_LIMIT, "took {took:?}");
    parsed
}

fn refused(body: &str) -> (Rejection, usize) {
    let rejection = parse_within_limit(body).expect_err("a bad request");
    let answer = serde_json::to_vec(&Response::from(rejection.clone())).unwrap();
    (rejection, answer.len())
}

fn joined(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<String>>().join(",")
}

#[test]
fn an_object_of_100_000_keys_is_read_in_less_than_quadratic_time() {
    let members = joined(100_000, |index| format!(r#""k{index}":1"#));
    assert!(parse_within_limit(&request(&format!("{{{members}}}"), "[]")).is_ok());

    let (rejection, _) = refused(&request(&format!(r#"{{{members},"k77777":2}}"#), "[]"));
    let error = &rejection.errors().as_slice()[0];
    assert_eq!(rejection.errors().as_slice().len(), 1);
    assert_eq!(
        serde_json::to_string(&error.source).unwrap(),
        r#"{"pointer":"/call/arguments/k77777"}"#
    );
}

#[test]
fn a_key_that_is_repeated_100_000_times_is_one_problem() {
    let members = joined(100_000, |_| r#""amount":1"#.to_owned());
    let (rejection, _) = refused(&request(&format!("{{{members}}}"), "[]"));
    assert_eq!(rejection.errors().as_slice().len(), 1);
}

#[test]
fn a_mebibyte_of_bad_extensions_gets_a_short_answer() {
    for item in [
        "0",
        "{}",
        r#"{"urn":"bad","options":0,"required":0}"#,
        "[]",
        "1e999",
    ] {
        let count = DEFAULT_MAX_BODY_BYTES / (item.len() + 1);
        let (rejection, length) = refused(&request(
            "{}",
            &format!("[{}]", joined(count, |_| item.to_owned())),
        ));
        assert_eq!(rejection.errors().as_slice().len(), 64);
        assert_eq!(rejection.id().unwrap().as_str(), "req_1");
        let last = rejection.errors().as_slice().last().unwrap();
        assert!(
            last.message.contains("more problems are not listed"),
            "{}",
            last.message
        );
        assert!(length < 32 * 1024, "{length} bytes for {item}");
    }
}

#[test]
fn long_keys_and_texts_are_not_repeated_in_the_answer() {
    let long = "~".repeat(500_000);
    let repeated = joined(200, |index| format!(r#""k{0}":1,"k{0}":2"#, index % 100));
    let deep = format!(r#"{{"{long}":{{{repeated}}}}}"#);
    let (rejection, length) = refused(&request(&deep, "[]"));
    assert!(length < 64 * 1024, "{length} bytes");
    assert_eq!(
        serde_json::to_string(&rejection.errors().as_slice()[0].source).unwrap(),
        r#"{"pointer":"/call/arguments"}"#
    );

    let (_, length) = refused(&request(&format!(r#"{{"{long}":1,"{long}":2}}"#), "[]"));
    assert!(length < 4 * 1024, "{length} bytes");

    let body = request("{}", "[]")
        .replace("a.b", &long)
        .replace("0.1.0", &long);
    let (_, length) = refused(&body);
    assert!(length < 4 * 1024, "{length} bytes");
}

#[test]
fn a_mebibyte_of_brackets_does_not_overflow_the_stack() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let depth = DEFAULT_MAX_BODY_BYTES / (open.len() + close.len());
        let deep = format!("{}0{}", open.repeat(depth), close.repeat(depth));
        for body in [
            request(&format!(r#"{{"x":{deep}}}"#), "[]"),
            request("{}", &deep),
            request("{}", "[]").replacen('{', &format!(r#"{{"x":{deep},"#), 1),
        ] {
            let (rejection, _) = refused(&body);
            assert_eq!(rejection.id().unwrap().as_str(), "req_1");
        }
        let (unclosed, _) = refused(&open.repeat(depth));
        assert_eq!(unclosed.id(), None);
    }
}

#[test]
fn a_mebibyte_of_escapes_is_read_in_linear_time() {
    let escapes = "\\u0061".repeat(DEFAULT_MAX_BODY_BYTES / 6);
    assert!(parse_within_limit(&request(&format!(r#"{{"{escapes}":"{escapes}"}}"#), "[]")).is_ok());
    let backslashes = "\\\\".repeat(DEFAULT_MAX_BODY_BYTES / 2);
    refused(&format!("{{\"{backslashes}\\q\":1}}"));
}

#[test]
fn a_mebibyte_of_lines_before_a_syntax_error_is_read_in_linear_time() {
    let (rejection, _) = refused(&format!("{}x", "\n".repeat(DEFAULT_MAX_BODY_BYTES)));
    let source = serde_json::to_string(&rejection.errors().as_slice()[0].source).unwrap();
    assert_eq!(
        source,
        format!(r#"{{"position":{DEFAULT_MAX_BODY_BYTES}}}"#)
    );
}
