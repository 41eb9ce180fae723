use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::Job;

use super::*;
use crate::controller::MigCounts;
use crate::controller::query::metrics::{DaemonStats, GpuFacts, Omitted};
use crate::gpu::Power;
use crate::model::usage::{GpuEnergySums, GpuTime};

const SPENT: GpuTime = GpuTime {
    allocated: 4_000_000,
    used: 1,
    idle: 2,
    loaned: 3,
    millijoules: 10_345,
};

pub(super) fn page() -> Page {
    page_of(vec![job(3)])
}

pub(super) fn page_of(jobs: Vec<JobRow>) -> Page {
    let gpu = serde_json::json!({
        "uuid": "GPU-1", "index": 0, "model": "A\"100", "mode": "shared", "memory_total_bytes": 100,
        "memory_usable_bytes": 90, "memory_allocated_bytes": 50, "memory_used_bytes": 40, "memory_unmanaged_bytes": 0,
        "share_allocated": 250, "utilization_percent": 7, "temperature_celsius": 41, "context_overhead_bytes": 1, "slices": [],
        "unmanaged_pids": [], "enforcement": "interposer", "bypass_pids": [7],
        "mig": {
            "memory_slices": 8, "compute_slices": 7, "profiles": [],
            "instances": [{
                "gpu_uuid": "GPU-1", "gpu_index": 0, "profile": "1g.5gb", "start": 3, "memory_slices": 1,
                "memory_bytes": 5, "state": "idle", "job": null, "uuid": null,
            }, {
                "gpu_uuid": "GPU-1", "gpu_index": 0, "profile": "2g.10gb", "start": 4, "memory_slices": 2,
                "memory_bytes": 10, "state": "in_use", "job": "5", "uuid": "MIG-1",
            }],
        },
    });
    let node = serde_json::json!({
        "hostname": "box", "version": "1", "pid": 1, "driver_version": "1", "simulated": null, "order": "strict",
        "backfill": false, "home": "/", "on_bypass": "kill",
    });
    let queue = serde_json::json!({
        "name": "q", "priority": 1, "amount": null, "waiting": 2, "running": 1, "head": null, "reason": null,
    });
    let mut migs = MigCounts::default();
    (migs.created.count, migs.created.total) = (2, Duration::from_millis(1234));
    Page {
        node: serde_json::from_value(node).unwrap(),
        gpus: vec![serde_json::from_value(gpu).unwrap()],
        jobs,
        glances: Vec::new(),
        queues: vec![serde_json::from_value(queue).unwrap()],
        bypasses: [4, 0, 1, 2, 0],
        migs,
        gpu_facts: GpuFacts {
            buses: BTreeMap::from([(0, "00000000:07:00.0".to_owned())]),
            instances: BTreeMap::from([("MIG-1".to_owned(), 9)]),
            power: BTreeMap::from([(
                0,
                Power {
                    milliwatts: Some(250_040),
                    millijoules: Some(7),
                    has_no_counter: false,
                },
            )]),
            faulty: Vec::new(),
        },
        daemon_stats: books(),
        gpu_time: GpuTimeTotals {
            users: BTreeMap::from([("u".to_owned(), SPENT)]),
            projects: BTreeMap::from([("vision".to_owned(), SPENT)]),
            gpus: BTreeMap::from([(
                "GPU-1".to_owned(),
                GpuEnergySums {
                    counted: 12_345,
                    idle: 2_000,
                },
            )]),
        },
        omitted: Omitted::default(),
        now: "2026-01-02T03:05:05Z".parse().unwrap(),
    }
}

/// A job with a slice.
pub(super) fn job(id: u32) -> JobRow {
    let mut job = serde_json::json!({
        "id": id.to_string(), "name": "a\\b", "user": "u", "project": null, "queue": "q", "state": "running", "end_reason": null,
        "exit_code": null, "request": { "kind": "share", "thousandths": 250 }, "compute": "strict", "reason": null,
        "place": null, "command": ["x"], "cwd": "/", "runner": "client", "pid": 1,
        "submitted_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null, "directory": "/",
        "idle_s": 4, "compute_time": { "share_asked": 250, "share_used": 300, "throttled_ms": 1234 },
        "slice_directory": null, "uncounted_calls": 6,
        "slices": [{
            "label": "gpu0.25a", "gpu_uuid": "GPU-1", "gpu_index": 0, "memory_limit_bytes": 50, "share": 250,
            "memory_used_bytes": 20, "memory_peak_bytes": 30, "processes": 1, "denials": 2, "last_denied_bytes": null,
            "enforcement": "interposer", "memory_mismatch_bytes": -4, "memory_mismatch_max_bytes": 9,
            "memory_unaccounted_bytes": 1, "memory_target_bytes": 45,
        }],
    });
    job["claim"] = serde_json::json!({
        "uid": "u-1", "namespace": "team", "name": "train", "pods": ["p"], "cdi_device": "d",
    });
    serde_json::from_value::<Job>(job).unwrap().into()
}

