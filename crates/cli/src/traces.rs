//! The export of spans to an OpenTelemetry collector, with the feature `otlp`.

use std::env;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// Exports spans to a collector, the last ones when it is dropped.
///
/// It is configured by the environment variables of OpenTelemetry, and does nothing without them.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// To be called outside of a runtime: the exporter has a thread and an HTTP client of its own.
    pub(crate) fn start() -> Result<Self, String> {
        let endpoints = [
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        ];
        if !endpoints.iter().any(|name| env::var_os(name).is_some()) {
            return Ok(Self(None));
        }
        let exporter = SpanExporter::builder().with_http().build();
        let exporter = exporter.map_err(|error| format!("cannot send traces: {error}"))?;
        let mut resource = Resource::builder();
        if env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("forrst");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Self(Some(provider)))
    }

    pub(crate) fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer = self.0.as_ref()?.tracer("forrst");
        let spans = Targets::new().with_target("forrst::span", LevelFilter::TRACE);
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        Some(layer.with_filter(spans))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Some(provider) = &self.0 {
            // A collector that cannot be reached must not keep the server from ending.
            let _ = provider.shutdown();
        }
    }
}
