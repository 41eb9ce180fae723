//! Jobs as submissions of a queue simulation: as they were, or drawn from the kinds of jobs that there were.

use std::collections::BTreeMap;

use crate::engine::waits::scene::Scene;
use crate::engine::waits::work::{Draw, Durations, Kind, Source, Submission};
use divvy_core::project::SchedulingClass;
use divvy_core::request::Request;
use divvy_core::units::UserName;
use divvy_core::{Amount, Bytes};

use super::scene::queue_of;
use crate::verb::count_of;
use crate::verb::input::Job;
use crate::verb::shape::is_model;
use divvy_cli::args;
use divvy_cli::error_output::{Result, usage};
use divvy_cli::output::say;

/// Runs of drawn jobs by default, and the seed of the first. The error of the mean is about a third of a run's spread;
/// a quarter would take twice as many.
const RUNS: u32 = 8;
const SEED: u64 = 1;

/// Jobs that can be submitted again, and those that cannot.
pub struct Listed {
    pub submissions: Vec<Submission>,
    pub skipped: Skipped,
}

/// Jobs that a simulation leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Without a start and an end: they never ran, or still run.
    pub unended: usize,
    /// They ask for no GPU.
    pub without_gpu: usize,
}

impl Skipped {
    pub fn report(self) {
        for (jobs, why) in [
            (self.unended, "without start and end"),
            (self.without_gpu, "without GPUs"),
        ] {
            if jobs > 0 {
                say(&format!("skipped {} {why}", count_of(jobs, "job")));
            }
        }
    }
}

/// The jobs that have ended, as they were submitted: in order of time, from 0.
///
/// # Errors
/// Jobs whose queue, project or model the scene cannot have, and a list without times.
pub fn submissions(jobs: &[Job], scene: &Scene) -> Result<Listed> {
    let mut skipped = Skipped::default();
    let mut read: Vec<(i64, Submission)> = Vec::new();
    for job in jobs {
        let Some(mut submission) = submission(job, scene)? else {
            skipped.without_gpu += 1;
            continue;
        };
        let (Some(submitted), Some(runs)) = (job.submitted, job.ran_ms()) else {
            skipped.unended += 1;
            continue;
        };
        submission.runs_ms = runs;
        read.push((submitted, submission));
    }
    read.sort_by_key(|(submitted, _)| *submitted);
    let Some((first, _)) = read.first() else {
        return Err(usage(
            "no job has a submission, a start and an end",
            "this study needs times: `divvy ps -a -o ndjson`, sacct or ClearML's tasks have them",
        ));
    };
    let first = *first;
    let submissions = read.into_iter().map(|(submitted, submission)| Submission {
        at_ms: u64::try_from(submitted - first).unwrap_or(0),
        ..submission
    });
    Ok(Listed {
        submissions: submissions.collect(),
        skipped,
    })
}

/// A job as a submission at time 0 that runs for no time; `None` where it asks for no GPU.
///
/// # Errors
/// As [`submissions`].
pub fn submission(job: &Job, scene: &Scene) -> Result<Option<Submission>> {
    let queue = queue_of(job)?;
    let fixed = scene.queues.iter().find(|spec| spec.name == queue);
    let Some(amount) = fixed.and_then(|spec| spec.amount).or(job.amount) else {
        return Ok(None);
    };
    let project = job.project.as_deref().and_then(|name| name.parse().ok());
    // A project that the scene does not have is none: its jobs are outside all projects.
    let project = project.filter(|name| scene.projects.iter().any(|known| known.name == *name));
    Ok(Some(Submission {
        at_ms: 0,
        queue,
        request: Request {
            exact: job.exact,
            ..Request::from(amount)
        },
        models: models(job, scene)?,
        cpu_milli: job.cpu_milli,
        memory: Bytes::mib(job.memory_mib),
        runs_ms: 0,
        limit_ms: job.limit_ms,
        owner: SchedulingClass {
            project,
            priority: job.priority,
            preemptible: job.preemptible,
            user: job.user.as_deref().map(UserName::from),
        },
        used: job.used,
    }))
}

