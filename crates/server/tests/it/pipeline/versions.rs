//! Versions of functions: which one runs, and which errors are returned if there is none.

use forrst_server::{Context, FunctionError, ServerBuilder};
use serde_json::{Map, Value, json};

use crate::pipeline::probe::{Probe, Seen};
use crate::wire::ask;

fn versions(builder: ServerBuilder, _: &Seen) -> ServerBuilder {
    async fn which(context: Context, _: Map<String, Value>) -> Result<String, FunctionError> {
        Ok(context.version().to_string())
    }
    builder
        .function("tea.brew", "1.9.0", which)
        .function("tea.brew", "2.0.0-beta.1", which)
        .function("tea.brew", "1.10.0", which)
        .function("tea.brew", "1.2.0", which)
        .function("milk.froth", "0.9.0-alpha", which)
        .function("milk.froth", "1.0.0-rc.1", which)
        .function("jam.stir", "0.1.0", which)
}

#[tokio::test(start_paused = true)]
async fn the_highest_stable_version_runs_when_none_is_named() {
    let probe = Probe::with(versions);
    for (function, runs) in [("tea.brew", "1.10.0"), ("jam.stir", "0.1.0")] {
        probe.check(&ask(function), &json!({"result": runs})).await;
    }
}

#[tokio::test(start_paused = true)]
async fn any_version_runs_when_it_is_named() {
    let probe = Probe::with(versions);
    for (function, version) in [
        ("tea.brew", "1.2.0"),
        ("tea.brew", "1.9.0"),
        ("tea.brew", "2.0.0-beta.1"),
        ("milk.froth", "0.9.0-alpha"),
    ] {
        let request = ask(function).version(version);
        probe.check(&request, &json!({"result": version})).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_without_a_stable_version_has_to_be_called_by_version() {
    let probe = Probe::with(versions);
    let expected = json!({"result": null, "errors": [{
        "code": "VERSION_NOT_FOUND",
        "source": {"pointer": "/call/version"},
        "details": {"requested": null, "available": ["0.9.0-alpha", "1.0.0-rc.1"]},
    }]});
    probe.check(&ask("milk.froth"), &expected).await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_version_is_answered_with_the_available_ones() {
    let probe = Probe::with(versions);
    let available = ["1.2.0", "1.9.0", "1.10.0", "2.0.0-beta.1"];
    for version in ["2.0.0", "1.2.1", "2.0.0-beta.2", "0.0.0"] {
        let expected = json!({"errors": [{
            "code": "VERSION_NOT_FOUND",
            "source": {"pointer": "/call/version"},
            "details": {"requested": version, "available": available},
        }]});
        probe
            .check(&ask("tea.brew").version(version), &expected)
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_function_is_named_in_the_answer() {
    let probe = Probe::with(versions);
    for function in ["tea.drink", "urn:acme:forrst:fn:drink"] {
        let expected = json!({"errors": [{
            "code": "FUNCTION_NOT_FOUND",
            "source": {"pointer": "/call/function"},
            "details": {"function": function},
        }]});
        probe.check(&ask(function), &expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_lists_each_name_once() {
    let probe = Probe::with(versions);
    let names = probe.server.functions();
    assert!(names.contains(&"tea.brew".to_owned()), "{names:?}");
    assert!(
        !names.iter().any(|name| name.starts_with("urn:cline")),
        "{names:?}"
    );
    assert_eq!(names.iter().filter(|name| *name == "tea.brew").count(), 1);
}
