//! Checks `schemas/`: every schema is valid, every example is accepted or refused as its folder says, and the types of this
//! crate read and write what the schemas describe.
//!
//! `schemas/examples/<schema>/` holds JSON that the schema accepts, `schemas/examples/invalid/<schema>/` JSON that it
//! refuses, for the reason in the file's name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use forrst_protocol::{
    Duration, ErrorCode, ErrorObject, Errors, FunctionName, Pointer, RawObject, Request, RequestId,
    Response, Unit, Urn, Version,
};
use jsonschema::{Registry, Validator};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Requests that the schema refuses and the parser does not, and why that is right.
const LEFT_TO_THE_EXTENSION: &[(&str, &str)] = &[
    (
        "lock-without-ttl",
        "options stay raw until the extension reads them, and then answers INVALID_ARGUMENTS",
    ),
    (
        "two-locks",
        "the parser knows no extension by name; the lock extension refuses its second entry",
    ),
    (
        "two-locks-under-both-names",
        "the parser knows no extension by name; the lock extension refuses its second entry",
    ),
];

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(Schemas::load);

struct Schemas {
    /// By the path below `schemas/`, without `.json`.
    documents: BTreeMap<String, Value>,
    validators: BTreeMap<String, Validator>,
}

impl Schemas {
    fn load() -> Self {
        let documents: BTreeMap<String, Value> = json_files_below(&folder())
            .into_iter()
            .filter(|path| !path.starts_with(folder().join("examples")))
            .filter(|path| *path != folder().join("codes.json"))
            .map(|path| (name_below(&folder(), &path), read(&path)))
            .collect();
        let resources = documents
            .iter()
            .map(|(name, schema)| (id_of(name), schema.clone()));
        let registry = Registry::new()
            .extend(resources)
            .and_then(jsonschema::RegistryBuilder::prepare)
            .unwrap_or_else(|error| panic!("the schemas do not fit together: {error}"));
        let build = |(name, schema): (&String, &Value)| {
            let validator = jsonschema::options()
                .with_registry(&registry)
                .build(schema)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            (name.clone(), validator)
        };
        let validators = documents.iter().map(build).collect();
        Self {
            documents,
            validators,
        }
    }

    /// Why the schema refuses the value, one line for each error.
    fn errors(&self, schema: &str, value: &Value) -> Vec<String> {
        self.validators[schema]
            .iter_errors(value)
            .map(|error| format!("at '{}': {error}", error.instance_path()))
            .collect()
    }

    #[track_caller]
    fn assert_accepts(&self, schema: &str, value: &Value) {
        let complaints = self.errors(schema, value);
        assert!(
            complaints.is_empty(),
            "{schema} refuses {value}: {complaints:#?}"
        );
    }
}

/// One file of `examples/`.
struct Example {
    schema: String,
    name: String,
    path: PathBuf,
}