fn books() -> DaemonStats {
    let project = serde_json::json!({
        "name": "vision", "quota": 2500, "quota_memory_bytes": null, "weight": null, "limit": 4000,
        "limit_memory_bytes": null, "priority": 0, "min_runtime_s": 0, "members": [], "used": 3000,
        "used_memory_bytes": 5, "over_quota": 500, "fair_share": 2750, "running": 2, "waiting": 1,
    });
    let mut books = DaemonStats {
        projects: vec![serde_json::from_value(project).unwrap()],
        entitled: BTreeMap::from([("vision".to_owned(), 1)]),
        held: BTreeMap::from([("3".to_owned(), 1_500_000_000)]),
        energy: BTreeMap::from([("3".to_owned(), 345)]),
        pending: BTreeMap::from([("insufficient", 2)]),
        ..DaemonStats::default()
    };
    let counted = &mut books.counted;
    counted.events.insert("suspended".into(), 2);
    counted.events.insert("mig_create_failed".into(), 4);
    counted.events.insert("mig_evicted".into(), 5);
    (counted.preempted, counted.preempted_done) = (3, 1);
    counted.suspends.add(Duration::from_millis(3));
    counted.failed_suspends = 1;
    counted.events.insert("parked".into(), 6);
    counted.wakes.add(Duration::from_millis(4));
    books.parked = (2, 7);
    let counted = &mut books.counted;
    counted.resizes.insert(("more", "refused"), 8);
    counted.adopted = 12;
    counted.plans.add(Duration::from_micros(1500));
    counted.commits.add(Duration::from_millis(2));
    counted
        .waits
        .entry("q".into())
        .or_default()
        .add(Duration::from_secs(7));
    books
}

/// A line with the labels of the GPU.
fn of_gpu(line: &str) -> String {
    let labels = r#"gpu="0",UUID="GPU-1",device="nvidia0",modelName="A\"100",pci_bus_id="00000000:07:00.0",hostname="box""#;
    line.replace("GPU,", &format!("{labels},"))
        .replace("{GPU}", &format!("{{{labels}}}"))
}

