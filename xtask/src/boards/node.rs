//! The board of one machine, or of one node of a cluster: the holders of each GPU, the pending jobs with their reasons,
//! and whether the figures agree.

use super::panel::{Board, Row, Variable, lines, stack, stat, table};

pub fn board() -> Board {
    Board {
        uid: "divvy-node",
        title: "Divvy",
        description: "GPUs of a machine by job, user and project. Clocks and errors come from dcgm-exporter, joined by UUID.",
        selector: "instance=~\"$instance\"",
        variables: vec![
            Variable {
                name: "hostname",
                label: "Machine",
                values: "label_values(divvy_gpu_info, hostname)",
            },
            // Series of jobs and queues have no host name.
            Variable {
                name: "instance",
                label: "Instance",
                values: "label_values(divvy_gpu_info{hostname=~\"$hostname\"}, instance)",
            },
            Variable {
                name: "gpu",
                label: "GPU",
                values: "label_values(divvy_gpu_info{@}, gpu)",
            },
            Variable {
                name: "project",
                label: "Project",
                values: "label_values(divvy_job_info{@}, project)",
            },
            Variable {
                name: "user",
                label: "User",
                values: "label_values(divvy_job_info{@}, user)",
            },
        ],
        rows: vec![
            now(),
            gpus(),
            queues(),
            users_and_projects(),
            truth(),
            mig(),
            daemon(),
        ],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        panels: vec![
            stat(3, "GPUs that respond", "none").query("sum(divvy_gpu_health{@})", "GPUs"),
            stat(3, "GPUs allocated", "none")
                .query("sum(divvy_gpu_share_allocated_ratio{@})", "GPUs"),
            stat(3, "Memory in use", "percentunit").query(
                "sum(divvy_gpu_memory_used_bytes{@}) / sum(divvy_gpu_memory_total_bytes{@})",
                "used",
            ),
            stat(3, "Power", "watt").query("sum(divvy_gpu_power_watts{@})", "power"),
            stat(3, "Running jobs", "none")
                .query("sum(divvy_queue_jobs{@,state=\"running\"})", "jobs"),
            stat(3, "Pending jobs", "none").query("sum(divvy_pending_jobs{@})", "jobs"),
            stat(3, "Longest wait for GPUs", "s")
                .query("max(divvy_queue_oldest_pending_seconds{@})", "wait"),
            stat(3, "Alerts", "none")
                .about("Firing alerts of Divvy; deploy/prometheus/rules.yml has the rules.")
                .query(
                    "count(ALERTS{alertname=~\"Divvy.+\",alertstate=\"firing\",@}) or vector(0)",
                    "alerts",
                ),
        ],
    }
}

fn gpus() -> Row {
    Row {
        title: "GPUs",
        panels: vec![
            stack(12, "Memory of GPU $gpu by job", "bytes")
                .about("Memory in use by each job, and outside slices. Dashed: all limits together, and what the driver leaves for jobs.")
                .repeat("gpu")
                .query(
                    "divvy_job_memory_used_bytes{@,gpu=~\"$gpu\",project=~\"$project\",user=~\"$user\"}",
                    "#{{job}} {{user}} {{name}}",
                )
                .query(
                    "divvy_gpu_memory_unmanaged_bytes{@,gpu=~\"$gpu\"}",
                    "outside slices",
                )
                .bound(
                    "sum by (instance, gpu) (divvy_job_memory_limit_bytes{@,gpu=~\"$gpu\"})",
                    "limits",
                )
                .bound(
                    "divvy_gpu_memory_total_bytes{@,gpu=~\"$gpu\"} - divvy_gpu_memory_reserved_bytes{@,gpu=~\"$gpu\"}",
                    "usable",
                ),
            lines(12, "Time with a running kernel", "percentunit").query(
                "divvy_gpu_sm_utilization_ratio{@,gpu=~\"$gpu\"}",
                "{{hostname}} GPU {{gpu}}",
            ),
            lines(12, "Share allocated to jobs", "percentunit").query(
                "divvy_gpu_share_allocated_ratio{@,gpu=~\"$gpu\"}",
                "{{hostname}} GPU {{gpu}}",
            ),
            lines(12, "Compute time of jobs", "percentunit")
                .about("The part of each GPU's compute time in the last 10 s. Dashed: the job's request.")
                .query(
                    "divvy_job_compute_used_ratio{@,project=~\"$project\",user=~\"$user\"}",
                    "#{{job}} {{user}} {{name}}",
                )
                .bound(
                    "divvy_job_compute_request_ratio{@,project=~\"$project\",user=~\"$user\"}",
                    "#{{job}} request",
                ),
            lines(12, "Power", "watt").query(
                "divvy_gpu_power_watts{@,gpu=~\"$gpu\"}",
                "{{hostname}} GPU {{gpu}}",
            ),
            lines(8, "Temperature", "celsius").query(
                "divvy_gpu_temperature_celsius{@,gpu=~\"$gpu\"}",
                "{{hostname}} GPU {{gpu}}",
            ),
            lines(8, "SM clock (dcgm-exporter)", "rotmhz")
                .about("Empty without dcgm-exporter.")
                .query(
                    "DCGM_FI_DEV_SM_CLOCK \
                     * on (UUID) group_left (hostname) max by (UUID, hostname) (divvy_gpu_info{@,gpu=~\"$gpu\"})",
                    "{{hostname}} GPU {{gpu}}",
                ),
            lines(8, "Last XID error (dcgm-exporter)", "none")
                .about("Empty without dcgm-exporter.")
                .query(
                    "DCGM_FI_DEV_XID_ERRORS \
                     * on (UUID) group_left (hostname) max by (UUID, hostname) (divvy_gpu_info{@,gpu=~\"$gpu\"})",
                    "{{hostname}} GPU {{gpu}}",
                ),
        ],
    }
}

