//! `vector.schema.json` describes every vector, and refuses what the runner refuses for its form.

use std::path::Path;

use forrst_conformance::Vector;
use jsonschema::Validator;
use serde_json::{Value, json};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

fn schema() -> Validator {
    let path = Path::new(FOLDER).join("vector.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::options().build(&schema).unwrap()
}

#[test]
fn every_vector_matches_the_schema() {
    let schema = schema();
    let mut checked = 0;
    for group in Path::new(FOLDER).join("vectors").read_dir().unwrap() {
        for file in group.unwrap().path().read_dir().unwrap() {
            let path = file.unwrap().path();
            let vector: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let errors: Vec<String> = schema
                .iter_errors(&vector)
                .map(|error| format!("at '{}': {error}", error.instance_path()))
                .collect();
            assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 0);
}

fn with(field: &str, value: Value) -> Value {
    let steps = json!([{"request": {}, "expect": {}}]);
    let mut file = json!({"name": "n", "source": "s", "about": "A case.", "steps": steps});
    file[field] = value;
    file
}

#[test]
fn a_file_of_the_wrong_form_is_refused_by_the_schema_and_by_the_runner() {
    let schema = schema();
    let steps = |step: Value| with("steps", json!([step]));
    let cases = |cases: Value| {
        let mut file = with("cases", cases);
        file["steps"] = json!([{"request": {}, "change": "", "expect": {}}]);
        file
    };
    for good in [
        with("profile", json!("core")),
        cases(json!([{"name": "c", "about": "A case.", "set": {"/a": 1}}])),
    ] {
        assert!(schema.is_valid(&good), "{good}");
        Vector::parse("g", "n", &good.to_string()).unwrap();
    }
    for wrong in [
        with("stpes", json!([])),
        with("profile", json!("large")),
        with("transports", json!([])),
        with("transports", json!(["smtp"])),
        with("steps", json!([])),
        with("cases", json!([])),
        steps(json!({})),
        steps(json!({"request": {}})),
        steps(json!({"request": {}, "text": "{}", "expect": {}})),
        steps(json!({"request": {}, "extensions": [], "expect": {}})),
        steps(json!({"request": {}, "expect": {"stauts": 200}})),
        steps(json!({"request": {}, "expect": {"nothing": true, "body": {}}})),
        steps(json!({"request": {}, "expected": {}})),
        steps(json!({"request": {}, "expect": {}, "change": ""})),
        steps(json!({"sleep_ms": 1, "expect": {}})),
        steps(json!({"sleep_ms": 1, "times": 2})),
        steps(json!({"http": {"body_base64": "!"}, "expect": {}})),
        steps(json!({"http": {"body_base64": "", "body": ""}, "expect": {}})),
        steps(json!({"together": [{"sleep_ms": 1}]})),
        steps(json!({"together": [{"request": {}, "expect": {}, "until_ms": 1}]})),
        cases(json!([{"name": "c", "set": {"/a": 1}}])),
        cases(json!([{"name": "c", "about": "A case.", "set": {"a": 1}}])),
        cases(json!([{"name": "c", "about": "A case.", "set": {"/a": 1}, "expekt": {}}])),
    ] {
        assert!(!schema.is_valid(&wrong), "the schema accepts {wrong}");
        let parsed = Vector::parse("g", "n", &wrong.to_string());
        assert!(parsed.is_err(), "the runner accepts {wrong}");
    }
}