impl Example {
    fn text(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas")
}

fn good_examples() -> Vec<Example> {
    let invalid = folder().join("examples/invalid");
    let mut examples = examples_below(&folder().join("examples"));
    examples.retain(|example| !example.path.starts_with(&invalid));
    examples
}

fn bad_examples() -> Vec<Example> {
    examples_below(&folder().join("examples/invalid"))
}

fn examples_below(root: &Path) -> Vec<Example> {
    let example = |path: PathBuf| {
        let below = name_below(root, &path);
        let (schema, name) = below.rsplit_once('/').unwrap_or(("", &below));
        Example {
            schema: schema.to_owned(),
            name: name.to_owned(),
            path,
        }
    };
    json_files_below(root).into_iter().map(example).collect()
}

fn of_schema(examples: Vec<Example>, schema: &str) -> Vec<Example> {
    let found: Vec<Example> = examples
        .into_iter()
        .filter(|example| example.schema == schema)
        .collect();
    assert!(!found.is_empty(), "no examples of {schema}");
    found
}

fn json_files_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// `types/fence` for `<root>/types/fence.json`, on every system.
fn name_below(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap().with_extension("");
    let parts: Vec<_> = below.iter().map(|part| part.to_str().unwrap()).collect();
    parts.join("/")
}

fn id_of(name: &str) -> String {
    format!("urn:forrst:schema:{}", name.replace('/', ":"))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[track_caller]
fn assert_none(failures: &[String], what: &str) {
    assert!(failures.is_empty(), "{what}:\n{}", failures.join("\n"));
}

fn names(examples: &[Example]) -> BTreeSet<&str> {
    examples
        .iter()
        .map(|example| example.schema.as_str())
        .collect()
}

#[test]
fn every_schema_satisfies_the_2020_12_metaschema() {
    for (name, schema) in &SCHEMAS.documents {
        assert_eq!(
            schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{name}"
        );
        if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn every_schema_has_the_id_of_its_path_a_title_and_a_description() {
    for (name, schema) in &SCHEMAS.documents {
        assert_eq!(schema["$id"], id_of(name), "{name}");
        for text in ["title", "description"] {
            assert!(schema[text].is_string(), "{name} has no {text}");
        }
    }
}

#[test]
fn examples_inside_the_schemas_are_valid() {
    for (name, schema) in &SCHEMAS.documents {
        for example in schema["examples"].as_array().into_iter().flatten() {
            SCHEMAS.assert_accepts(name, example);
        }
    }
}

#[test]
fn every_example_is_in_a_folder_named_after_a_schema() {
    let strays: Vec<String> = good_examples()
        .into_iter()
        .chain(bad_examples())
        .filter(|example| !SCHEMAS.documents.contains_key(&example.schema))
        .map(|example| example.path.display().to_string())
        .collect();
    assert_none(&strays, "no schema has the name of their folder");
}

#[test]
fn every_schema_has_good_and_bad_examples() {
    let (good, bad) = (good_examples(), bad_examples());
    let (good, bad) = (names(&good), names(&bad));
    let bare: Vec<String> = SCHEMAS
        .documents
        .keys()
        .filter(|name| !good.contains(name.as_str()) || !bad.contains(name.as_str()))
        .cloned()
        .collect();
    assert_none(&bare, "lack a good example or a bad one");
}

#[test]
fn good_examples_are_accepted() {
    let mut failures = Vec::new();
    for example in good_examples() {
        for complaint in SCHEMAS.errors(&example.schema, &read(&example.path)) {
            failures.push(format!("{}: {complaint}", example.path.display()));
        }
    }
    assert_none(&failures, "good examples that are refused");
}

#[test]
fn bad_examples_are_refused() {
    let accepted: Vec<String> = bad_examples()
        .into_iter()
        .filter(|example| {
            SCHEMAS
                .errors(&example.schema, &read(&example.path))
                .is_empty()
        })
        .map(|example| example.path.display().to_string())
        .collect();
    assert_none(&accepted, "bad examples that are accepted");
}

#[test]
fn requests_of_the_schema_are_parsed_and_written_as_such_again() {
    for example in of_schema(good_examples(), "request") {
        let body = example.text();
        let request =
            Request::parse(&body).unwrap_or_else(|error| panic!("{}: {error}", example.name));
        let written = serde_json::to_value(&request).unwrap();
        SCHEMAS.assert_accepts("request", &written);
        let original = read(&example.path);
        for kept in [
            "/protocol",
            "/id",
            "/call/function",
            "/call/version",
            "/context",
            "/extensions/0",
        ] {
            assert_eq!(
                written.pointer(kept),
                original.pointer(kept),
                "{}",
                example.name
            );
        }
    }
}

#[test]
fn requests_that_the_schema_refuses_are_rejected_by_the_parser() {
    let mut unused: BTreeMap<&str, &str> = LEFT_TO_THE_EXTENSION.iter().copied().collect();
    for example in of_schema(bad_examples(), "request") {
        let body = example.text();
        let parsed = Request::parse(&body);
        if let Some(why) = unused.remove(example.name.as_str()) {
            assert!(
                parsed.is_ok(),
                "{} is now rejected, though {why}",
                example.name
            );
            continue;
        }
        let Err(rejection) = parsed else {
            panic!("{} is parsed", example.name);
        };
        let answer = serde_json::to_value(Response::from(rejection)).unwrap();
        SCHEMAS.assert_accepts("response", &answer);
    }
    assert!(unused.is_empty(), "no such examples: {unused:?}");
}

#[test]
fn an_unsupported_protocol_passes_the_schema_and_not_the_parser() {
    let request = json!({"protocol": {"name": "forrst", "version": "2.0.0"}, "id": "r", "call": {"function": "a.b"}});
    SCHEMAS.assert_accepts("request", &request);
    let body = request.to_string();
    let rejection = Request::parse(body.as_bytes()).unwrap_err();
    SCHEMAS.assert_accepts(
        "response",
        &serde_json::to_value(Response::from(rejection)).unwrap(),
    );
}

#[test]
fn answers_to_what_is_not_json_are_responses() {
    for body in ["", "{", "[1,", r#"{"id": "r""#, "\u{0}"] {
        let rejection = Request::parse(body.as_bytes()).unwrap_err();
        SCHEMAS.assert_accepts(
            "response",
            &serde_json::to_value(Response::from(rejection)).unwrap(),
        );
    }
}

#[test]
fn responses_of_the_schema_are_parsed_and_written_as_such_again() {
    for example in of_schema(good_examples(), "response") {
        let response = Response::parse(&example.text())
            .unwrap_or_else(|error| panic!("{}: {error}", example.name));
        let written = serde_json::to_value(&response).unwrap();
        SCHEMAS.assert_accepts("response", &written);
        let original = read(&example.path);
        for member in ["protocol", "id", "result", "errors", "extensions"] {
            assert_eq!(
                written.get(member),
                original.get(member),
                "{}",
                example.name
            );
        }
    }
}

#[test]
fn whatever_the_builders_make_is_a_response() {
    let id = || RequestId::parse("req_001").unwrap();
    let lock = || Urn::parse("urn:forrst:ext:atomicLock").unwrap();
    let refused =
        || RawObject::from_serialize(&json!({"key": "user:123", "acquired": false})).unwrap();
    let error = |code| ErrorObject::new(code, "It failed");
    let several = Errors::try_from(vec![
        error(ErrorCode::InvalidRequest).at(Pointer::root().key("call").key("a/b~c").index(0)),
        error(ErrorCode::ParseError).at_position(52),
        error(ErrorCode::InternalError).with_detail("panic", json!(null)),
    ]);
    let made = [
        Response::success(id(), &json!({"charge_id": "ch_abc"})).unwrap(),
        Response::success(id(), &()).unwrap(),
        Response::success(id(), &[1, 2])
            .unwrap()
            .with_node("node-1"),
        Response::failure(Some(id()), error(ErrorCode::Unavailable)),
        Response::failure(None, error(ErrorCode::ParseError)).with_node("node-1"),
        Response::failure(Some(id()), several.unwrap()),
        Response::failure(Some(id()), error(ErrorCode::LockTimeout))
            .with_extension(lock(), refused()),
    ];
    for response in made {
        SCHEMAS.assert_accepts("response", &serde_json::to_value(&response).unwrap());
    }
}

#[test]
fn every_error_code_is_one_of_the_schema() {
    for code in ErrorCode::STANDARD {
        let error = ErrorObject::new(code.clone(), "It failed");
        SCHEMAS.assert_accepts("error", &serde_json::to_value(&error).unwrap());
    }
    for listed in SCHEMAS.documents["types/error-code"]["examples"]
        .as_array()
        .unwrap()
    {
        let code: ErrorCode = serde_json::from_value(listed.clone()).unwrap();
        assert!(
            ErrorCode::STANDARD.contains(&code),
            "{code} is not a standard code"
        );
    }
}

#[test]
fn durations_are_what_the_schema_says() {
    let units = [
        Unit::Millisecond,
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
    ];
    for unit in units {
        for value in [1, 30, u64::MAX] {
            let written = serde_json::to_value(Duration::new(value, unit)).unwrap();
            SCHEMAS.assert_accepts("duration", &written);
            assert_eq!(
                serde_json::from_value::<Duration>(written).unwrap(),
                Duration::new(value, unit)
            );
        }
        let nothing = serde_json::to_value(Duration::new(0, unit)).unwrap();
        SCHEMAS.assert_accepts("types/measured-duration", &nothing);
    }
    let known = &SCHEMAS.documents["types/measured-duration"]["properties"]["unit"]["enum"];
    assert_eq!(known, &json!(units));
}

#[test]
fn types_and_schemas_accept_the_same_values() {
    accepts_the_same::<RequestId>("types/request-id");
    accepts_the_same::<FunctionName>("types/function-name");
    accepts_the_same::<Urn>("types/extension-urn");
    accepts_the_same::<Version>("types/version");
    accepts_the_same::<ErrorCode>("types/error-code");
    accepts_the_same::<Pointer>("types/json-pointer");
    accepts_the_same::<Duration>("types/measured-duration");
}

/// The type reads every good example of the schema, and no bad one.
fn accepts_the_same<T: DeserializeOwned>(schema: &str) {
    for example in of_schema(good_examples(), schema) {
        let read = serde_json::from_slice::<T>(&example.text());
        assert!(
            read.is_ok(),
            "{schema}/{}: {}",
            example.name,
            read.err().unwrap()
        );
    }
    for example in of_schema(bad_examples(), schema) {
        let read = serde_json::from_slice::<T>(&example.text());
        assert!(read.is_err(), "invalid/{schema}/{} is read", example.name);
    }
}
