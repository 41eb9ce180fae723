//! The health port: liveness, readiness, the policy in use, and metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use super::Extender;
use crate::base::metrics::page;
use crate::extender::metrics::METRICS;

/// The routes of the health port.
pub fn router(extender: &Arc<Extender>, metrics: bool) -> Router {
    let (of_ready, of_status) = (Arc::clone(extender), Arc::clone(extender));
    let ready = async move || match () {
        () if of_ready.is_leaving.load(Ordering::Acquire) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "this replica is shutting down\n",
        ),
        () if !of_ready.is_ready() => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the objects of the cluster are not listed yet\n",
        ),
        () => (StatusCode::OK, "ok\n"),
    };
    let status = async move || axum::Json(of_status.status());
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/status", get(status));
    if metrics {
        router.route("/metrics", get(async || page(METRICS.text())))
    } else {
        router
    }
}