#[test]
fn figures_are_in_base_units_and_labels_escaped() {
    let text = text(&page());
    for line in [
        r#"divvy_enforcement_info{backend="interposer",level="cooperative",on_bypass="kill"} 1"#,
        r#"divvy_bypasses_total{kind="unlimited"} 4"#,
        r#"divvy_bypasses_total{kind="overdrawn"} 2"#,
        &of_gpu(r#"divvy_gpu_info{GPU,mode="shared"} 1"#),
        &of_gpu("divvy_gpu_memory_reserved_bytes{GPU} 10"),
        &of_gpu("divvy_gpu_share_allocated_ratio{GPU} 0.250"),
        &of_gpu("divvy_gpu_sm_utilization_ratio{GPU} 0.07"),
        &of_gpu("divvy_gpu_bypass_processes{GPU} 1"),
        &of_gpu("divvy_gpu_health{GPU} 1"),
        &of_gpu("divvy_gpu_temperature_celsius{GPU} 41"),
        &of_gpu("divvy_gpu_power_watts{GPU} 250.040"),
        &of_gpu("divvy_gpu_energy_joules_total{GPU} 0.007"),
        &of_gpu("divvy_gpu_energy_counted_joules_total{GPU} 12.345"),
        &of_gpu("divvy_gpu_energy_idle_joules_total{GPU} 2.000"),
        r#"divvy_user_energy_joules_total{user="u"} 10.345"#,
        r#"divvy_project_energy_joules_total{project="vision"} 10.345"#,
        r#"divvy_job_energy_joules_total{job="3",name="a\\b",user="u",project="",queue="q"} 0.345"#,
        &of_gpu(
            r#"divvy_mig_instance_info{GPU,GPU_I_PROFILE="2g.10gb",GPU_I_ID="9",start="4",mig_uuid="MIG-1",job="5"} 1"#,
        ),
        r#"divvy_mig_reconfigurations_total{result="done"} 2"#,
        r#"divvy_mig_reconfigurations_total{result="refused"} 4"#,
        r#"divvy_mig_reconfiguration_duration_seconds_sum 1.234000000"#,
        r#"divvy_mig_reconfiguration_duration_seconds_count 2"#,
        r#"divvy_project_quota_gpus{project="vision"} 2.500"#,
        r#"divvy_project_over_quota_gpus{project="vision"} 0.500"#,
        r#"divvy_project_fair_share_gpus{project="vision"} 2.750"#,
        r#"divvy_project_jobs{project="vision",state="queued"} 1"#,
        r#"divvy_project_entitled_jobs{project="vision"} 1"#,
        r#"divvy_project_gpu_seconds_total{project="vision",kind="allocated"} 4.000000"#,
        r#"divvy_user_gpu_seconds_total{user="u",kind="loaned"} 0.000003"#,
        r#"divvy_queue_wait_seconds_bucket{queue="q",le="5"} 0"#,
        r#"divvy_queue_wait_seconds_bucket{queue="q",le="15"} 1"#,
        r#"divvy_queue_wait_seconds_bucket{queue="q",le="+Inf"} 1"#,
        r#"divvy_queue_wait_seconds_sum{queue="q"} 7.000000000"#,
        r#"divvy_queue_oldest_pending_seconds{queue="q"} 0"#,
        r#"divvy_pending_jobs{reason="insufficient"} 2"#,
        r#"divvy_job_gpu_seconds_total{job="3",name="a\\b",user="u",project="",queue="q"} 1.500000000"#,
        r#"divvy_preemptions_total 3"#,
        r#"divvy_suspends_total{result="done"} 2"#,
        r#"divvy_suspends_total{result="refused"} 1"#,
        r#"divvy_suspend_duration_seconds_sum 0.003000000"#,
        r#"divvy_parked_jobs 2"#,
        r#"divvy_parked_bytes 7"#,
        r#"divvy_park_total{result="done"} 6"#,
        r#"divvy_wake_seconds_sum 0.004000000"#,
        r#"divvy_resizes_total{direction="more",result="done"} 0"#,
        r#"divvy_resizes_total{direction="more",result="refused"} 8"#,
        r#"divvy_reclaims_total{step="idle_instance",result="asked"} 5"#,
        r#"divvy_reclaims_total{step="preemption",result="done"} 1"#,
        r#"divvy_recovery_actions_total{action="job_adopted"} 12"#,
        r#"divvy_job_info{job="3",name="a\\b",user="u",project="",queue="q",runner="client",compute="strict",namespace="team",claim="train"} 1"#,
        r#"divvy_job_compute_limit_ratio{job="3",name="a\\b",user="u",project="",queue="q"} 0.250"#,
        r#"divvy_job_memory_request_bytes{job="3",name="a\\b",user="u",project="",queue="q",gpu="0",UUID="GPU-1"} 45"#,
        r#"divvy_hook_uncounted_calls_total{job="3",name="a\\b",user="u",project="",queue="q"} 6"#,
        r#"divvy_scheduling_duration_seconds_sum 0.001500000"#,
        r#"divvy_mig_instances{gpu="0",UUID="GPU-1",profile="1g.5gb",state="idle"} 1"#,
        r#"divvy_mig_changes_total{change="created"} 2"#,
        r#"divvy_mig_change_seconds_total{change="created"} 1.234"#,
        r#"divvy_job_memory_overhead_bytes{job="3",name="a\\b",user="u",project="",queue="q",gpu="0",UUID="GPU-1"} 1"#,
        r#"divvy_ledger_mismatch_bytes{job="3",name="a\\b",user="u",project="",queue="q",gpu="0",UUID="GPU-1"} -4"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// The names that were agreed on: each is told, or has its reason in the reference.
const AGREED: &[&str] = &[
    "divvy_gpu_info",
    "divvy_gpu_memory_total_bytes",
    "divvy_gpu_memory_reserved_bytes",
    "divvy_gpu_memory_used_bytes",
    "divvy_gpu_memory_allocated_bytes",
    "divvy_gpu_memory_loaned_bytes",
    "divvy_gpu_memory_unmanaged_bytes",
    "divvy_gpu_memory_unlisted_bytes",
    "divvy_gpu_sm_utilization_ratio",
    "divvy_gpu_share_allocated_ratio",
    "divvy_gpu_fragmentation_bytes",
    "divvy_gpu_power_watts",
    "divvy_gpu_energy_joules_total",
    "divvy_gpu_energy_counted_joules_total",
    "divvy_gpu_energy_idle_joules_total",
    "divvy_job_energy_joules_total",
    "divvy_project_energy_joules_total",
    "divvy_gpu_temperature_celsius",
    "divvy_gpu_health",
    "divvy_gpu_xid_errors_total",
    "divvy_mig_instance_info",
    "divvy_mig_reconfigurations_total",
    "divvy_mig_reconfiguration_duration_seconds",
    "divvy_job_memory_request_bytes",
    "divvy_job_memory_limit_bytes",
    "divvy_job_memory_used_bytes",
    "divvy_job_memory_peak_bytes",
    "divvy_job_memory_overhead_bytes",
    "divvy_job_compute_request_ratio",
    "divvy_job_compute_limit_ratio",
    "divvy_job_compute_used_ratio",
    "divvy_job_gpu_seconds_total",
    "divvy_job_throttled_seconds_total",
    "divvy_job_alloc_denied_total",
    "divvy_job_last_kernel_age_seconds",
    "divvy_job_state",
    "divvy_job_info",
    "divvy_queue_jobs",
    "divvy_queue_wait_seconds",
    "divvy_queue_oldest_pending_seconds",
    "divvy_pending_jobs",
    "divvy_project_quota_gpus",
    "divvy_project_allocated_gpus",
    "divvy_project_over_quota_gpus",
    "divvy_project_gpu_seconds_total",
    "divvy_project_cost_total",
    "divvy_ledger_mismatch_bytes",
    "divvy_hook_uncounted_calls_total",
    "divvy_enforcement_info",
    "divvy_hook_overhead_seconds",
    "divvy_reclaims_total",
    "divvy_suspends_total",
    "divvy_parked_jobs",
    "divvy_parked_bytes",
    "divvy_park_total",
    "divvy_wake_seconds",
    "divvy_suspend_duration_seconds",
    "divvy_resizes_total",
    "divvy_preemptions_total",
    "divvy_scheduling_duration_seconds",
    "divvy_recovery_actions_total",
    "divvy_journal_fsync_duration_seconds",
    "divvy_build_info",
    "divvy_config_last_reload_success_timestamp_seconds",
];

const REFERENCE: &str = include_str!("../../../../../docs/reference.md");

/// Names that the reference says are not told, each with its reason.
fn untold() -> BTreeMap<&'static str, &'static str> {
    let (_, after) = REFERENCE.split_once("| not exported | reason |\n").unwrap();
    let rows = after.lines().skip(1);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split(" | ");
        let name = cells.next().unwrap().trim().trim_matches('`');
        (name, cells.next().unwrap().trim())
    })
    .collect()
}

/// The first line of a metric, if the page has any.
fn first<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find(|line| {
        let own = line.split(['{', ' ']).next().unwrap_or_default();
        own.strip_prefix(name)
            .is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
    })
}

