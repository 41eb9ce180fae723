//! Metrics of the controller.
//!
//! Every replica answers the webhook; metrics of cluster objects are those of the leader.

use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};

use super::Metrics;

/// The controller's metrics, of which a process has one set.
pub static METRICS: LazyLock<ControllerMetrics> = LazyLock::new(ControllerMetrics::new);

/// Kinds of objects with a label of their own. The API server sends no other kinds to the webhook.
const KINDS: [&str; 8] = [
    "Pod",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ReplicationController",
    "Job",
    "CronJob",
];

/// The answer to a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewResult {
    Changed,
    Unchanged,
    Invalid,
    Forbidden,
    Unavailable,
    Failed,
}

impl ReviewResult {
    fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}

/// What a call of the leader was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    DeviceClass,
    ClaimTemplate,
    Event,
}

impl Object {
    const ALL: [Self; 3] = [Self::DeviceClass, Self::ClaimTemplate, Self::Event];

    fn name(self) -> &'static str {
        match self {
            Self::DeviceClass => "deviceclass",
            Self::ClaimTemplate => "resourceclaimtemplate",
            Self::Event => "event",
        }
    }
}

/// Pods that wait for a GPU, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingPods {
    /// A queue holds them back.
    pub queued: usize,
    /// No GPU has room.
    pub no_room: usize,
    /// The scheduler found no node for another reason.
    pub unschedulable: usize,
    /// The scheduler has not looked at them, or has placed them and they have not started.
    pub pending: usize,
}

pub struct ControllerMetrics {
    all: Metrics,
    admissions: IntCounterVec,
    admission_seconds: Histogram,
    templates: IntCounterVec,
    reconcile_errors: IntCounterVec,
    leader: IntGauge,
    waiting: IntGaugeVec,
    certificate_expiry: IntGaugeVec,
}

impl ControllerMetrics {
    fn new() -> Self {
        let all = Metrics::new("divvy_controller_build_info", "the controller");
        let seconds: HistogramVec = all.histograms(
            "divvy_controller_admission_duration_seconds",
            "Seconds from the arrival of a review to its answer, with the creation of the claim template.",
            &[],
        );
        let metrics = Self {
            admissions: all.counters(
                "divvy_controller_admissions_total",
                "Objects that the webhook has reviewed, by kind and result.",
                &["kind", "result"],
            ),
            admission_seconds: seconds.with_label_values::<&str>(&[]),
            templates: all.counters(
                "divvy_controller_claim_template_creates_total",
                "Attempts to create a claim template, by result.",
                &["result"],
            ),
            reconcile_errors: all.counters(
                "divvy_controller_reconcile_errors_total",
                "Writes of the leader that failed, by object; the leader tries them again.",
                &["object"],
            ),
            leader: all.gauge(
                "divvy_controller_leader",
                "1 if this replica holds the Lease, otherwise 0.",
            ),
            waiting: all.gauges(
                "divvy_controller_waiting_pods",
                "Pods with a claim of Divvy that have not started, by reason; only of the leader.",
                &["reason"],
            ),
            certificate_expiry: all.gauges(
                "divvy_controller_certificate_expiry_timestamp_seconds",
                "End of the served certificate, in seconds since 1970.",
                &[],
            ),
            all,
        };
        for result in ["created", "exists", "failed"] {
            metrics.templates.with_label_values(&[result]);
        }
        for object in Object::ALL {
            let of_object = &metrics.reconcile_errors;
            of_object.with_label_values(&[object.name()]);
        }
        metrics
    }

    /// Counts an answered review.
    pub fn reviewed(&self, kind: &str, result: ReviewResult, took: Duration) {
        let known = KINDS.into_iter().find(|known| *known == kind);
        let labels = [known.unwrap_or("other"), result.name()];
        self.admissions.with_label_values(&labels).inc();
        self.admission_seconds.observe(took.as_secs_f64());
    }

    /// Counts an attempt to create a claim template; `None`: it failed.
    pub fn template_created(&self, is_new: Option<bool>) {
        let result = match is_new {
            Some(true) => "created",
            Some(false) => "exists",
            None => "failed",
        };
        self.templates.with_label_values(&[result]).inc();
    }

    pub fn reconcile_failed(&self, object: Object) {
        let of_object = &self.reconcile_errors;
        of_object.with_label_values(&[object.name()]).inc();
    }

    /// Notes whether this replica leads. A replica that does not lead knows of no waiting pods.
    pub fn leads(&self, is_leader: bool) {
        self.leader.set(i64::from(is_leader));
        if !is_leader {
            self.waiting.reset();
        }
    }

    /// Notes the waiting pods, unless this replica has lost the Lease meanwhile.
    pub fn waiting(&self, pods: WaitingPods) {
        if self.leader.get() == 0 {
            return;
        }
        for (reason, count) in [
            ("queued", pods.queued),
            ("no_room", pods.no_room),
            ("unschedulable", pods.unschedulable),
            ("pending", pods.pending),
        ] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.waiting.with_label_values(&[reason]).set(count);
        }
    }

    /// Notes the end of the served certificate.
    pub fn certificate_ends(&self, at: Timestamp) {
        let expiry = self.certificate_expiry.with_label_values::<&str>(&[]);
        expiry.set(at.as_second());
    }

    /// The page as text.
    pub fn text(&self) -> String {
        self.all.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_the_webhook_does_not_know_share_a_series() {
        let metrics = ControllerMetrics::new();
        for kind in 0..100 {
            let kind = format!("Kind{kind}");
            metrics.reviewed(&kind, ReviewResult::Unchanged, Duration::ZERO);
        }
        metrics.reviewed("Pod", ReviewResult::Changed, Duration::ZERO);
        let text = metrics.text();
        let series = text.matches("\ndivvy_controller_admissions_total{").count();
        assert_eq!(series, 2, "{text}");
        assert!(text.contains(
            "divvy_controller_admissions_total{kind=\"other\",result=\"unchanged\"} 100\n"
        ));
    }

    #[test]
    fn a_replica_that_loses_the_lease_forgets_the_waiting_pods() {
        let metrics = ControllerMetrics::new();
        metrics.leads(true);
        metrics.waiting(WaitingPods {
            no_room: 2,
            ..WaitingPods::default()
        });
        let led = metrics.text();
        assert!(
            led.contains("divvy_controller_waiting_pods{reason=\"no_room\"} 2\n"),
            "{led}"
        );
        metrics.leads(false);
        let text = metrics.text();
        assert!(!text.contains("divvy_controller_waiting_pods{"), "{text}");
        assert!(text.contains("\ndivvy_controller_leader 0\n"), "{text}");
    }
}
