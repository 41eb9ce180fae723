//! Metrics of jobs, queues and projects: who is due what, who had what, how long it takes.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::{JobState, Project};

use super::{Family, Page, Told, family, ratio};
use crate::counted::{BOUNDS, Spent, Took};

/// What of the state a page shows besides what the API has.
#[derive(Clone, Debug, Default)]
pub struct Books {
    pub projects: Vec<Project>,
    pub counted: crate::counted::Counted,
    /// GPU-nanoseconds that living jobs held since this daemon knows them, by id.
    pub held: BTreeMap<String, u64>,
    /// Jobs that wait, by why.
    pub pending: BTreeMap<&'static str, u64>,
}

/// Seconds, exact: from nanoseconds.
fn seconds(nanos: u128) -> String {
    ratio(u64::try_from(nanos).unwrap_or(u64::MAX), 9)
}

fn lasted(took: Duration) -> String {
    seconds(took.as_nanos())
}

pub(super) fn about_books(page: &Page) -> Vec<Family> {
    let mut families = of_projects(&page.books);
    families.extend(of_queues(page));
    families.extend(of_jobs(page));
    families.extend(of_work(&page.books));
    families
}

/// A metric of a project, and how it is read.
type OfProject = (&'static str, &'static str, fn(&Project) -> Option<u64>);

/// Amounts of GPUs, in thousandths.
const OF_PROJECTS: &[OfProject] = &[
    (
        "divvy_project_quota_gpus",
        "GPUs that the project is guaranteed.",
        |project| Some(project.quota),
    ),
    (
        "divvy_project_limit_gpus",
        "GPUs that it never goes beyond.",
        |project| project.limit,
    ),
    (
        "divvy_project_allocated_gpus",
        "GPUs that its jobs hold.",
        |project| Some(project.used),
    ),
    (
        "divvy_project_over_quota_gpus",
        "Of those, what is held over quota.",
        |project| Some(project.over),
    ),
    (
        "divvy_project_fair_share_gpus",
        "What would be its part if everybody got theirs now.",
        |project| Some(project.fair_share),
    ),
];

/// One figure of what was spent.
type OfSpent = fn(&Spent) -> u64;

fn of_projects(books: &Books) -> Vec<Family> {
    let named = |name: &str| vec![("project", name.to_owned())];
    let read = |(name, help, read): &OfProject| {
        let mut family = family(name, "gauge", help);
        for project in &books.projects {
            if let Some(thousandths) = read(project) {
                family.sample(named(&project.name), ratio(thousandths, 3));
            }
        }
        family
    };
    let mut families: Vec<Family> = OF_PROJECTS.iter().map(read).collect();
    let mut jobs = family("divvy_project_jobs", "gauge", "Jobs of the project.");
    for project in &books.projects {
        for (state, count) in [("queued", project.waiting), ("running", project.running)] {
            let labels = vec![
                ("project", project.name.clone()),
                ("state", state.to_owned()),
            ];
            jobs.sample(labels, count);
        }
    }
    let mut spent = family(
        "divvy_project_gpu_seconds_total",
        "counter",
        "GPU time since the daemon started; that of jobs without a project has no name.",
    );
    let kinds: [(&str, OfSpent); 4] = [
        ("allocated", |spent| spent.allocated),
        ("used", |spent| spent.used),
        ("idle", |spent| spent.idle),
        ("loaned", |spent| spent.loaned),
    ];
    for (name, of) in &books.counted.projects {
        for (kind, read) in kinds {
            let mut labels = named(name);
            labels.push(("kind", kind.to_owned()));
            spent.sample(labels, seconds(read(of).into()));
        }
    }
    families.extend([jobs, spent]);
    families
}

