//! Metrics of jobs that have not ended: what they hold, and what they do with it.

use divvy_api::v1::{JobClaim, Slice};
use divvy_core::ComputeMode;

use super::books::seconds;
use super::{Family, Page, Told, family, ratio, word};

/// Of a job as a whole, whatever GPUs it has.
fn labels(job: &Told) -> Vec<(&'static str, String)> {
    vec![
        ("job", job.id.clone()),
        ("name", job.name.clone()),
        ("user", job.user.clone()),
        ("project", job.project.clone()),
        ("queue", job.queue.clone()),
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
        "What the job is to have: its limit, or the smaller one that it is to come to.",
        |slice| {
            let request = slice.memory_target_bytes;
            Some(request.unwrap_or(slice.memory_limit_bytes).to_string())
        },
    ),
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
        |slice| Some(slice.memory_unaccounted_bytes.to_string()),
    ),
    (
        "divvy_job_alloc_denied_total",
        "counter",
        "Allocations that the limit refused.",
        |slice| Some(slice.denials.to_string()),
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
        "A job that has not ended, and its state.",
    );
    let mut info = family(
        "divvy_job_info",
        "gauge",
        "A job that holds something: who runs it, how its compute time is divided, and whose claim it is.",
    );
    let mut uncounted = family(
        "divvy_hook_uncounted_calls_total",
        "counter",
        "How often the job's limiter passed on what it could not count or hold up, or came upon an error of its own.",
    );
    for job in &page.jobs {
        let mut stated = labels(job);
        stated.push(("state", word(job.state)));
        state.sample(stated, 1);
        if job.slices.is_empty() {
            continue;
        }
        let claim = |part: fn(&JobClaim) -> &String| {
            job.claim.as_ref().map(part).cloned().unwrap_or_default()
        };
        let mut described = labels(job);
        described.extend([
            ("runner", word(job.runner)),
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

fn of_their_time(page: &Page) -> Vec<Family> {
    let mut held = family(
        "divvy_job_gpu_seconds_total",
        "counter",
        "GPU time that the job has held, since the daemon knows it.",
    );
    let mut idle = family(
        "divvy_job_last_kernel_age_seconds",
        "gauge",
        "For how long the job was not seen to do anything with its GPUs.",
    );
    let mut throttled = family(
        "divvy_job_throttled_seconds_total",
        "counter",
        "How long threads of the job have waited for their turn, all together.",
    );
    let mut asked = family(
        "divvy_job_compute_request_ratio",
        "gauge",
        "The job's share in the division of its GPUs' time.",
    );
    let mut most = family(
        "divvy_job_compute_limit_ratio",
        "gauge",
        "The most of each GPU's time that it may use, where that is less than whatever others leave.",
    );
    let mut used = family(
        "divvy_job_compute_used_ratio",
        "gauge",
        "What it used of each GPU over the last ten seconds, by its own measure, while others want it too.",
    );
    for job in &page.jobs {
        if let Some(nanos) = page.books.held.get(&job.id) {
            held.sample(labels(job), seconds((*nanos).into()));
        }
        if let Some(age) = job.idle_s {
            idle.sample(labels(job), age);
        }
        if let Some(time) = job.compute_time {
            throttled.sample(labels(job), ratio(time.throttled_ms, 3));
            asked.sample(labels(job), ratio(time.share_asked.into(), 3));
            if job.compute.starts_with(ComputeMode::Strict.name()) {
                most.sample(labels(job), ratio(time.share_asked.into(), 3));
            }
            if let Some(share) = time.share_used {
                used.sample(labels(job), ratio(share.into(), 3));
            }
        }
    }
    vec![held, idle, throttled, asked, most, used]
}
