//! Metrics of queues and projects (usage and fair share), and of the daemon's own work (durations).

use std::time::Duration;

use divvy_api::v1::Project;

use super::{Family, Page, family, ratio};
use crate::controller::query::metrics::DaemonStats;
use crate::model::counters::{BOUNDS, Counters, DurationSum, RESIZES};
use crate::model::usage::GpuTime;

/// Seconds, exact: from nanoseconds.
pub(super) fn seconds(nanos: u128) -> String {
    ratio(u64::try_from(nanos).unwrap_or(u64::MAX), 9)
}

pub(super) fn lasted(took: Duration) -> String {
    seconds(took.as_nanos())
}

pub(super) fn about_projects(page: &Page) -> Vec<Family> {
    let mut families = of_projects(&page.daemon_stats);
    families.extend(of_gpu_time(page));
    families.extend(of_queues(page));
    families.extend(of_work(&page.daemon_stats));
    families.extend(of_parking(&page.daemon_stats));
    families.extend(of_disk(&page.daemon_stats));
    let reclaimed = page.migs.reclaimed.count;
    families.push(of_reclaims(&page.daemon_stats.counted, reclaimed));
    families
}

/// A metric of a project, and how it is read.
type OfProject = (&'static str, &'static str, fn(&Project) -> Option<u64>);

/// Amounts of GPUs, in thousandths.
const OF_PROJECTS: &[OfProject] = &[
    (
        "divvy_project_quota_gpus",
        "Quota of the project, in GPUs.",
        |project| Some(project.quota),
    ),
    (
        "divvy_project_limit_gpus",
        "Limit of the project, in GPUs.",
        |project| project.limit,
    ),
    (
        "divvy_project_allocated_gpus",
        "GPUs that the jobs of the project hold.",
        |project| Some(project.used),
    ),
    (
        "divvy_project_over_quota_gpus",
        "GPUs that the jobs of the project hold over quota.",
        |project| Some(project.over_quota),
    ),
    (
        "divvy_project_fair_share_gpus",
        "Current fair share of the project, in GPUs.",
        |project| Some(project.fair_share),
    ),
];

/// One figure of what was spent.
type OfSpent = fn(&GpuTime) -> u64;

fn of_projects(books: &DaemonStats) -> Vec<Family> {
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
    let mut jobs = family(
        "divvy_project_jobs",
        "gauge",
        "Jobs of the project, by state.",
    );
    for project in &books.projects {
        for (state, count) in [("queued", project.waiting), ("running", project.running)] {
            let labels = vec![
                ("project", project.name.clone()),
                ("state", state.to_owned()),
            ];
            jobs.sample(labels, count);
        }
    }
    families.push(jobs);
    let mut entitled = family(
        "divvy_project_entitled_jobs",
        "gauge",
        "Pending jobs that fit into the unused quota of the project, each taken alone.",
    );
    for project in &books.projects {
        if let Some(count) = books.entitled.get(&project.name) {
            entitled.sample(named(&project.name), count);
        }
    }
    families.push(entitled);
    families
}

/// From the journal, so that a restart of the daemon takes nothing back.
fn of_gpu_time(page: &Page) -> [Family; 4] {
    let users = family(
        "divvy_user_gpu_seconds_total",
        "counter",
        "GPU time of the user's jobs, in GPU-seconds.",
    );
    let projects = family(
        "divvy_project_gpu_seconds_total",
        "counter",
        "GPU time of the project's jobs, in GPU-seconds; the project of jobs without one is empty.",
    );
    let kinds: [(&str, OfSpent); 4] = [
        ("allocated", |spent| spent.allocated),
        ("used", |spent| spent.used),
        ("idle", |spent| spent.idle),
        ("loaned", |spent| spent.loaned),
    ];
    let mut user_energy = family(
        "divvy_user_energy_joules_total",
        "counter",
        "Energy that was divided over the user's jobs, in joules.",
    );
    let mut project_energy = family(
        "divvy_project_energy_joules_total",
        "counter",
        "Energy that was divided over the project's jobs, in joules; the project of jobs without one is empty.",
    );
    let all = [
        (users, &mut user_energy, "user", &page.gpu_time.users),
        (
            projects,
            &mut project_energy,
            "project",
            &page.gpu_time.projects,
        ),
    ];
    let [users, projects] = all.map(|(mut family, energy, label, totals)| {
        for (name, of) in totals {
            for (kind, read) in kinds {
                let labels = vec![(label, name.clone()), ("kind", kind.to_owned())];
                family.sample(labels, ratio(read(of), 6));
            }
            energy.sample(vec![(label, name.clone())], ratio(of.millijoules, 3));
        }
        family
    });
    [users, projects, user_energy, project_energy]
}

fn of_queues(page: &Page) -> Vec<Family> {
    let mut waits = family(
        "divvy_queue_wait_seconds",
        "histogram",
        "Seconds that jobs waited in their queue before their placement, since the daemon started.",
    );
    for (queue, of) in &page.daemon_stats.counted.waits {
        let named = || vec![("queue", queue.clone())];
        for (count, bound) in of.within.iter().zip(BOUNDS) {
            let mut labels = named();
            labels.push(("le", bound.to_string()));
            waits.suffixed("_bucket", labels, count);
        }
        let mut labels = named();
        labels.push(("le", "+Inf".to_owned()));
        waits.suffixed("_bucket", labels, of.all.count);
        waits.suffixed("_sum", named(), lasted(of.all.total));
        waits.suffixed("_count", named(), of.all.count);
    }
    let mut oldest = family(
        "divvy_queue_oldest_pending_seconds",
        "gauge",
        "Seconds that the oldest pending job of the queue has waited for GPUs.",
    );
    for queue in &page.queues {
        let since = page.daemon_stats.oldest.get(&queue.name);
        let waited = since.map_or(0, |since| page.now.duration_since(*since).as_secs().max(0));
        oldest.sample(vec![("queue", queue.name.clone())], waited);
    }
    let mut pending = family("divvy_pending_jobs", "gauge", "Pending jobs, by reason.");
    for (reason, count) in &page.daemon_stats.pending {
        pending.sample(vec![("reason", (*reason).to_owned())], count);
    }
    vec![waits, oldest, pending]
}

