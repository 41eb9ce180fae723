//! `GET /metrics`: the same figures in Prometheus's text format (version 0.0.4).
//!
//! Base units, ratios from 0 to 1, counters end in `_total`; GPU labels are spelled as dcgm-exporter spells them. Only jobs
//! that have not ended have series.

mod books;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{ComputeTime, Gpu, Job, JobState, MigState, Node, Queue, Slice};
use divvy_core::reconcile::Way;
use jiff::Timestamp;

use super::body::Failure;
use super::{Api, aside, look};
use crate::cycle::Counts;
use crate::cycle::glance::Glance;
pub use books::Books;

/// Everything that a page shows.
pub struct Page {
    pub node: Node,
    pub gpus: Vec<Gpu>,
    pub jobs: Vec<Told>,
    /// Jobs that are still to be put into words.
    pub glances: Vec<Glance>,
    pub queues: Vec<Queue>,
    /// Bypasses ever told, in the order of [`Way::ALL`].
    pub bypasses: [u64; 3],
    /// What was done to MIG instances.
    pub migs: Counts,
    pub books: Books,
    /// GPUs that do not answer, by index.
    pub lost: Vec<u32>,
    /// When this was so.
    pub now: Timestamp,
}

/// What a page shows of a job; all that there is to say of ten thousand would take ten times the room.
pub struct Told {
    id: String,
    name: String,
    user: String,
    project: String,
    queue: String,
    state: JobState,
    submitted_at: Timestamp,
    idle_s: Option<u64>,
    compute_time: Option<ComputeTime>,
    slices: Vec<Slice>,
}

impl From<Job> for Told {
    fn from(job: Job) -> Self {
        Self {
            id: job.id,
            name: job.name,
            user: job.user,
            project: job.project.unwrap_or_default(),
            queue: job.queue,
            state: job.state,
            submitted_at: job.submitted_at,
            idle_s: job.idle_s,
            compute_time: job.compute_time,
            slices: job.slices,
        }
    }
}

pub async fn metrics(State(api): State<Api>) -> Result<Response, Failure> {
    look(&api).await;
    let mut page = api.mailbox.read(|cycle| Ok(cycle.metrics())).await?;
    let home = Arc::clone(&api.home);
    let page = aside(move || {
        let glances = std::mem::take(&mut page.glances).into_iter();
        let told = glances.map(|glance| glance.seen().shown(&home).into());
        page.jobs = told.collect();
        page
    })
    .await?;
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text(&page)).into_response())
}

/// One metric with its samples.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// A line each.
    samples: String,
}

fn family(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind,
        help,
        samples: String::new(),
    }
}

