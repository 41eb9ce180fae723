//! Metrics of jobs that have left their queue and have not ended: their allocation and their usage.

use divvy_api::v1::{JobClaim, LatencyTime, Slice};
use divvy_core::ComputeMode;

use super::daemon_stats::seconds;
use super::{Family, JobRow, Page, family, ratio, to_json_word};

/// Of a job as a whole, on any GPUs.
fn labels(job: &JobRow) -> Vec<(&'static str, String)> {
    let labels = &job.labels;
    vec![
        ("job", labels.id.clone()),
        ("name", labels.name.clone()),
        ("user", labels.user.clone()),
        ("project", labels.project.clone()),
        ("queue", labels.queue.clone()),
    ]
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
        "divvy_job_memory_request_bytes",
        "gauge",
        "Requested memory limit of the job, in bytes: a smaller one while the job shrinks, otherwise its limit.",
        |slice| {
            let request = slice.memory_target_bytes;
            Some(request.unwrap_or(slice.memory_limit_bytes).to_string())
        },
    ),
    (
        "divvy_job_memory_limit_bytes",
        "gauge",
        "Memory limit of the slice, in bytes.",
        |slice| Some(slice.memory_limit_bytes.to_string()),
    ),
    (
        "divvy_job_memory_used_bytes",
        "gauge",
        "GPU memory that counts towards the limit, in bytes.",
        |slice| Some(slice.memory_used_bytes.to_string()),
    ),
    (
        "divvy_job_memory_peak_bytes",
        "gauge",
        "Highest GPU memory use of the slice so far, in bytes.",
        |slice| Some(slice.memory_peak_bytes.to_string()),
    ),
    (
        "divvy_job_memory_overhead_bytes",
        "gauge",
        "GPU memory that the driver reports beyond the slice's ledger and that counts towards the limit, in bytes.",
        |slice| Some(slice.memory_unaccounted_bytes.to_string()),
    ),
    (
        "divvy_job_alloc_denied_total",
        "counter",
        "Allocations that the limiter refused.",
        |slice| Some(slice.denials.to_string()),
    ),
    (
        "divvy_ledger_mismatch_bytes",
        "gauge",
        "The driver's figure minus the slice's ledger, in bytes; absent if the two cannot be compared.",
        |slice| Some(slice.memory_mismatch_bytes?.to_string()),
    ),
    (
        "divvy_ledger_mismatch_max_bytes",
        "gauge",
        "Largest absolute mismatch so far, in bytes.",
        |slice| Some(slice.memory_mismatch_max_bytes.to_string()),
    ),
];

pub(super) fn about_jobs(page: &Page) -> Vec<Family> {
    let holding = || {
        let jobs = page.jobs.iter();
        jobs.flat_map(|job| job.slices.iter().map(move |slice| (job, slice)))
    };
    let read = |(name, kind, help, read): &OfSlice| {
        let mut family = family(name, kind, help);
        for (job, slice) in holding() {
            let mut labels = labels(job);
            labels.push(("gpu", slice.gpu_index.to_string()));
            labels.push(("UUID", slice.gpu_uuid.clone()));
            if let Some(value) = read(slice) {
                family.sample(labels, value);
            }
        }
        family
    };
    let mut families: Vec<Family> = OF_SLICES.iter().map(read).collect();
    families.extend(of_jobs(page));
    families.extend(of_their_time(page));
    families
}

fn of_jobs(page: &Page) -> Vec<Family> {
    let mut state = family(
        "divvy_job_state",
        "gauge",
        "State of a job that has left its queue and has not ended; always 1.",
    );
    let mut info = family(
        "divvy_job_info",
        "gauge",
        "A job with an allocation: its runner, its compute mode and its claim; always 1.",
    );
    let mut uncounted = family(
        "divvy_hook_uncounted_calls_total",
        "counter",
        "Calls that the limiter let through without accounting or delay, because of an unsupported call or an \
         internal error.",
    );
    for job in &page.jobs {
        let mut stated = labels(job);
        stated.push(("state", to_json_word(job.state)));
        state.sample(stated, 1);
        if job.slices.is_empty() {
            continue;
        }
        let claim = |part: fn(&JobClaim) -> &String| {
            job.claim.as_ref().map(part).cloned().unwrap_or_default()
        };
        let mut described = labels(job);
        described.extend([
            ("runner", to_json_word(job.runner)),
            ("compute", job.compute.clone()),
            ("namespace", claim(|claim| &claim.namespace)),
            ("claim", claim(|claim| &claim.name)),
        ]);
        info.sample(described, 1);
        // A MIG instance is held by no limiter.
        if job.slices.iter().any(|slice| slice.mig.is_none()) {
            uncounted.sample(labels(job), job.uncounted);
        }
    }
    vec![state, info, uncounted]
}