/// The scene's models that the job accepts.
fn models(job: &Job, scene: &Scene) -> Result<Vec<String>> {
    if job.models.is_empty() {
        return Ok(Vec::new());
    }
    let gpus = scene.nodes.iter().flat_map(|node| &node.gpus);
    let mut known: Vec<&str> = gpus.map(|gpu| gpu.model.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let accepts = |model: &&&str| job.models.iter().any(|named| is_model(model, named));
    let accepted: Vec<String> = known
        .iter()
        .filter(accepts)
        .map(|model| (*model).to_owned())
        .collect();
    if accepted.is_empty() {
        let place = match job.line {
            0 => String::new(),
            line => format!("line {line}, "),
        };
        let named = job.models.join("|");
        return Err(usage(
            format!(
                "{place}job {}: unknown model `{named}`: no node has it",
                job.name
            ),
            format!("the nodes have {}", known.join(", ")),
        ));
    }
    Ok(accepted)
}

/// The submissions as they were; with `--runs`, `--seed`, `--load` or `--arrivals`, drawn from their kinds.
///
/// # Errors
/// A load for jobs that bring none.
pub fn source(args: &args::Simulate, listed: Vec<Submission>, gpus_milli: u64) -> Result<Source> {
    let is_drawn = args.runs.is_some()
        || args.seed.is_some()
        || args.load.is_some()
        || args.arrivals.is_some();
    if !is_drawn {
        return Ok(Source::Listed(listed));
    }
    let span = listed.last().map_or(0, |last| last.at_ms) as f64;
    let count = listed.len() as f64;
    let volume: f64 = listed
        .iter()
        .map(|job| milli(job) as f64 * job.runs_ms as f64)
        .sum();
    let gap_ms = match args.load {
        None => span / (count - 1.0).max(1.0),
        Some(load) => volume / count / (gpus_milli as f64 * load),
    };
    if !gap_ms.is_finite() || gap_ms <= 0.0 {
        return Err(usage(
            "the jobs cannot be drawn: all arrive at once, or run for no time",
            "omit --runs, --seed, --load and --arrivals",
        ));
    }
    let jobs = args.arrivals.unwrap_or(listed.len() as u64);
    Ok(Source::Drawn(Draw {
        jobs: u32::try_from(jobs).unwrap_or(u32::MAX),
        runs: args.runs.unwrap_or(RUNS),
        seed: args.seed.unwrap_or(SEED),
        kinds: kinds(listed),
        gap_ms,
    }))
}

/// Thousandths of GPUs, where the amount says.
fn milli(job: &Submission) -> u64 {
    match job.request.amount.plain() {
        Amount::Share(share) => share.thousandths().into(),
        Amount::Shares { count, share } => u64::from(count.get()) * u64::from(share.thousandths()),
        Amount::Whole(count) => u64::from(count.get()) * 1000,
        Amount::Range { min, .. } => u64::from(min.get()) * 1000,
        Amount::Memory(_) | Amount::Mig(_) => 1000,
    }
}

/// Jobs that differ only in their times are of one kind, and a drawn one runs as long as one of them did.
fn kinds(listed: Vec<Submission>) -> Vec<Kind> {
    let mut kinds: BTreeMap<String, (Submission, Vec<u64>)> = BTreeMap::new();
    for job in listed {
        let runs = job.runs_ms;
        let job = Submission {
            at_ms: 0,
            runs_ms: 0,
            ..job
        };
        let key = format!("{job:?}");
        kinds
            .entry(key)
            .or_insert_with(|| (job, Vec::new()))
            .1
            .push(runs);
    }
    let kind = |(job, durations): (Submission, Vec<u64>)| Kind {
        job,
        weight: durations.len() as f64,
        durations: Durations::Of(durations),
    };
    kinds.into_values().map(kind).collect()
}