fn of_queues(page: &Page) -> Vec<Family> {
    let mut waits = family(
        "divvy_queue_wait_seconds",
        "histogram",
        "How long jobs waited in their queue before they were placed, since the daemon started.",
    );
    for (queue, of) in &page.books.counted.waits {
        let named = || vec![("queue", queue.clone())];
        for (count, bound) in of.within.iter().zip(BOUNDS) {
            let mut labels = named();
            labels.push(("le", bound.to_string()));
            waits.suffixed("_bucket", labels, count);
        }
        let mut labels = named();
        labels.push(("le", "+Inf".to_owned()));
        waits.suffixed("_bucket", labels, of.all.times);
        waits.suffixed("_sum", named(), lasted(of.all.took));
        waits.suffixed("_count", named(), of.all.times);
    }
    let mut oldest = family(
        "divvy_queue_oldest_pending_seconds",
        "gauge",
        "How long the job that waits longest in the queue has waited.",
    );
    for queue in &page.queues {
        let waiting = page
            .jobs
            .iter()
            .filter(|job| job.state == JobState::Queued && job.queue == queue.name);
        let since = waiting.map(|job| job.submitted_at).min();
        let waited = since.map_or(0, |since| page.now.duration_since(since).as_secs().max(0));
        oldest.sample(vec![("queue", queue.name.clone())], waited);
    }
    let mut pending = family("divvy_pending_jobs", "gauge", "Jobs that wait, by why.");
    for (reason, count) in &page.books.pending {
        pending.sample(vec![("reason", (*reason).to_owned())], count);
    }
    vec![waits, oldest, pending]
}

/// Of a job as a whole, whatever GPUs it has.
pub(super) fn labels(job: &Told) -> Vec<(&'static str, String)> {
    vec![
        ("job", job.id.clone()),
        ("name", job.name.clone()),
        ("user", job.user.clone()),
        ("project", job.project.clone()),
        ("queue", job.queue.clone()),
    ]
}

fn of_jobs(page: &Page) -> Vec<Family> {
    let mut state = family(
        "divvy_job_state",
        "gauge",
        "A job that has not ended, and its state.",
    );
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
    let mut used = family(
        "divvy_job_compute_used_ratio",
        "gauge",
        "What it used of each GPU over the last ten seconds, by its own measure, while others want it too.",
    );
    for job in &page.jobs {
        let mut stated = labels(job);
        let word = serde_json::to_value(job.state).unwrap_or_default();
        stated.push(("state", word.as_str().unwrap_or_default().to_owned()));
        state.sample(stated, 1);
        if let Some(nanos) = page.books.held.get(&job.id) {
            held.sample(labels(job), seconds((*nanos).into()));
        }
        if let Some(age) = job.idle_s {
            idle.sample(labels(job), age);
        }
        if let Some(time) = job.compute_time {
            throttled.sample(labels(job), ratio(time.throttled_ms, 3));
            asked.sample(labels(job), ratio(time.share_asked.into(), 3));
            if let Some(share) = time.share_used {
                used.sample(labels(job), ratio(share.into(), 3));
            }
        }
    }
    vec![state, held, idle, throttled, asked, used]
}

fn of_work(books: &Books) -> Vec<Family> {
    let counted = &books.counted;
    let mut events = family("divvy_events_total", "counter", "What happened, by kind.");
    for (kind, count) in &counted.told {
        events.sample(vec![("kind", kind.clone())], count);
    }
    let told = |kind: &str| counted.told.get(kind).copied().unwrap_or_default();
    let counter = |name, help, count: u64| {
        let mut family = family(name, "counter", help);
        family.sample(Vec::new(), count);
        family
    };
    let summary = |name, help, took: Took| {
        let mut family = family(name, "summary", help);
        family.suffixed("_sum", Vec::new(), lasted(took.took));
        family.suffixed("_count", Vec::new(), took.times);
        family
    };
    vec![
        events,
        counter(
            "divvy_preemptions_total",
            "Jobs that were stopped for others within quota.",
            counted.preempted,
        ),
        counter(
            "divvy_suspends_total",
            "Jobs that were suspended.",
            told("suspended"),
        ),
        counter(
            "divvy_resizes_total",
            "Jobs that were resized.",
            told("resized"),
        ),
        summary(
            "divvy_scheduling_duration_seconds",
            "How long plans took.",
            counted.plans,
        ),
        summary(
            "divvy_journal_fsync_duration_seconds",
            "How long it took to make rounds durable.",
            counted.commits,
        ),
    ]
}
