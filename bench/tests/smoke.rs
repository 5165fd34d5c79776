//! Runs the benchmark briefly and checks that its tables are complete. Speed is not asserted.

use std::process::Command;

use serde_json::Value;

fn bench(arguments: &[&str]) -> (bool, String, String) {
    let program = env!("CARGO_BIN_EXE_forrst-bench");
    let run = Command::new(program).args(arguments).output();
    let run = run.expect("the program was built for this test");
    let [output, errors] = [run.stdout, run.stderr].map(|text| String::from_utf8(text).unwrap());
    (run.status.success(), output, errors)
}

/// Every row of these sections has numbers, or says why not.
#[test]
fn a_short_run_fills_its_tables() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("bench.svg");
    let (is_success, output, errors) = bench(&[
        "floors",
        "ours",
        "peers",
        "store-cost",
        "redis",
        "--quick",
        "--duration",
        "20ms",
        "--json",
        "-",
        "--chart",
        chart.to_str().unwrap(),
    ]);
    assert!(is_success, "{errors}");
    let report: Value = serde_json::from_str(&output).expect(&output);
    let tables = report["tables"].as_array().unwrap();
    for section in ["floors", "ours", "peers", "store-cost", "redis"] {
        let of_section = tables.iter().filter(|table| table["section"] == section);
        assert!(of_section.count() > 0, "no table of {section}");
    }
    for table in tables {
        for row in table["rows"].as_array().unwrap() {
            let reason = row[1].as_str().unwrap_or_default();
            // On a busy machine there may be no answer within 20 ms.
            let absent = ["not installed", "not built", "not measured"];
            let is_absent = absent.iter().any(|absent| reason.starts_with(absent));
            let has_numbers = row[1].is_array() || row[1].is_object();
            assert!(has_numbers || is_absent, "{}: {row}", table["title"]);
        }
    }
    let chart = std::fs::read_to_string(chart).unwrap();
    assert!(
        chart.contains("hyper") && chart.ends_with("</svg>\n"),
        "{chart}"
    );
}

#[test]
fn an_invalid_argument_is_named_in_the_error() {
    for (arguments, name) in [
        (&["flors"][..], "flors"),
        (&["--duration", "0s"], "--duration"),
        (&["--repetitions", "0"], "--repetitions"),
        (&["--quick", "--full"], "--full"),
    ] {
        let (is_success, _, errors) = bench(arguments);
        assert!(
            !is_success && errors.contains(name),
            "{arguments:?}: {errors}"
        );
    }
    let (is_success, output, _) = bench(&["--list"]);
    assert!(is_success && output.contains("store-cost"), "{output}");
}