impl Family {
    fn sample(&mut self, labels: Vec<(&'static str, String)>, value: impl fmt::Display) {
        self.suffixed("", labels, value);
    }

    /// `suffix` comes behind the metric's name.
    fn suffixed(
        &mut self,
        suffix: &'static str,
        labels: Vec<(&'static str, String)>,
        value: impl fmt::Display,
    ) {
        let Self { name, samples, .. } = self;
        let _ = write!(samples, "{name}{suffix}");
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(samples, "{before}{label}=\"{}\"", escaped(value));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(samples, "{after} {value}");
    }
}

/// The page as text.
pub fn text(page: &Page) -> String {
    let mut families = about_the_daemon(page);
    families.extend(about_gpus(page));
    families.extend(about_jobs(page));
    families.extend(about_instances(page));
    families.extend(books::about_books(page));
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let Family {
            name, kind, help, ..
        } = family;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        text.push_str(&family.samples);
    }
    text
}

fn about_the_daemon(page: &Page) -> Vec<Family> {
    let mut build = family("divvy_build_info", "gauge", "The daemon's version.");
    build.sample(vec![("version", page.node.version.clone())], 1);
    let mut enforcement = family(
        "divvy_enforcement_info",
        "gauge",
        "What holds memory limits, and what is done about a bypass.",
    );
    if let Some(gpu) = page.gpus.first() {
        let labels = vec![
            ("backend", gpu.enforcement.clone()),
            ("on_bypass", page.node.on_bypass.clone()),
        ];
        enforcement.sample(labels, 1);
    }
    let mut bypasses = family(
        "divvy_bypasses_total",
        "counter",
        "Processes of jobs that held GPU memory past the limiter.",
    );
    for (way, count) in Way::ALL.iter().zip(page.bypasses) {
        bypasses.sample(vec![("way", way.name().to_owned())], count);
    }
    let mut queues = family("divvy_queue_jobs", "gauge", "Jobs of a queue.");
    for queue in &page.queues {
        for (state, count) in [("queued", queue.waiting), ("running", queue.running)] {
            let labels = vec![("queue", queue.name.clone()), ("state", state.to_owned())];
            queues.sample(labels, count);
        }
    }
    vec![build, enforcement, bypasses, queues]
}

/// A metric of a GPU, and how it is read.
type OfGpu = (&'static str, &'static str, fn(&Gpu) -> Option<String>);

/// In thousandths or percent: exact, and without a float.
fn ratio(part: u64, digits: usize) -> String {
    let whole = 10_u64.pow(u32::try_from(digits).unwrap_or_default());
    format!("{}.{:0digits$}", part / whole, part % whole)
}

const OF_GPUS: &[OfGpu] = &[
    (
        "divvy_gpu_memory_total_bytes",
        "Memory of the GPU.",
        |gpu| Some(gpu.memory_total_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_reserved_bytes",
        "What the driver keeps for itself.",
        |gpu| {
            let reserved = gpu
                .memory_total_bytes
                .saturating_sub(gpu.memory_usable_bytes);
            Some(reserved.to_string())
        },
    ),
    (
        "divvy_gpu_memory_used_bytes",
        "In use, by the driver's account.",
        |gpu| Some(gpu.memory_used_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_allocated_bytes",
        "Promised to slices.",
        |gpu| Some(gpu.memory_allocated_bytes.to_string()),
    ),
    (
        "divvy_gpu_memory_unmanaged_bytes",
        "Held by no slice, or by a slice beyond its limit.",
        |gpu| Some(gpu.memory_unmanaged_bytes.to_string()),
    ),
    (
        "divvy_gpu_share_allocated_ratio",
        "Part of the GPU that is promised to slices.",
        |gpu| Some(ratio(u64::from(gpu.share_allocated), 3)),
    ),
    (
        "divvy_gpu_sm_utilization_ratio",
        "Part of the time in which a kernel was running, by the driver's account.",
        |gpu| Some(ratio(u64::from(gpu.utilization_percent?), 2)),
    ),
    (
        "divvy_gpu_bypass_processes",
        "Processes of jobs that hold memory here past the limiter now.",
        |gpu| Some(gpu.bypass_pids.len().to_string()),
    ),
];

fn about_gpus(page: &Page) -> Vec<Family> {
    let labels = |gpu: &Gpu| {
        vec![
            ("gpu", gpu.index.to_string()),
            ("UUID", gpu.uuid.clone()),
            ("hostname", page.node.hostname.clone()),
        ]
    };
    let mut info = family("divvy_gpu_info", "gauge", "A GPU that the daemon serves.");
    for gpu in &page.gpus {
        let mut labels = labels(gpu);
        labels.push(("modelName", gpu.model.clone()));
        labels.push(("mode", gpu.mode.clone()));
        info.sample(labels, 1);
    }
    let read = |(name, help, read): &OfGpu| {
        let mut family = family(name, "gauge", help);
        for gpu in &page.gpus {
            if let Some(value) = read(gpu) {
                family.sample(labels(gpu), value);
            }
        }
        family
    };
    let mut health = family("divvy_gpu_health", "gauge", "Whether the GPU answers.");
    for gpu in &page.gpus {
        health.sample(labels(gpu), u8::from(!page.lost.contains(&gpu.index)));
    }
    [info, health]
        .into_iter()
        .chain(OF_GPUS.iter().map(read))
        .collect()
}

/// A metric of a slice on one GPU, and how it is read.
type OfSlice = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Slice) -> Option<String>,
);

const OF_SLICES: &[OfSlice] = &[
    (
        "divvy_job_memory_limit_bytes",
        "gauge",
        "The slice's limit.",
        |slice| Some(slice.memory_limit_bytes.to_string()),
    ),
    (
        "divvy_job_memory_used_bytes",
        "gauge",
        "What counts against the limit.",
        |slice| Some(slice.memory_used_bytes.to_string()),
    ),
    (
        "divvy_job_memory_peak_bytes",
        "gauge",
        "Most that was charged at one time.",
        |slice| Some(slice.memory_peak_bytes.to_string()),
    ),
    (
        "divvy_job_memory_overhead_bytes",
        "gauge",
        "What the limit counts besides the slice's own account, because the driver says so.",
        |slice| Some(slice.memory_unseen_bytes.to_string()),
    ),
    (
        "divvy_job_alloc_denied_total",
        "counter",
        "Allocations that the limit refused.",
        |slice| Some(slice.denied.to_string()),
    ),
    (
        "divvy_ledger_mismatch_bytes",
        "gauge",
        "The driver's figure less the slice's own account; absent where they cannot be compared.",
        |slice| Some(slice.memory_mismatch_bytes?.to_string()),
    ),
    (
        "divvy_ledger_mismatch_max_bytes",
        "gauge",
        "The largest mismatch so far, in either direction.",
        |slice| Some(slice.memory_mismatch_max_bytes.to_string()),
    ),
];

fn about_jobs(page: &Page) -> Vec<Family> {
    let holding = || {
        let jobs = page.jobs.iter();
        jobs.flat_map(|job| job.slices.iter().map(move |slice| (job, slice)))
    };
    let read = |(name, kind, help, read): &OfSlice| {
        let mut family = family(name, kind, help);
        for (job, slice) in holding() {
            let mut labels = books::labels(job);
            labels.push(("gpu", slice.gpu_index.to_string()));
            labels.push(("UUID", slice.gpu_uuid.clone()));
            if let Some(value) = read(slice) {
                family.sample(labels, value);
            }
        }
        family
    };
    OF_SLICES.iter().map(read).collect()
}

/// The words for what an instance is there for, as JSON has them.
fn word(state: MigState) -> String {
    let word = serde_json::to_value(state).unwrap_or_default();
    word.as_str().unwrap_or_default().to_owned()
}

fn about_instances(page: &Page) -> Vec<Family> {
    let mut instances = family(
        "divvy_mig_instances",
        "gauge",
        "MIG instances of a GPU, by profile and by what they are there for.",
    );
    for gpu in &page.gpus {
        let mut counts = BTreeMap::<(String, String), u64>::new();
        for instance in gpu.mig.iter().flat_map(|mig| &mig.instances) {
            let key = (instance.profile.clone(), word(instance.state));
            *counts.entry(key).or_default() += 1;
        }
        for ((profile, state), count) in counts {
            let labels = vec![
                ("gpu", gpu.index.to_string()),
                ("UUID", gpu.uuid.clone()),
                ("profile", profile),
                ("state", state),
            ];
            instances.sample(labels, count);
        }
    }
    let mut changes = family(
        "divvy_mig_changes_total",
        "counter",
        "What was done to MIG instances.",
    );
    let mut seconds = family(
        "divvy_mig_change_seconds_total",
        "counter",
        "Time that it took altogether.",
    );
    // A daemon without such GPUs says nothing of them.
    if page.gpus.iter().any(|gpu| gpu.mig.is_some()) {
        let counts = page.migs;
        for (change, done) in [
            ("created", counts.created),
            ("reused", counts.reused),
            ("destroyed", counts.destroyed),
            ("reclaimed", counts.reclaimed),
            ("quarantined", counts.quarantined),
        ] {
            let labels = || vec![("change", change.to_owned())];
            changes.sample(labels(), done.times);
            let took = u64::try_from(done.took.as_millis()).unwrap_or(u64::MAX);
            seconds.sample(labels(), ratio(took, 3));
        }
    }
    vec![instances, changes, seconds]
}

/// A label's value: backslashes, quotes and line ends as the format has them.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn page() -> Page {
        let gpu = serde_json::json!({
            "uuid": "GPU-1", "index": 0, "model": "A\"100", "mode": "shared", "memory_total_bytes": 100,
            "memory_usable_bytes": 90, "memory_allocated_bytes": 50, "memory_used_bytes": 40, "memory_unmanaged_bytes": 0,
            "share_allocated": 250, "utilization_percent": 7, "context_overhead_bytes": 1, "slices": [],
            "unmanaged_pids": [], "enforcement": "interposer", "bypass_pids": [7],
            "mig": {
                "memory_slices": 8, "compute_slices": 7, "profiles": [],
                "instances": [{
                    "gpu_uuid": "GPU-1", "gpu_index": 0, "profile": "1g.5gb", "start": 3, "memory_slices": 1,
                    "memory_bytes": 5, "state": "idle", "job": null, "uuid": null,
                }],
            },
        });
        let node = serde_json::json!({
            "hostname": "box", "version": "1", "pid": 1, "driver_version": "1", "simulated": null, "order": "strict",
            "backfill": false, "home": "/", "on_bypass": "kill",
        });
        let job = serde_json::json!({
            "id": "3", "name": "a\\b", "user": "u", "project": null, "queue": "q", "state": "running", "end_reason": null,
            "exit_code": null, "request": { "kind": "share", "thousandths": 250 }, "compute": "fair", "reason": null,
            "place": null, "command": ["x"], "cwd": "/", "runner": "client", "pid": 1,
            "submitted_at": "2026-01-02T03:04:05Z", "started_at": null, "ended_at": null, "directory": "/",
            "idle_s": 4, "compute_time": { "share_asked": 250, "share_used": 300, "throttled_ms": 1234 },
            "slice_directory": null,
            "slices": [{
                "label": "gpu0.25a", "gpu_uuid": "GPU-1", "gpu_index": 0, "memory_limit_bytes": 50, "share": 250,
                "memory_used_bytes": 20, "memory_peak_bytes": 30, "processes": 1, "denied": 2, "last_denied_bytes": null,
                "enforcement": "interposer", "memory_mismatch_bytes": -4, "memory_mismatch_max_bytes": 9,
                "memory_unseen_bytes": 1,
            }],
        });
        let queue = serde_json::json!({
            "name": "q", "priority": 1, "amount": null, "waiting": 2, "running": 1, "head": null, "reason": null,
        });
        let mut migs = Counts::default();
        (migs.created.times, migs.created.took) = (2, Duration::from_millis(1234));
        Page {
            node: serde_json::from_value(node).unwrap(),
            gpus: vec![serde_json::from_value(gpu).unwrap()],
            jobs: vec![serde_json::from_value::<Job>(job).unwrap().into()],
            glances: Vec::new(),
            queues: vec![serde_json::from_value(queue).unwrap()],
            bypasses: [4, 0, 1],
            migs,
            books: books(),
            lost: Vec::new(),
            now: "2026-01-02T03:05:05Z".parse().unwrap(),
        }
    }

    fn books() -> Books {
        let project = serde_json::json!({
            "name": "vision", "quota": 2500, "quota_memory_bytes": null, "weight": null, "limit": 4000,
            "limit_memory_bytes": null, "priority": 0, "min_runtime_s": 0, "members": [], "used": 3000,
            "used_memory_bytes": 5, "over": 500, "fair_share": 2750, "running": 2, "waiting": 1,
        });
        let mut books = Books {
            projects: vec![serde_json::from_value(project).unwrap()],
            held: BTreeMap::from([("3".to_owned(), 1_500_000_000)]),
            pending: BTreeMap::from([("short", 2)]),
            ..Books::default()
        };
        let counted = &mut books.counted;
        counted.told.insert("suspended".into(), 2);
        counted.preempted = 3;
        counted.plans.add(Duration::from_micros(1500));
        counted.commits.add(Duration::from_millis(2));
        counted
            .waits
            .entry("q".into())
            .or_default()
            .add(Duration::from_secs(7));
        let spent = crate::counted::Spent {
            allocated: 4_000_000_000,
            used: 1,
            idle: 2,
            loaned: 3,
        };
        counted.projects.insert("vision".into(), spent);
        books
    }

    #[test]
    fn figures_are_in_base_units_and_labels_escaped() {
        let text = text(&page());
        for line in [
            r#"divvy_enforcement_info{backend="interposer",on_bypass="kill"} 1"#,
            r#"divvy_bypasses_total{way="unlimited"} 4"#,
            r#"divvy_gpu_info{gpu="0",UUID="GPU-1",hostname="box",modelName="A\"100",mode="shared"} 1"#,
            r#"divvy_gpu_memory_reserved_bytes{gpu="0",UUID="GPU-1",hostname="box"} 10"#,
            r#"divvy_gpu_share_allocated_ratio{gpu="0",UUID="GPU-1",hostname="box"} 0.250"#,
            r#"divvy_gpu_sm_utilization_ratio{gpu="0",UUID="GPU-1",hostname="box"} 0.07"#,
            r#"divvy_gpu_bypass_processes{gpu="0",UUID="GPU-1",hostname="box"} 1"#,
            r#"divvy_gpu_health{gpu="0",UUID="GPU-1",hostname="box"} 1"#,
            r#"divvy_project_quota_gpus{project="vision"} 2.500"#,
            r#"divvy_project_over_quota_gpus{project="vision"} 0.500"#,
            r#"divvy_project_fair_share_gpus{project="vision"} 2.750"#,
            r#"divvy_project_jobs{project="vision",state="queued"} 1"#,
            r#"divvy_project_gpu_seconds_total{project="vision",kind="allocated"} 4.000000000"#,
            r#"divvy_queue_wait_seconds_bucket{queue="q",le="5"} 0"#,
            r#"divvy_queue_wait_seconds_bucket{queue="q",le="15"} 1"#,
            r#"divvy_queue_wait_seconds_bucket{queue="q",le="+Inf"} 1"#,
            r#"divvy_queue_wait_seconds_sum{queue="q"} 7.000000000"#,
            r#"divvy_queue_oldest_pending_seconds{queue="q"} 0"#,
            r#"divvy_pending_jobs{reason="short"} 2"#,
            r#"divvy_job_gpu_seconds_total{job="3",name="a\\b",user="u",project="",queue="q"} 1.500000000"#,
            r#"divvy_preemptions_total 3"#,
            r#"divvy_suspends_total 2"#,
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

    /// The names that were agreed on, and of those that are not told, why.
    const AGREED: &[&str] = &[
        "divvy_gpu_info",
        "divvy_gpu_memory_total_bytes",
        "divvy_gpu_memory_reserved_bytes",
        "divvy_gpu_memory_used_bytes",
        "divvy_gpu_memory_allocated_bytes",
        "divvy_gpu_memory_unmanaged_bytes",
        "divvy_gpu_sm_utilization_ratio",
        "divvy_gpu_share_allocated_ratio",
        "divvy_gpu_health",
        "divvy_job_memory_limit_bytes",
        "divvy_job_memory_used_bytes",
        "divvy_job_memory_peak_bytes",
        "divvy_job_memory_overhead_bytes",
        "divvy_job_compute_request_ratio",
        "divvy_job_compute_used_ratio",
        "divvy_job_gpu_seconds_total",
        "divvy_job_throttled_seconds_total",
        "divvy_job_alloc_denied_total",
        "divvy_job_last_kernel_age_seconds",
        "divvy_job_state",
        "divvy_queue_jobs",
        "divvy_queue_wait_seconds",
        "divvy_queue_oldest_pending_seconds",
        "divvy_pending_jobs",
        "divvy_project_quota_gpus",
        "divvy_project_allocated_gpus",
        "divvy_project_over_quota_gpus",
        "divvy_project_gpu_seconds_total",
        "divvy_ledger_mismatch_bytes",
        "divvy_enforcement_info",
        "divvy_suspends_total",
        "divvy_resizes_total",
        "divvy_preemptions_total",
        "divvy_scheduling_duration_seconds",
        "divvy_journal_fsync_duration_seconds",
        "divvy_build_info",
    ];

    #[test]
    fn every_name_that_was_agreed_on_is_told_with_the_labels_of_its_kind() {
        let text = text(&page());
        let has = |line: &str, label: &str| line.contains(&format!("{label}=\""));
        for name in AGREED {
            let mut lines = text.lines().filter(|line| {
                let own = line.split(['{', ' ']).next().unwrap_or_default();
                own.strip_prefix(name)
                    .is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
            });
            let line = lines.next().unwrap_or_else(|| panic!("{name}\n{text}"));
            let labels: &[&str] = match name.split('_').nth(1) {
                Some("gpu") => &["gpu", "UUID", "hostname"],
                Some("job") => &["job", "name", "user", "project", "queue"],
                Some("queue") => &["queue"],
                Some("project") => &["project"],
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
        let reference = include_str!("../../../../docs/reference.md");
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
                reference.contains(&format!("`{name}`")),
                "docs/reference.md does not know {name}"
            );
        }
        assert_eq!(ratio(1000, 3), "1.000");
    }
}
