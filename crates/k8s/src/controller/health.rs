//! The controller's liveness and readiness probes for kubelet, and its metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::base::metrics::{self, controller::METRICS};

/// The conditions for this replica to be ready.
#[derive(Debug, Default)]
pub struct Ready {
    certificate: AtomicBool,
    cluster: AtomicBool,
    leaving: AtomicBool,
    said: AtomicBool,
}

impl Ready {
    /// A certificate is shown that the API server was told to trust.
    pub fn certificate(&self, is: bool) {
        self.certificate.store(is, Ordering::Release);
        self.say();
    }

    /// ResourceSlices and templates have been listed.
    pub fn cluster(&self) {
        self.cluster.store(true, Ordering::Release);
        self.say();
    }

    /// Nothing more is to be sent here.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    fn say(&self) {
        if self.lacks().is_none() && !self.said.swap(true, Ordering::AcqRel) {
            tracing::info!("ready");
        }
    }

    /// The missing condition, in words.
    fn lacks(&self) -> Option<&'static str> {
        let is = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        match () {
            () if is(&self.leaving) => Some("this replica is shutting down\n"),
            () if !is(&self.cluster) => Some("the ResourceSlices of the nodes are not read yet\n"),
            () if !is(&self.certificate) => {
                Some("there is no certificate yet that the API server trusts\n")
            }
            () => None,
        }
    }
}

/// With `metrics`, `GET /metrics` answers the page of metrics.
pub fn router(ready: Arc<Ready>, metrics: bool) -> Router {
    let readyz = async |State(ready): State<Arc<Ready>>| match ready.lacks() {
        None => (StatusCode::OK, "ok\n"),
        Some(lacks) => (StatusCode::SERVICE_UNAVAILABLE, lacks),
    };
    let mut router = Router::new().route("/healthz", get(async || "ok\n"));
    if metrics {
        let scrape = async || metrics::page(METRICS.text());
        router = router.route("/metrics", get(scrape));
    }
    router.route("/readyz", get(readyz)).with_state(ready)
}