fn queues() -> Row {
    Row {
        title: "Queues",
        panels: vec![
            stack(12, "Pending jobs by queue", "none")
                .about("Without jobs that are held, that depend on others, or whose array runs as many as it may.")
                .query(
                    "sum by (queue) (divvy_queue_jobs{@,state=\"queued\"})",
                    "{{queue}}",
                ),
            stack(12, "Pending jobs by reason", "none")
                .about("docs/reference.md#why-a-job-waits explains the reasons.")
                .query("sum by (reason) (divvy_pending_jobs{@}) > 0", "{{reason}}"),
            stack(8, "Running jobs by queue", "none").query(
                "sum by (queue) (divvy_queue_jobs{@,state=\"running\"})",
                "{{queue}}",
            ),
            lines(8, "Wait until placement, last hour", "s")
                .query(
                    "histogram_quantile(0.5, sum by (le) (increase(divvy_queue_wait_seconds_bucket{@}[1h])))",
                    "p50",
                )
                .query(
                    "histogram_quantile(0.9, sum by (le) (increase(divvy_queue_wait_seconds_bucket{@}[1h])))",
                    "p90",
                ),
            lines(8, "Longest wait for GPUs", "s").query(
                "max by (queue) (divvy_queue_oldest_pending_seconds{@})",
                "{{queue}}",
            ),
        ],
    }
}

fn users_and_projects() -> Row {
    Row {
        title: "Users and projects",
        panels: vec![
            stack(12, "GPUs held by user", "none").query(
                "sum by (user) (rate(divvy_user_gpu_seconds_total{@,kind=\"allocated\",user=~\"$user\"}[$__rate_interval]))",
                "{{user}}",
            ),
            stack(12, "GPUs held but idle, by user", "none").query(
                "sum by (user) (rate(divvy_user_gpu_seconds_total{@,kind=\"idle\",user=~\"$user\"}[$__rate_interval]))",
                "{{user}}",
            ),
            lines(12, "GPUs of projects", "none")
                .about("Dashed: the quota.")
                .query(
                    "sum by (project) (divvy_project_allocated_gpus{@,project=~\"$project\"})",
                    "{{project}}",
                )
                .query(
                    "sum by (project) (divvy_project_fair_share_gpus{@,project=~\"$project\"})",
                    "{{project}} fair share",
                )
                .bound(
                    "sum by (project) (divvy_project_quota_gpus{@,project=~\"$project\"})",
                    "{{project}} quota",
                ),
            lines(6, "GPUs over quota", "none").query(
                "sum by (project) (divvy_project_over_quota_gpus{@,project=~\"$project\"})",
                "{{project}}",
            ),
            lines(6, "Pending jobs within quota", "none").query(
                "sum by (project) (divvy_project_entitled_jobs{@,project=~\"$project\"})",
                "{{project}}",
            ),
            table("Jobs: memory", "bytes")
                .query(
                    "sum by (job, name, user, project, queue, gpu) \
                     (divvy_job_memory_limit_bytes{@,gpu=~\"$gpu\",project=~\"$project\",user=~\"$user\"})",
                    "limit",
                )
                .query(
                    "sum by (job, name, user, project, queue, gpu) \
                     (divvy_job_memory_used_bytes{@,gpu=~\"$gpu\",project=~\"$project\",user=~\"$user\"})",
                    "used",
                )
                .query(
                    "sum by (job, name, user, project, queue, gpu) \
                     (divvy_job_memory_peak_bytes{@,gpu=~\"$gpu\",project=~\"$project\",user=~\"$user\"})",
                    "peak",
                ),
            lines(24, "Time since the last use of the GPU", "s").query(
                "divvy_job_last_kernel_age_seconds{@,project=~\"$project\",user=~\"$user\"}",
                "#{{job}} {{user}} {{name}}",
            ),
        ],
    }
}

