//! `tracing`: the call becomes a span in a trace across services, from the options or from a W3C `traceparent` header.

use std::sync::Arc;

use async_trait::async_trait;
use forrst_protocol::{Errors, RawObject, Request, Urn};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{Instrument, field};

use super::deadline::millis;
use super::{Around, Extension, ExtensionCall, Next, Outcome};
use crate::Context;
use crate::fields::{Fields, text};
use crate::for_log::for_log;
use crate::span;

pub(crate) struct Tracing;

impl Tracing {
    pub(crate) const URN: &'static str = "urn:forrst:ext:tracing";
    const ALIAS: &'static str = "urn:cline:forrst:ext:tracing";

    /// The span of the caller as a `traceparent`: from the options of `tracing` if the request has them, else from its header. The span
    /// of the request begins before the request is checked, so this parses it once more. `None` if the ids are not W3C ids.
    pub(crate) fn caller_span(body: &[u8], header: Option<&str>) -> Option<String> {
        #[derive(Deserialize)]
        struct Ids {
            trace_id: String,
            span_id: String,
        }

        let request = Request::parse(body).ok();
        let mut extensions = request.iter().flat_map(|request| &request.extensions);
        let own = extensions.find(|own| [Self::URN, Self::ALIAS].contains(&own.urn.as_str()));
        match own.and_then(|own| own.options.as_ref()) {
            Some(options) => {
                let Ids { trace_id, span_id } = options.deserialize().ok()?;
                Some(format!("00-{trace_id}-{span_id}-01"))
            }
            None => header.map(str::to_owned),
        }
    }
}

impl Extension for Tracing {
    fn urn(&self) -> &str {
        Self::URN
    }

    fn alias(&self) -> Option<&str> {
        Some(Self::ALIAS)
    }

    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let from_header = call.traceparent.and_then(Trace::from_traceparent);
        let trace = match (call.options, from_header) {
            (None, Some(trace)) => trace,
            (options, _) => {
                let at = call.pointer().key("options");
                Trace::read(Fields::read(options, at))?
            }
        };
        Ok(Box::new(TracedCall {
            urn: call.index.map(|_| call.urn.clone()),
            trace,
        }))
    }
}

/// The position of a call in a trace, which a function propagates in its calls to other services.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The id of the trace.
    pub trace_id: String,
    /// The id of this call's span, under which it is exported, if it is.
    pub span_id: String,
    /// The span of the calling service.
    pub parent_span_id: Option<String>,
    /// The baggage, as the caller sent it.
    pub baggage: RawObject<'static>,
}

impl Trace {
    fn read(mut fields: Fields) -> Result<Self, Errors> {
        let named = |value: &Value| match text(value)? {
            text if text.is_empty() => Err("must not be empty".to_owned()),
            text => Ok(text),
        };
        let trace_id = fields.required("trace_id", named);
        let caller = fields.required("span_id", named);
        fields.optional("parent_span_id", named);
        let baggage = fields.optional_object("baggage");
        fields.finish_open()?;
        Ok(Self {
            trace_id: trace_id.unwrap_or_default(),
            span_id: random_span_id(),
            parent_span_id: caller,
            baggage: baggage.map(RawObject::into_owned).unwrap_or_default(),
        })
    }

    /// Parses a W3C `traceparent`, `00-<32 hex>-<16 hex>-<2 hex>`; `None` if it is invalid.
    pub(crate) fn from_traceparent(header: &str) -> Option<Self> {
        let parts: Vec<&str> = header.trim().split('-').collect();
        let [version, trace_id, parent, flags, ..] = parts[..] else {
            return None;
        };
        let is_hex = |text: &str, length: usize| {
            text.len() == length
                && text
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let is_zero = |text: &str| text.bytes().all(|b| b == b'0');
        let is_supported = version != "ff" && (parts.len() == 4 || version != "00");
        let is_valid = is_supported
            && is_hex(version, 2)
            && is_hex(trace_id, 32)
            && is_hex(parent, 16)
            && is_hex(flags, 2)
            && !is_zero(trace_id)
            && !is_zero(parent);
        is_valid.then(|| Self {
            trace_id: trace_id.to_owned(),
            span_id: random_span_id(),
            parent_span_id: Some(parent.to_owned()),
            baggage: RawObject::default(),
        })
    }
}

/// A random span id: 16 hexadecimal digits, as in W3C trace context.
fn random_span_id() -> String {
    format!("{:016x}", uuid::Uuid::new_v4().as_u64_pair().1)
}

struct TracedCall {
    /// `None` for a trace that the request has joined by its header alone.
    urn: Option<Urn>,
    trace: Trace,
}

#[async_trait]
impl Around for TracedCall {
    async fn run(self: Box<Self>, mut context: Context, next: Next) -> Outcome {
        let Self { urn, mut trace } = *self;
        let received = context.call.received;
        let span = tracing::info_span!(
            "call",
            function = &*for_log(context.function().as_str()),
            trace_id = &*for_log(&trace.trace_id),
            span_id = field::Empty,
            parent_span_id = trace.parent_span_id.as_deref().map(for_log).as_deref(),
        );
        // The span of the request, or this one if only this one is exported.
        let exported = match span::is_traced() {
            true => span::exported_id(&tracing::Span::current()),
            false => span::exported_id(&span),
        };
        if let Some(id) = exported {
            trace.span_id = id;
        }
        span.record("span_id", &*trace.span_id);
        let trace = Arc::new(trace);
        context.trace = Some(trace.clone());
        let outcome = next.run(context).instrument(span).await;
        let Some(urn) = urn else {
            return outcome;
        };
        outcome.with_data(
            urn,
            &json!({
                "trace_id": trace.trace_id,
                "span_id": trace.span_id,
                "duration": millis(received.elapsed()),
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_parsed_strictly() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = Trace::from_traceparent(good).unwrap();
        assert_eq!(trace.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.parent_span_id.as_deref(), Some("00f067aa0ba902b7"));
        assert_eq!(trace.span_id.len(), 16);
        let future = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(Trace::from_traceparent(future).is_some());
        for bad in [
            "",
            "00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        ] {
            assert_eq!(Trace::from_traceparent(bad), None, "{bad}");
        }
    }
}
