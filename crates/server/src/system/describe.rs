//! `describe`: the discovery document, from which a client can be generated.

use forrst_protocol::{ErrorCode, FunctionName, PROTOCOL_VERSION, RawObject, Version};
use serde_json::{Value, json};

use super::{Needs, Prepared, Spec, arguments_of, call};
use crate::core::Core;
use crate::error::arguments_pointer;
use crate::fields::parsed;
use crate::limits::Limits;
use crate::registry::Registered;

pub(super) const SPEC: Spec = Spec {
    names: &[
        "urn:cline:forrst:fn:describe",
        "urn:cline:forrst:ext:discovery:fn:describe",
    ],
    schema: "describe",
    needs: Needs::AnyCaller,
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
        Ok(document(server, &functions))
    }))
}

pub(crate) fn document(server: &Core, functions: &[&Registered]) -> Value {
    let functions: Vec<Value> = functions.iter().map(|f| describe(server, f)).collect();
    json!({
        "forrst": PROTOCOL_VERSION.to_string(),
        "info": {"title": server.service, "version": env!("CARGO_PKG_VERSION")},
        "functions": functions,
    })
}

fn describe(server: &Core, function: &Registered) -> Value {
    let stability = if function.version.is_stable() {
        "stable"
    } else {
        "experimental"
    };
    let errors = function.errors.iter();
    let errors: Vec<Value> = errors
        .map(|(code, message)| json!({"code": code, "message": message}))
        .collect();
    let extensions = server.extensions.all.iter().enumerate();
    let extensions: Vec<Value> = extensions
        .filter(|(index, _)| function.takes(*index))
        .map(|(_, e)| json!({"urn": e.urn(), "version": e.version()}))
        .collect();
    let mut described = json!({
        "name": function.name,
        "version": function.version,
        "stability": stability,
        "arguments": arguments(&function.arguments),
        "result": {"name": "result", "schema": function.result},
        "errors": errors,
        "extensions": extensions,
    });
    if let Some(summary) = &function.summary {
        described["summary"] = summary.as_str().into();
    }
    described
}

/// The members of an object's schema as arguments, each with the definitions that it may refer to.
fn arguments(schema: &Value) -> Vec<Value> {
    let Some(members) = schema["properties"].as_object() else {
        return Vec::new();
    };
    let required = schema["required"].as_array();
    let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|n| n == name));
    let argument = |(name, member): (&String, &Value)| {
        let mut member = member.clone();
        if let (Some(member), Some(definitions)) = (member.as_object_mut(), schema.get("$defs")) {
            member.insert("$defs".to_owned(), definitions.clone());
        }
        json!({"name": name, "required": is_required(name), "schema": member})
    };
    members.iter().map(argument).collect()
}