/// Requested compute time, in thousandths of each GPU. A job with whole GPUs or MIG instances takes no time slices; the
/// size of its slices is its request.
fn requested_share(job: &JobRow) -> Option<u16> {
    let whole = job.slices.iter().map(|slice| slice.share).max();
    let is_shared = !job.compute.starts_with(ComputeMode::None.name());
    let of_slices = whole.filter(|share| is_shared || *share == 1000);
    job.compute_time.map(|time| time.share_asked).or(of_slices)
}

fn of_their_time(page: &Page) -> Vec<Family> {
    let mut held = family(
        "divvy_job_gpu_seconds_total",
        "counter",
        "GPU time that the job has held since the daemon first observed it, in GPU-seconds.",
    );
    let mut energy = family(
        "divvy_job_energy_joules_total",
        "counter",
        "Energy that was divided over the job since the daemon first observed it, in joules.",
    );
    let mut idle = family(
        "divvy_job_last_kernel_age_seconds",
        "gauge",
        "Seconds since the job was last seen to use its GPUs.",
    );
    let mut throttled = family(
        "divvy_job_throttled_seconds_total",
        "counter",
        "Seconds that all threads of the job have waited at the launch gate, added up.",
    );
    let mut asked = family(
        "divvy_job_compute_request_ratio",
        "gauge",
        "Requested share of each GPU's compute time, from 0 to 1.",
    );
    let mut most = family(
        "divvy_job_compute_limit_ratio",
        "gauge",
        "Largest share of each GPU's compute time that a job with strict compute may use, from 0 to 1.",
    );
    let mut used = family(
        "divvy_job_compute_used_ratio",
        "gauge",
        "Share of each GPU's compute time that the job used in the last 10 s, from 0 to 1. The driver measures it for a job \
         without time slices.",
    );
    let mut latency = LatencyFamilies::new();
    for job in &page.jobs {
        if let Some(time) = job.compute_time.and_then(|time| time.latency) {
            latency.sample(&labels(job), &time);
        }
        if let Some(nanos) = page.daemon_stats.held.get(&job.labels.id) {
            held.sample(labels(job), seconds((*nanos).into()));
        }
        if let Some(millijoules) = page.daemon_stats.energy.get(&job.labels.id) {
            energy.sample(labels(job), ratio(*millijoules, 3));
        }
        if let Some(age) = job.idle_s {
            idle.sample(labels(job), age);
        }
        if let Some(time) = job.compute_time {
            throttled.sample(labels(job), ratio(time.throttled_ms, 3));
        }
        if let Some(share) = requested_share(job) {
            asked.sample(labels(job), ratio(share.into(), 3));
            if job.compute.starts_with(ComputeMode::Strict.name()) {
                most.sample(labels(job), ratio(share.into(), 3));
            }
        }
        let measured = job.compute_time.and_then(|time| time.share_used);
        let recent = page.daemon_stats.recent_use.get(&job.labels.id).copied();
        if let Some(share) = measured.or(recent) {
            used.sample(labels(job), ratio(share.into(), 3));
        }
    }
    let LatencyFamilies { goal, time, missed } = latency;
    vec![
        held, energy, idle, throttled, asked, most, used, goal, time, missed,
    ]
}

/// The requests of jobs with a latency goal.
struct LatencyFamilies {
    goal: Family,
    time: Family,
    missed: Family,
}

impl LatencyFamilies {
    fn new() -> Self {
        Self {
            goal: family(
                "divvy_job_latency_goal_seconds",
                "gauge",
                "Latency goal of the job, in seconds. A goal is not a promise.",
            ),
            time: family(
                "divvy_job_latency_seconds",
                "gauge",
                "Seconds that requests of the last minute took beside other jobs, by part: `wait` at the launch gate, `work` \
                 on the GPU. The quantile is a label.",
            ),
            missed: family(
                "divvy_job_latency_missed_ratio",
                "gauge",
                "Part of the requests of the last minute that took longer than the latency goal, from 0 to 1.",
            ),
        }
    }

    fn sample(&mut self, labels: &[(&'static str, String)], time: &LatencyTime) {
        let micros = |micros: u64| ratio(micros, 6);
        self.goal.sample(labels.to_vec(), micros(time.goal_us));
        if time.requests == 0 {
            return;
        }
        for (part, quantile, value) in [
            ("wait", "0.5", time.wait_p50_us),
            ("wait", "0.99", time.wait_p99_us),
            ("work", "0.5", time.work_p50_us),
            ("work", "0.99", time.work_p99_us),
        ] {
            let mut labels = labels.to_vec();
            labels.extend([("part", part.to_owned()), ("quantile", quantile.to_owned())]);
            self.time.sample(labels, micros(value));
        }
        let thousandths = u64::from(time.missed) * 1000 / u64::from(time.requests);
        self.missed.sample(labels.to_vec(), ratio(thousandths, 3));
    }
}
