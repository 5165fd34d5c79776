//! `describe`: the discovery document, from which a client can be generated.

use forrst_protocol::{ErrorCode, FunctionName, PROTOCOL_VERSION, RawObject, Version};
use serde_json::{Value, json};

use super::{Needs, Prepared, Spec, arguments_of, call};
use crate::core::Core;
use crate::error::arguments_pointer;
use crate::fields::{boolean, parsed};
use crate::limits::Limits;
use crate::registry::Registered;

pub(super) const SPEC: Spec = Spec {
    names: &[
        "urn:cline:forrst:fn:describe",
        "urn:cline:forrst:ext:discovery:fn:describe",
    ],
    schema: "describe",
    needs: Needs::AnyCaller,
    is_cancellable: false,
    errors: &[
        (ErrorCode::FunctionNotFound, "There is no such function"),
        (
            ErrorCode::VersionNotFound,
            "The function has no such version",
        ),
    ],
    prepare,
};

fn prepare(arguments: &RawObject<'_>, _: &Limits) -> Prepared {
    let mut fields = arguments_of(arguments);
    let function = fields.optional("function", parsed(FunctionName::parse));
    let version = fields.optional("version", parsed(Version::parse));
    let include_schema = fields.optional("include_schema", boolean).unwrap_or(true);
    if version.is_some() && function.is_none() {
        fields.refuse("version", "can be used only together with `function`");
    }
    fields.finish()?;
    Ok(call(async move |context| {
        let server = &context.server;
        let functions: Vec<&Registered> = match &function {
            None => server.registry.iter().collect(),
            Some(name) => {
                // One version if it is named, otherwise all.
                let found = server.registry.find_version(name, version.as_ref());
                match (found, &version) {
                    (Ok(found), Some(_)) => vec![found],
                    (Err(error), _) if error.code == ErrorCode::FunctionNotFound => {
                        return Err(error.at(arguments_pointer().key("function")).into());
                    }
                    (Err(error), Some(_)) => {
                        return Err(error.at(arguments_pointer().key("version")).into());
                    }
                    (_, None) => server.registry.versions(name).collect(),
                }
            }
        };
        Ok(document(server, &functions, include_schema))
    }))
}

pub(crate) fn document(server: &Core, functions: &[&Registered], include_schema: bool) -> Value {
    let describe = |function: &&Registered| describe(server, function, include_schema);
    let functions: Vec<Value> = functions.iter().map(describe).collect();
    json!({
        "discovery": DISCOVERY,
        "forrst": PROTOCOL_VERSION.to_string(),
        "info": {"title": server.service, "version": env!("CARGO_PKG_VERSION")},
        "functions": functions,
        "codes": ErrorCode::STANDARD.iter().map(code).collect::<Vec<Value>>(),
    })
}

/// As in `schemas/codes.json`.
fn code(code: &ErrorCode) -> Value {
    json!({
        "code": code,
        "status": code.http_status(),
        "retryable": code.is_retryable(),
        "may_have_run": code.may_have_run(),
    })
}

/// The version of the format of the discovery document.
const DISCOVERY: &str = "0.1.0";

fn describe(server: &Core, function: &Registered, include_schema: bool) -> Value {
    let errors = function.errors.iter();
    let errors: Vec<Value> = errors
        .map(|(code, message)| json!({"code": code, "message": message}))
        .collect();
    let extensions = server.extensions.listed(|place| function.takes(place));
    let mut described = json!({
        "name": function.name,
        "version": function.version,
        "stability": stability(&function.version),
        "arguments": arguments(&function.arguments, include_schema),
        "result": {"name": "result"},
        "errors": errors,
        "extensions": extensions,
    });
    if include_schema {
        described["result"]["schema"] = json!(function.result);
    }
    if let Some(summary) = &function.summary {
        described["summary"] = summary.as_str().into();
    }
    described
}

/// By the tag of a pre-release: `1.0.0-beta.2` is a beta.
fn stability(version: &Version) -> &'static str {
    let tag = version.pre_release().split('.').next();
    match tag {
        None | Some("") => "stable",
        Some("alpha") => "alpha",
        Some("beta") => "beta",
        Some("rc") => "rc",
        Some(_) => "experimental",
    }
}

/// The members of an object's schema as arguments, each with the definitions that it may refer to.
fn arguments(schema: &Value, include_schema: bool) -> Vec<Value> {
    let Some(members) = schema["properties"].as_object() else {
        return Vec::new();
    };
    let required = schema["required"].as_array();
    let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|n| n == name));
    let argument = |(name, member): (&String, &Value)| {
        if !include_schema {
            return json!({"name": name, "required": is_required(name)});
        }
        let mut member = member.clone();
        if let (Some(member), Some(definitions)) = (member.as_object_mut(), schema.get("$defs")) {
            member.insert("$defs".to_owned(), definitions.clone());
        }
        json!({"name": name, "required": is_required(name), "schema": member})
    };
    members.iter().map(argument).collect()
}
