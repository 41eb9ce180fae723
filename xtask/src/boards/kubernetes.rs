//! The board of a cluster: namespaces, pods, the GPUs of all nodes, and the parts of Divvy itself.

use super::panel::{Board, Row, Variable, lines, stack, stat, table};

pub fn board() -> Board {
    Board {
        uid: "divvy-kubernetes",
        title: "Divvy on Kubernetes",
        description: "GPUs of a cluster by namespace and pod. The board \"Divvy\" shows each node in detail.",
        selector: "node=~\"$node\"",
        variables: vec![
            Variable {
                name: "namespace",
                label: "Namespace",
                values: "label_values(divvy_job_info, namespace)",
            },
            Variable {
                name: "node",
                label: "Node",
                values: "label_values(divvy_gpu_info, node)",
            },
        ],
        rows: vec![cluster(), pods(), gpus(), divvy()],
    }
}

fn cluster() -> Row {
    Row {
        title: "Cluster",
        panels: vec![
            stat(4, "GPUs", "none").query("count(divvy_gpu_info{@})", "GPUs"),
            stat(4, "Allocated GPUs", "none")
                .query("sum(divvy_gpu_share_allocated_ratio{@})", "GPUs"),
            stat(4, "GPUs that do not respond", "none")
                .query("count(divvy_gpu_health{@} == 0) or vector(0)", "GPUs"),
            stat(4, "Nodes without a daemon", "none").query(
                "count(divvy_driver_daemon_up{@} == 0) or vector(0)",
                "nodes",
            ),
            stat(4, "Waiting pods", "none").query("sum(divvy_controller_waiting_pods)", "pods"),
            stat(4, "Webhook certificate ends in", "s").query(
                "min(divvy_controller_certificate_expiry_timestamp_seconds) - time()",
                "",
            ),
        ],
    }
}

fn pods() -> Row {
    Row {
        title: "Namespaces and pods",
        panels: vec![
            stack(12, "Allocated memory by namespace", "bytes").query(
                "sum by (namespace) (divvy_job_memory_limit_bytes{namespace=~\"$namespace\",@})",
                "{{namespace}}",
            ),
            lines(12, "Memory in use by pod", "bytes").query(
                "sum by (namespace, pod) (divvy_job_memory_used_bytes{namespace=~\"$namespace\",@})",
                "{{namespace}}/{{pod}}",
            ),
            stack(12, "GPU time held by namespace", "none")
                .about("GPU-seconds per second: the GPUs that the pods of a namespace hold.")
                .query(
                    "sum by (namespace) (rate(divvy_job_gpu_seconds_total{namespace=~\"$namespace\",@}[$__rate_interval]))",
                    "{{namespace}}",
                ),
            lines(12, "Refused allocations by pod", "none").query(
                "sum by (namespace, pod) \
                 (increase(divvy_job_alloc_denied_total{namespace=~\"$namespace\",@}[$__rate_interval]))",
                "{{namespace}}/{{pod}}",
            ),
            table("Pods", "bytes")
                .query(
                    "sum by (namespace, pod, claim, node, gpu) \
                     (divvy_job_memory_limit_bytes{namespace=~\"$namespace\",@})",
                    "limit",
                )
                .query(
                    "sum by (namespace, pod, claim, node, gpu) \
                     (divvy_job_memory_used_bytes{namespace=~\"$namespace\",@})",
                    "used",
                )
                .query(
                    "sum by (namespace, pod, claim, node, gpu) \
                     (divvy_job_memory_peak_bytes{namespace=~\"$namespace\",@})",
                    "peak",
                ),
        ],
    }
}

fn gpus() -> Row {
    Row {
        title: "GPUs",
        panels: vec![
            lines(12, "Memory in use, as the driver reports it", "bytes").query(
                "sum by (node, gpu) (divvy_gpu_memory_used_bytes{@})",
                "{{node}} GPU {{gpu}}",
            ),
            lines(12, "Time with a running kernel", "percentunit").query(
                "avg by (node, gpu) (divvy_gpu_sm_utilization_ratio{@})",
                "{{node}} GPU {{gpu}}",
            ),
            lines(12, "Memory outside all slices", "bytes").query(
                "sum by (node, gpu) (divvy_gpu_memory_unmanaged_bytes{@})",
                "{{node}} GPU {{gpu}}",
            ),
            lines(12, "Bypasses of the limiter", "none").query(
                "sum by (node, kind) (increase(divvy_bypasses_total{@}[$__rate_interval]))",
                "{{node}} {{kind}}",
            ),
        ],
    }
}

fn divvy() -> Row {
    Row {
        title: "Divvy",
        panels: vec![
            lines(8, "Reviews by result", "reqps").query(
                "sum by (kind, result) (rate(divvy_controller_admissions_total[$__rate_interval]))",
                "{{kind}} {{result}}",
            ),
            lines(8, "Review duration", "s")
                .query(
                    "histogram_quantile(0.5, sum by (le) \
                     (rate(divvy_controller_admission_duration_seconds_bucket[$__rate_interval])))",
                    "p50",
                )
                .query(
                    "histogram_quantile(0.99, sum by (le) \
                     (rate(divvy_controller_admission_duration_seconds_bucket[$__rate_interval])))",
                    "p99",
                ),
            lines(8, "Waiting pods by reason", "none").query(
                "max by (reason) (divvy_controller_waiting_pods)",
                "{{reason}}",
            ),
            lines(8, "Prepared and unprepared claims", "ops").query(
                "sum by (operation, result) (rate(divvy_driver_operations_total{@}[$__rate_interval]))",
                "{{operation}} {{result}}",
            ),
            lines(8, "Duration of prepare and unprepare, p99", "s").query(
                "histogram_quantile(0.99, sum by (le, operation) \
                 (rate(divvy_driver_operation_duration_seconds_bucket{@}[$__rate_interval])))",
                "{{operation}}",
            ),
            lines(8, "Claims held by node", "none")
                .query("sum by (node) (divvy_driver_claims_held{@})", "{{node}}"),
            lines(12, "Claim templates created, and failed writes", "ops")
                .query(
                    "sum by (result) (rate(divvy_controller_claim_template_creates_total[$__rate_interval]))",
                    "template {{result}}",
                )
                .query(
                    "sum by (object) (rate(divvy_controller_reconcile_errors_total[$__rate_interval]))",
                    "failed: {{object}}",
                ),
            lines(12, "Leader", "none").query("max by (pod) (divvy_controller_leader)", "{{pod}}"),
        ],
    }
}