fn truth() -> Row {
    Row {
        title: "Do the figures agree?",
        panels: vec![
            lines(8, "Driver minus ledger", "bytes")
                .about("0 if each allocation is counted once.")
                .query(
                    "divvy_ledger_mismatch_bytes{@}",
                    "#{{job}} {{user}} GPU {{gpu}}",
                ),
            lines(8, "Bypasses of the limiter", "none")
                .query(
                    "sum by (kind) (increase(divvy_bypasses_total{@}[$__rate_interval]))",
                    "{{kind}}",
                )
                .query(
                    "sum by (gpu) (divvy_gpu_bypass_processes{@})",
                    "GPU {{gpu}} now",
                ),
            lines(8, "Uncounted calls", "none").query(
                "increase(divvy_hook_uncounted_calls_total{@}[$__rate_interval])",
                "#{{job}} {{user}} {{name}}",
            ),
            lines(8, "Refused allocations", "none").query(
                "increase(divvy_job_alloc_denied_total{@}[$__rate_interval])",
                "#{{job}} {{user}} {{name}}",
            ),
            lines(8, "GPUs that respond", "none").query(
                "divvy_gpu_health{@,gpu=~\"$gpu\"}",
                "{{hostname}} GPU {{gpu}}",
            ),
            lines(8, "Memory outside slices", "bytes").query(
                "divvy_gpu_memory_unmanaged_bytes{@,gpu=~\"$gpu\"}",
                "{{hostname}} GPU {{gpu}}",
            ),
        ],
    }
}

fn mig() -> Row {
    Row {
        title: "MIG",
        panels: vec![
            stack(12, "Instances by profile and state", "none").query(
                "sum by (profile, state) (divvy_mig_instances{@,gpu=~\"$gpu\"})",
                "{{profile}} {{state}}",
            ),
            lines(6, "Changes of instances", "none").query(
                "sum by (change) (increase(divvy_mig_changes_total{@}[$__rate_interval]))",
                "{{change}}",
            ),
            lines(6, "Duration of a change", "s").query(
                "increase(divvy_mig_reconfiguration_duration_seconds_sum{@}[1h]) \
                 / increase(divvy_mig_reconfiguration_duration_seconds_count{@}[1h])",
                "mean",
            ),
        ],
    }
}

fn daemon() -> Row {
    Row {
        title: "Daemon",
        panels: vec![
            lines(6, "Write of the journal", "s").query(
                "rate(divvy_journal_fsync_duration_seconds_sum{@}[$__rate_interval]) \
                 / rate(divvy_journal_fsync_duration_seconds_count{@}[$__rate_interval])",
                "mean",
            ),
            lines(6, "Duration of a plan", "s").query(
                "rate(divvy_scheduling_duration_seconds_sum{@}[$__rate_interval]) \
                 / rate(divvy_scheduling_duration_seconds_count{@}[$__rate_interval])",
                "mean",
            ),
            lines(6, "Free space on the disk", "bytes")
                .query("divvy_disk_free_bytes{@}", "{{instance}}"),
            lines(6, "Events", "none").query(
                "sum by (kind) (increase(divvy_events_total{@}[$__rate_interval])) > 0",
                "{{kind}}",
            ),
        ],
    }
}
