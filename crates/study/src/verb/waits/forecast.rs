//! The question of one job: how long it would wait if it were submitted now.

use crate::engine::waits::scene::{Scene, SceneError};
use crate::engine::waits::work::{Present, RunningJob, Submission};
use crate::engine::waits::{History, Progress as Steps, forecast as run};
use divvy_core::Amount;
use divvy_core::units::QueueName;

use super::work::{Listed, submission, submissions};
use super::{Progress, refused};
use crate::render::{self, WaitForecast};
use crate::verb::input::Job;
use crate::verb::report::{Report, refuse_chart};
use divvy_cli::Outcome;
use divvy_cli::args;
use divvy_cli::error_output::{Result, usage};

/// Runs by default: one in ten of them is enough to read the 90th percentile.
const RUNS: u32 = 200;
const SEED: u64 = 1;

/// Answers from these jobs, as they are now; without a time, as they were at the last time that the list has.
pub fn forecast(
    args: &args::Simulate,
    scene: &Scene,
    (jobs, now): (&[Job], Option<i64>),
    requests: &str,
) -> Outcome {
    refuse_changes(args)?;
    let job = asked(args, scene)?;
    let present = present(jobs, now, scene)?;
    let Listed {
        submissions: ended, ..
    } = submissions(jobs, scene)?;
    let (runs, seed) = (args.runs.unwrap_or(RUNS), args.seed.unwrap_or(SEED));
    let progress = Progress::start(args.quiet);
    progress.task("simulating", runs.into());
    let mut report = |steps: Steps| progress.at(steps.done as u64);
    let history = History::of(&ended);
    let found = run(
        scene,
        &present,
        &job,
        &history,
        None,
        (runs, seed),
        &mut report,
    );
    let found = found.map_err(named)?;
    progress.finish();
    let (queue, amount) = (job.queue.to_string(), job.request.amount);
    if found.refused {
        return Err(usage(
            format!("--job: {amount} never starts in queue {queue}: no GPU here can give it, or a limit is below it"),
            "ask for less, or check --gpus",
        )
        .into());
    }
    let notes = vec![format!(
        "{requests}: {} running and {} pending jobs; durations of {} ended jobs, {runs} runs, seed {seed}; no later jobs",
        present.running.len(),
        present.waiting.len(),
        ended.len(),
    )];
    let forecast = WaitForecast::of(&found, queue, amount.to_string(), seed);
    let report = Report {
        items: &[forecast],
        table: render::wait_forecasts,
        notes,
    };
    report.print(args, String::new)
}

/// A job asks about the state as it is, so that nothing else may be different.
fn refuse_changes(args: &args::Simulate) -> Result<()> {
    refuse_chart(args, "--job")?;
    let question = &args.question;
    let wrong = [
        (question.queue_first.is_some(), "--queue-first"),
        (question.eighths.is_some(), "--eighths"),
        (!question.gpu_mode.is_empty(), "--gpu-mode"),
        (!question.quota.is_empty(), "--quota"),
        (question.backfill.is_some(), "--backfill"),
        (args.load.is_some(), "--load"),
        (args.arrivals.is_some(), "--arrivals"),
    ];
    match wrong.into_iter().find(|(given, _)| *given) {
        Some((_, flag)) => Err(usage(
            format!("--job does not use {flag}"),
            "omit it; --queues, --rules and --projects describe another state",
        )),
        None => Ok(()),
    }
}

/// The job that is asked about.
fn asked(args: &args::Simulate, scene: &Scene) -> Result<Submission> {
    let question = &args.question;
    let amount = match (&question.amount, &question.gpu_memory) {
        (Some(text), _) => Some(Amount::from_gpu_flag(text)),
        (None, Some(text)) => Some(Amount::from_memory_flag(text)),
        (None, None) => None,
    };
    let amount = amount.transpose();
    let amount = amount.map_err(|error| usage(format!("--job: {error}"), error.hint()))?;
    let queue = question
        .queue
        .clone()
        .unwrap_or_else(QueueName::default_queue);
    if question.queue.is_some() && !scene.queues.iter().any(|known| known.name == queue) {
        let names: Vec<&str> = scene
            .queues
            .iter()
            .map(|queue| queue.name.as_str())
            .collect();
        return Err(usage(
            format!("--queue {queue}: there is no such queue"),
            format!("the queues are {}", names.join(", ")),
        ));
    }
    let job = Job {
        name: "the job".to_owned(),
        amount,
        queue: Some(queue.to_string()),
        project: question.project.clone(),
        ..Job::default()
    };
    submission(&job, scene)?.ok_or_else(|| {
        usage(
            "--job: the amount is missing",
            "add -g 0.5, --gpu-memory 4G, or -q QUEUE of a queue that fixes the amount",
        )
    })
}

/// Jobs that run and that wait.
fn present(jobs: &[Job], now: Option<i64>, scene: &Scene) -> Result<Present> {
    let times = jobs
        .iter()
        .flat_map(|job| [job.submitted, job.started, job.ended]);
    let times: Vec<i64> = times.flatten().collect();
    let first = times.iter().min().copied().unwrap_or(0);
    let now = times.iter().copied().chain(now).max().unwrap_or(0);
    let since = |time: i64| u64::try_from(time - first).unwrap_or(0);
    let mut present = Present {
        now_ms: since(now),
        ..Present::default()
    };
    for job in jobs.iter().filter(|job| job.ended.is_none()) {
        let (Some(submitted), Some(mut submission)) = (job.submitted, submission(job, scene)?)
        else {
            continue;
        };
        submission.at_ms = since(submitted);
        match job.started {
            Some(started) => present.running.push(RunningJob {
                job: submission,
                ran_ms: since(now).saturating_sub(since(started)),
                gpus: job.holds.clone(),
            }),
            None => present.waiting.push(submission),
        }
    }
    Ok(present)
}

/// The engine's error, with the job that a user can find.
fn named(error: SceneError) -> divvy_api::v1::Error {
    match error {
        SceneError::Nothing(what) => usage(
            format!("--job: the list has no {what}"),
            "a forecast draws durations from ended jobs: use `divvy ps -a`, which lists them",
        ),
        other => refused(other),
    }
}
