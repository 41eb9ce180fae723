//! Metrics of the node's driver.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};

use super::Metrics;

/// A claim that the daemon holds, and its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPods {
    pub namespace: String,
    pub claim: String,
    /// Names; the caller bounds their number.
    pub pods: Vec<String>,
}

/// The driver's own metrics, of which a process has one set.
pub static METRICS: LazyLock<DriverMetrics> = LazyLock::new(DriverMetrics::new);

pub struct DriverMetrics {
    all: Metrics,
    operations: IntCounterVec,
    seconds: HistogramVec,
    held: IntGauge,
    slices: IntGauge,
    devices: IntGauge,
    daemon_up: IntGauge,
    pods: IntGaugeVec,
}

/// A call of kubelet for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Prepare,
    Unprepare,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Unprepare => "unprepare",
        }
    }
}

impl DriverMetrics {
    fn new() -> Self {
        let all = Metrics::new("divvy_driver_build_info", "the node's driver");
        let metrics = Self {
            operations: all.counters(
                "divvy_driver_operations_total",
                "Calls of kubelet to prepare or unprepare a claim, by result.",
                &["operation", "result"],
            ),
            seconds: all.histograms(
                "divvy_driver_operation_duration_seconds",
                "Seconds that it took to prepare or unprepare a claim.",
                &["operation"],
            ),
            held: all.gauge(
                "divvy_driver_claims_held",
                "Claims that the node's daemon holds.",
            ),
            slices: all.gauge(
                "divvy_driver_slices_published",
                "ResourceSlices of the node that the driver has published.",
            ),
            devices: all.gauge(
                "divvy_driver_devices_published",
                "Devices in these ResourceSlices.",
            ),
            daemon_up: all.gauge(
                "divvy_driver_daemon_up",
                "1 if the node's daemon has answered this scrape, otherwise 0.",
            ),
            pods: all.gauges(
                "divvy_driver_claim_pod_info",
                "A pod that uses a held claim; at most 16 for each claim; always 1.",
                &["namespace", "claim", "pod"],
            ),
            all,
        };
        // A counter that appears with its first failure has no increase to be seen.
        for operation in [Operation::Prepare, Operation::Unprepare] {
            for result in ["done", "failed"] {
                let labels = [operation.name(), result];
                metrics.operations.with_label_values(&labels);
            }
        }
        metrics
    }

    /// Counts a call of kubelet.
    pub fn count(&self, operation: Operation, took: Duration, is_done: bool) {
        let result = if is_done { "done" } else { "failed" };
        let labels = [operation.name(), result];
        self.operations.with_label_values(&labels).inc();
        let seconds = self.seconds.with_label_values(&[operation.name()]);
        seconds.observe(took.as_secs_f64());
    }

    /// Notes the size of the published pool.
    pub fn published(&self, slices: usize, devices: usize) {
        self.slices.set(whole(slices));
        self.devices.set(whole(devices));
    }

    /// The driver's own metrics, with the claims of this scrape; `None`: the daemon has not answered.
    pub fn text(&self, claims: Option<&[ClaimPods]>) -> String {
        self.daemon_up.set(i64::from(claims.is_some()));
        self.pods.reset();
        if let Some(claims) = claims {
            self.held.set(whole(claims.len()));
            for claim in claims {
                for pod in &claim.pods {
                    let labels = [&*claim.namespace, &*claim.claim, pod];
                    self.pods.with_label_values(&labels).set(1);
                }
            }
        }
        self.all.text()
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_a_claim_have_series_while_the_claim_is_held() {
        let metrics = DriverMetrics::new();
        let claim = ClaimPods {
            namespace: "team".into(),
            claim: "train".into(),
            pods: (0..16).map(|pod| format!("pod-{pod}")).collect(),
        };
        let series = |text: &str| text.matches("\ndivvy_driver_claim_pod_info{").count();
        assert_eq!(series(&metrics.text(Some(&[claim]))), 16);
        let none = metrics.text(Some(&[]));
        assert_eq!(series(&none), 0);
        assert!(none.contains("\ndivvy_driver_claims_held 0\n"), "{none}");
        assert!(
            metrics.text(None).contains("\ndivvy_driver_daemon_up 0\n"),
            "a daemon that does not answer is seen"
        );
    }
}
