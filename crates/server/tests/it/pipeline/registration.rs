//! Mistakes that are reported when a server is built.

use std::sync::Arc;

use async_trait::async_trait;
use forrst_protocol::Errors;
use forrst_server::{
    Around, BuildError, Context, Extension, ExtensionCall, Function, Next, Outcome, RegisterError,
    Server, ServerBuilder,
};
use forrst_stores::MemoryStore;
use serde_json::{Map, Value};

fn function(name: &str, version: &str) -> Function {
    Function::new(name, version, async |_: Context, _: Map<String, Value>| {
        Ok(())
    })
}

fn build(add: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Result<Server, BuildError> {
    add(Server::builder().store(Arc::new(MemoryStore::new()))).build()
}

/// The error of a build that must fail; its message must contain `names`.
#[track_caller]
fn check(add: impl FnOnce(ServerBuilder) -> ServerBuilder, names: &str) -> BuildError {
    let error = build(add).map(|_| ()).expect_err("should be refused");
    let message = error.to_string();
    assert!(
        message.contains(names),
        "`{message}` does not name `{names}`"
    );
    error
}

fn check_function(added: Function, names: &str) -> RegisterError {
    match check(|builder| builder.register(added), names) {
        BuildError::Function(error) => error,
        other => panic!("{other:?}"),
    }
}

struct Named(&'static str, Option<&'static str>);

impl Extension for Named {
    fn urn(&self) -> &str {
        self.0
    }

    fn alias(&self) -> Option<&str> {
        self.1
    }

    fn prepare(&self, _: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        Ok(Box::new(Through))
    }
}

struct Through;

#[async_trait]
impl Around for Through {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        next.run(context).await
    }
}

#[tokio::test]
async fn names_of_the_protocol_are_reserved() {
    for name in [
        "forrst.call",
        "forrst.x",
        "urn:cline:forrst:fn:mine",
        "urn:cline:forrst:ext:atomic-lock:fn:release",
    ] {
        let error = check_function(function(name, "1.0.0"), name);
        assert!(matches!(error, RegisterError::Reserved(_)), "{error:?}");
    }
}

#[tokio::test]
async fn an_invalid_name_is_refused() {
    for name in [
        "",
        "charge",
        "payments.",
        ".charge",
        "payments charge",
        "urn:acme:fn:x",
    ] {
        let error = check_function(function(name, "1.0.0"), name);
        assert!(matches!(error, RegisterError::Name { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_invalid_version_is_refused() {
    for version in ["", "1", "1.0", "v1.0.0", "1.0.0.0", "01.0.0"] {
        let error = check_function(function("tea.brew", version), version);
        assert!(matches!(error, RegisterError::Version { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_version_cannot_be_registered_twice() {
    let twice = |builder: ServerBuilder| {
        builder
            .register(function("tea.brew", "1.0.0"))
            .register(function("tea.brew", "1.1.0"))
            .register(function("tea.brew", "1.0.0"))
    };
    let error = check(twice, "`tea.brew` 1.0.0");
    assert!(matches!(
        error,
        BuildError::Function(RegisterError::Twice(..))
    ));
}

#[tokio::test]
async fn errors_and_extensions_of_a_function_have_to_be_valid() {
    let error = check_function(
        function("tea.brew", "1.0.0").error("too hot", "x"),
        "too hot",
    );
    assert!(
        matches!(error, RegisterError::ErrorCode { .. }),
        "{error:?}"
    );
    let unknown = "urn:acme:forrst:ext:unknown";
    let error = check_function(function("tea.brew", "1.0.0").extensions([unknown]), unknown);
    assert!(
        matches!(error, RegisterError::Extension { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn extensions_need_valid_and_unique_names() {
    let error = check(|builder| builder.extension(Named("audit", None)), "audit");
    assert!(matches!(error, BuildError::ExtensionUrn(_)), "{error:?}");
    for (urn, alias) in [
        ("urn:forrst:ext:atomicLock", None),
        (
            "urn:acme:forrst:ext:lock",
            Some("urn:cline:forrst:ext:atomic-lock"),
        ),
        ("urn:forrst:ext:deadline", None),
        ("urn:acme:forrst:ext:same", Some("urn:acme:forrst:ext:same")),
    ] {
        let taken = alias.unwrap_or(urn);
        let error = check(|builder| builder.extension(Named(urn, alias)), taken);
        assert!(matches!(error, BuildError::ExtensionTwice(_)), "{error:?}");
    }
    let both = |builder: ServerBuilder| {
        builder
            .extension(Named("urn:acme:forrst:ext:audit", None))
            .extension(Named("urn:acme:forrst:ext:audit", None))
    };
    check(both, "urn:acme:forrst:ext:audit");
}

#[tokio::test]
async fn the_name_of_a_node_must_be_valid_in_a_header() {
    for name in ["", "two words", "caf\u{e9}", "new\nline"] {
        let error = check(|builder| builder.node(name), "node");
        assert!(matches!(error, BuildError::Node), "{error:?}");
    }
    let server = build(|builder| builder.node("eu-west/1")).unwrap();
    assert_eq!(server.node(), "eu-west/1");
}

#[tokio::test]
async fn a_server_needs_a_store() {
    let error = Server::builder().build().map(|_| ()).unwrap_err();
    assert!(matches!(error, BuildError::NoStore));
    assert!(error.to_string().contains("store"));
}
