//! Metrics of the scheduler extender.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{Histogram, IntCounterVec, IntGauge, IntGaugeVec};

use super::{BestFitReason, Outcome};
use crate::base::metrics::Metrics;

/// The extender's metrics, of which a process has one set.
pub static METRICS: LazyLock<ExtenderMetrics> = LazyLock::new(ExtenderMetrics::new);

/// Seconds of calls that each pod waits for.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
];

pub struct ExtenderMetrics {
    all: Metrics,
    requests: IntCounterVec,
    seconds: Histogram,
    assumed: IntGauge,
    bindings: IntCounterVec,
    policy: IntGaugeVec,
    history: IntGauge,
    nodes: IntGauge,
}

impl ExtenderMetrics {
    fn new() -> Self {
        let all = Metrics::new("divvy_extender_build_info", "the scheduler extender");
        let metrics = Self {
            requests: all.counters(
                "divvy_extender_requests_total",
                "Requests of the scheduler, by what came of them.",
                &["result"],
            ),
            seconds: all
                .histograms_in(
                    "divvy_extender_request_duration_seconds",
                    "Seconds from a complete request to its answer.",
                    &[],
                    SECONDS,
                )
                .with_label_values::<&str>(&[]),
            assumed: all.gauge(
                "divvy_extender_assumed_pods",
                "Pods that were scored, and whose claim and binding have not shown up yet.",
            ),
            bindings: all.counters(
                "divvy_extender_bindings_total",
                "Scored pods that were bound, by node: the chosen one, or another.",
                &["node"],
            ),
            policy: all.gauges(
                "divvy_extender_policy",
                "1 for the policy in use. The reason says why it is best fit and not the learned table.",
                &["policy", "reason"],
            ),
            history: all.gauge(
                "divvy_extender_history_requests",
                "Requests in the history that the table is trained on.",
            ),
            nodes: all.gauge("divvy_extender_nodes", "Nodes with GPUs that pods share."),
            all,
        };
        for outcome in Outcome::ALL {
            metrics.requests.with_label_values(&[outcome.name()]);
        }
        for node in ["chosen", "other"] {
            metrics.bindings.with_label_values(&[node]);
        }
        metrics
    }

    /// Counts an answered request.
    pub fn answered(&self, outcome: Outcome, took: Duration) {
        self.requests.with_label_values(&[outcome.name()]).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub fn assumed(&self, pods: usize) {
        self.assumed.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    pub fn bound(&self, is_chosen: bool) {
        let node = if is_chosen { "chosen" } else { "other" };
        self.bindings.with_label_values(&[node]).inc();
    }

    /// Notes the policy in use; `None`: the learned table.
    pub fn policy(&self, reason: Option<&BestFitReason>) {
        let set = |policy, reason, is: bool| {
            let gauge = self.policy.with_label_values(&[policy, reason]);
            gauge.set(i64::from(is));
        };
        set("learned", "", reason.is_none());
        for label in BestFitReason::LABELS {
            set(
                "best-fit",
                label,
                reason.is_some_and(|reason| reason.label() == label),
            );
        }
    }

    pub fn history(&self, requests: u64, nodes: usize) {
        self.history
            .set(i64::try_from(requests).unwrap_or(i64::MAX));
        self.nodes.set(i64::try_from(nodes).unwrap_or(i64::MAX));
    }

    /// The page as text.
    pub fn text(&self) -> String {
        self.all.text()
    }
}
