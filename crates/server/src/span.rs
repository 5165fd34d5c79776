//! Spans for tracing: the request, the wait for its lock, the function, and each operation of the store.
//!
//! They have their own target and the lowest level, so that a log does not show them, and without a subscriber they cost nothing.

use tracing::{Span, field, trace_span};

/// The target that a subscriber enables to receive them.
const TARGET: &str = "forrst::span";

/// Whether a subscriber records the spans.
pub(crate) fn is_traced() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// The whole request, as a child of the span that `caller` returns as a `traceparent`.
pub(crate) fn request(caller: impl FnOnce() -> Option<String>) -> Span {
    let span = trace_span!(
        target: TARGET, "request", otel.kind = "server", function = field::Empty, code = field::Empty
    );
    #[cfg(feature = "otlp")]
    if let Some(parent) = caller().as_deref().and_then(remote::parent) {
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        // It fails where no subscriber records the span.
        let _ = span.set_parent(parent);
    }
    #[cfg(not(feature = "otlp"))]
    let _ = caller;
    span
}

/// The id under which OpenTelemetry exports a span; `None` if nothing does.
pub(crate) fn exported_id(span: &Span) -> Option<String> {
    #[cfg(feature = "otlp")]
    {
        use opentelemetry::trace::{SpanId, TraceContextExt};
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        let id = span.context().span().span_context().span_id();
        (id != SpanId::INVALID).then(|| id.to_string())
    }
    #[cfg(not(feature = "otlp"))]
    {
        let _ = span;
        None
    }
}

/// From the request for a lock to its outcome.
pub(crate) fn wait() -> Span {
    trace_span!(target: TARGET, "wait")
}

/// The function itself.
pub(crate) fn function() -> Span {
    trace_span!(target: TARGET, "function")
}

/// One operation of the store within another span. Operations of background tasks are not traced.
pub(crate) fn store(op: &'static str) -> Span {
    if !is_traced() || Span::current().is_none() {
        return Span::none();
    }
    trace_span!(target: TARGET, "store", op)
}

#[cfg(feature = "otlp")]
mod remote {
    use opentelemetry::Context;
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
    };

    use crate::Trace;

    /// The caller's span, by its `traceparent`.
    pub(super) fn parent(traceparent: &str) -> Option<Context> {
        let trace = Trace::from_traceparent(traceparent)?;
        let flags = traceparent.trim().split('-').nth(3)?;
        let span = SpanContext::new(
            TraceId::from_hex(&trace.trace_id).ok()?,
            SpanId::from_hex(&trace.parent_span_id?).ok()?,
            TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
            true,
            TraceState::default(),
        );
        Some(Context::new().with_remote_span_context(span))
    }
}