#[test]
fn every_name_that_was_agreed_on_is_told_or_has_a_reason_why_not() {
    let text = text(&page());
    let untold = untold();
    for name in AGREED {
        let reason = untold.get(name).copied();
        match first(&text, name) {
            Some(line) => assert_eq!(reason, None, "{line}"),
            None => assert!(reason.is_some_and(|reason| reason.len() > 20), "{name}"),
        }
    }
    for name in untold.keys() {
        assert!(AGREED.contains(name), "{name} is missed by nobody");
    }
}

#[test]
fn every_metric_has_the_labels_of_its_kind() {
    let text = text(&page());
    let has = |line: &str, label: &str| line.contains(&format!("{label}=\""));
    let gpu = [
        "gpu",
        "UUID",
        "device",
        "modelName",
        "pci_bus_id",
        "hostname",
    ];
    for name in AGREED {
        let Some(line) = first(&text, name) else {
            continue;
        };
        let labels: &[&str] = match (name.split('_').nth(1), *name) {
            (Some("gpu"), _) => &gpu,
            (_, "divvy_mig_instance_info") => &["UUID", "GPU_I_PROFILE", "GPU_I_ID"],
            (Some("job"), _) => &["job", "name", "user", "project", "queue"],
            (Some("queue"), _) => &["queue"],
            (Some("project"), _) => &["project"],
            (_, "divvy_enforcement_info") => &["backend", "level"],
            (_, "divvy_resizes_total") => &["direction", "result"],
            (_, "divvy_reclaims_total") => &["step", "result"],
            (
                _,
                "divvy_suspends_total" | "divvy_park_total" | "divvy_mig_reconfigurations_total",
            ) => &["result"],
            (_, "divvy_recovery_actions_total") => &["action"],
            _ => &[],
        };
        for label in labels {
            assert!(has(line, label), "{line} has no {label}");
        }
    }
    let series = text.lines().filter(|line| !line.starts_with('#'));
    for line in series {
        assert!(line.starts_with("divvy_"), "{line}");
        let value = line.rsplit(' ').next().unwrap_or_default();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let is_ratio = line
            .split('{')
            .next()
            .unwrap_or_default()
            .ends_with("_ratio");
        assert!(
            !is_ratio || value.parse::<f64>().is_ok_and(|ratio| ratio <= 1.0),
            "{line}"
        );
    }
}

#[test]
fn every_metric_is_described_once_and_counters_end_in_total() {
    let text = text(&page());
    let types: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut names: Vec<&str> = types.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), types.len());
    for (name, kind) in types {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        assert!(text.contains(&format!("# HELP {name} ")));
        assert!(
            REFERENCE.contains(&format!("`{name}`")),
            "docs/reference.md does not know {name}"
        );
    }
    assert_eq!(ratio(1000, 3), "1.000");
}
