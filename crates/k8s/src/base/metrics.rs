//! Metrics of this program, in Prometheus's text format: what the controller and the node driver share.
//!
//! Names follow Prometheus's conventions: base units, counters end in `_total`, and labels have a known set of values.

pub mod controller;
pub mod driver;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// The version 0.0.4 that every Prometheus reads.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Seconds of calls that a person or kubelet waits for; kubelet gives up after 45 s.
pub const SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 45.0,
];

/// Metrics of one part of the program.
pub struct Metrics(Registry);

impl Metrics {
    /// None but the version of the program, under this name.
    pub fn new(build_info: &str, what: &str) -> Self {
        let metrics = Self(Registry::new());
        let build = metrics.gauges(
            build_info,
            &format!("Version of {what}; always 1."),
            &["version"],
        );
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.registered(IntGauge::new(name, help))
    }

    /// Of durations, in seconds.
    pub fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        self.histograms_in(name, help, labels, SECONDS)
    }

    /// Of durations in seconds, with buckets of their own.
    pub fn histograms_in(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(options, labels))
    }

    /// The names are constants of this program, so a name that is invalid or taken is a bug that each start shows.
    fn registered<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("a valid name of a metric");
        let registered = self.0.register(Box::new(collector.clone()));
        registered.expect("a new name of a metric");
        collector
    }

    /// The page as text.
    pub fn text(&self) -> String {
        let families = self.0.gather();
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_else(|error| {
                tracing::warn!("cannot write the metrics: {error}");
                String::new()
            })
    }
}

/// The answer to a scrape.
pub fn page(text: String) -> Response {
    (StatusCode::OK, [(CONTENT_TYPE, FORMAT)], text).into_response()
}