fn of_work(books: &DaemonStats) -> Vec<Family> {
    let counted = &books.counted;
    let mut events = family(
        "divvy_events_total",
        "counter",
        "Events since the daemon started, by kind.",
    );
    for (kind, count) in &counted.events {
        events.sample(vec![("kind", kind.clone())], count);
    }
    let mut preemptions = family(
        "divvy_preemptions_total",
        "counter",
        "Preemptions in favour of jobs within quota.",
    );
    preemptions.sample(Vec::new(), counted.preempted);
    let mut resizes = family(
        "divvy_resizes_total",
        "counter",
        "Resizes of jobs, by direction and result.",
    );
    for way in RESIZES {
        let (direction, result) = way;
        let count = counted.resizes.get(&way).copied().unwrap_or_default();
        let labels = vec![
            ("direction", direction.to_owned()),
            ("result", result.to_owned()),
        ];
        resizes.sample(labels, count);
    }
    vec![
        events,
        preemptions,
        resizes,
        of_suspends(counted),
        summary(
            "divvy_suspend_duration_seconds",
            "Seconds that it took to stop all processes of a suspended job.",
            counted.suspends,
        ),
        of_recovery(counted),
        summary(
            "divvy_scheduling_duration_seconds",
            "Seconds that the planner ran.",
            counted.plans,
        ),
        summary(
            "divvy_journal_fsync_duration_seconds",
            "Seconds that commits to the journal took.",
            counted.commits,
        ),
    ]
}

fn summary(name: &'static str, help: &'static str, took: DurationSum) -> Family {
    let mut family = family(name, "summary", help);
    family.suffixed("_sum", Vec::new(), lasted(took.total));
    family.suffixed("_count", Vec::new(), took.count);
    family
}

fn of_parking(stats: &DaemonStats) -> [Family; 4] {
    let (count, bytes) = stats.parked;
    let mut jobs = family("divvy_parked_jobs", "gauge", "Parked jobs.");
    jobs.sample(vec![], count);
    let mut memory = family(
        "divvy_parked_bytes",
        "gauge",
        "Bytes that parked jobs have in host memory.",
    );
    memory.sample(vec![], bytes);
    let mut parks = family("divvy_park_total", "counter", "Parks of jobs, by result.");
    for (result, kind) in [("done", "parked"), ("failed", "park_failed")] {
        let labels = vec![("result", result.to_owned())];
        parks.sample(labels, stats.counted.event_count(kind));
    }
    let wakes = summary(
        "divvy_wake_seconds",
        "Seconds that it took to copy the memory of a parked job back.",
        stats.counted.wakes,
    );
    [jobs, memory, parks, wakes]
}

fn of_disk(books: &DaemonStats) -> [Family; 2] {
    let mut free = family(
        "divvy_disk_free_bytes",
        "gauge",
        "Free bytes on the disk with the journal.",
    );
    if let Some(bytes) = books.disk_free {
        free.sample(vec![], bytes);
    }
    let mut full = family(
        "divvy_disk_full",
        "gauge",
        "1 if the disk is full: the daemon answers reads, but accepts no new work.",
    );
    full.sample(vec![], u8::from(books.disk_is_full));
    [free, full]
}

fn of_suspends(counted: &Counters) -> Family {
    let mut suspends = family(
        "divvy_suspends_total",
        "counter",
        "Suspensions of jobs, by result.",
    );
    let done = counted.event_count("suspended");
    for (result, count) in [("done", done), ("refused", counted.failed_suspends)] {
        suspends.sample(vec![("result", result.to_owned())], count);
    }
    suspends
}

/// What was taken from one for another's sake. `reclaimed`: instances that made room.
fn of_reclaims(counted: &Counters, reclaimed: u64) -> Family {
    let mut reclaims = family(
        "divvy_reclaims_total",
        "counter",
        "Idle MIG instances and jobs that the daemon reclaimed for other jobs, by step and result.",
    );
    let instances = counted.event_count("mig_evicted");
    for (step, result, count) in [
        ("idle_instance", "asked", instances),
        ("idle_instance", "done", reclaimed),
        ("preemption", "asked", counted.preempted),
        ("preemption", "done", counted.preempted_done),
    ] {
        let labels = vec![("step", step.to_owned()), ("result", result.to_owned())];
        reclaims.sample(labels, count);
    }
    reclaims
}

fn of_recovery(counted: &Counters) -> Family {
    let mut recovery = family(
        "divvy_recovery_actions_total",
        "counter",
        "Jobs, containers and MIG instances that the daemon recovered after a restart or a loss, by action.",
    );
    for (action, count) in [
        ("job_adopted", counted.adopted),
        ("job_settled", counted.finalized),
        (
            "container_adopted",
            counted.event_count("container_adopted"),
        ),
        ("instance_adopted", counted.event_count("mig_adopted")),
        ("instance_dropped", counted.event_count("mig_lost")),
    ] {
        recovery.sample(vec![("action", action.to_owned())], count);
    }
    recovery
}
