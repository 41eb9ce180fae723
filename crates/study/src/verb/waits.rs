//! The study of waits: how long jobs wait in queues, and what a change would do.
//!
//! ```text
//!  jobs of a file ──┐                         ┌─► waits by queue and amount
//!                   ├─► scene, submissions ───┼─► the same before and after a change
//!  the daemon's ────┘   (present state)       └─► the wait of one job, from the present state
//! ```

mod forecast;
mod live;
mod scene;
mod work;

use crate::engine::waits::change::Change;
use crate::engine::waits::scene::{Scene, SceneError};
use crate::engine::waits::work::Source;
use crate::engine::waits::{Progress as Steps, ask, simulate};

use super::progress::Progress;
use super::report::Report;
use divvy_cli::Outcome;

use super::{chart, name, packing, source};
use crate::render::{self, WaitRow, WaitScene};
use divvy_cli::args::{self, Eighths, Mode, Switch};
use divvy_cli::error_output::{Result, usage};

pub fn waits(args: &args::Simulate) -> Outcome {
    refuse_others(args)?;
    // A wrong word is refused before the daemon is asked.
    scene::added(args)?;
    let (jobs, base, requests) = match &args.trace {
        Some(path) => {
            let jobs = source::jobs(args, path)?;
            packing::report_skipped(&jobs);
            let base = scene::of_flags(args)?;
            (jobs.jobs, base, name(path))
        }
        None => {
            let live = live::read()?;
            let base = scene::of_live(args, live.scene)?;
            (live.jobs, base, "the daemon's jobs".to_owned())
        }
    };
    let base = scene::with_queues(args, base, &jobs)?;
    if args.question.job {
        let now = args
            .trace
            .is_none()
            .then(|| jiff::Timestamp::now().as_millisecond());
        return forecast::forecast(args, &base, (&jobs, now), &requests);
    }
    let listed = work::submissions(&jobs, &base)?;
    let source = work::source(args, listed.submissions, base.gpus() as u64 * 1000)?;
    listed.skipped.report();
    let changes = changes(args, &base)?;
    let scene = describe(&base, &source, &changes, requests);
    let progress = Progress::start(args.quiet);
    progress.task("simulating", 1);
    let mut report = |steps: Steps| {
        progress.task("simulating", steps.of as u64);
        progress.at(steps.done as u64);
    };
    let rows = if changes.is_empty() {
        let figures = simulate(&base, &source, &mut report).map_err(refused)?;
        WaitRow::all(&figures, &scene)
    } else {
        let answer = ask(&base, &source, &changes, &mut report).map_err(refused)?;
        WaitRow::compared(&answer, &scene)
    };
    progress.finish();
    let report = Report {
        items: &rows,
        table: render::waits,
        notes: vec![render::wait_scene(&scene)],
    };
    report.print(args, || chart::waits(&rows))
}

/// Refuses flags of the other studies, which would change nothing here.
fn refuse_others(args: &args::Simulate) -> Result<()> {
    let wrong = [
        (!args.policy.is_empty(), "--policy"),
        (args.order.is_some(), "--order"),
        (!args.at.is_empty(), "--at"),
        (args.oldest.is_some(), "--oldest"),
        (args.train.is_some(), "--train"),
        (args.timing, "--timing"),
    ];
    match wrong.into_iter().find(|(given, _)| *given) {
        Some((_, flag)) => Err(usage(
            format!("--mode {} does not use {flag}", Mode::Waits.name()),
            "omit it, or choose another --mode",
        )),
        None => Ok(()),
    }
}

/// The changes that the question makes, in the order of the flags in the help.
fn changes(args: &args::Simulate, scene: &Scene) -> Result<Vec<Change>> {
    let question = &args.question;
    let mut changes: Vec<Change> = scene::added(args)?
        .into_iter()
        .map(Change::AddNode)
        .collect();
    changes.extend(question.queue_first.clone().map(Change::QueueFirst));
    changes.extend(question.eighths.map(|kind| match kind {
        Eighths::Whole => Change::FractionsForWhole,
        Eighths::Parts => Change::Eighths,
    }));
    for (gpu, mode) in &question.gpu_mode {
        let wrong = |why: String| {
            let count = scene.gpus();
            let hint = format!(
                "write GPU=shared, exclusive or mig; the GPUs are 0 to {}",
                count.saturating_sub(1)
            );
            usage(format!("--gpu-mode {gpu}={mode}: {why}"), hint)
        };
        changes.push(Change::GpuMode {
            gpu: gpu
                .parse()
                .map_err(|_| wrong(format!("{gpu} is not a GPU")))?,
            mode: mode.parse().map_err(|error| wrong(format!("{error}")))?,
        });
    }
    for (project, gpus) in &question.quota {
        changes.push(Change::Quota {
            project: scene::project_name("--quota", project)?,
            gpus: *gpus,
        });
    }
    changes.extend(
        question
            .backfill
            .map(|switch| Change::Backfill(switch == Switch::On)),
    );
    Ok(changes)
}

/// What the engine refuses, with what to do.
fn refused(error: SceneError) -> divvy_api::v1::Error {
    let hint = match &error {
        SceneError::TooMany { .. } => "simulate a part of the jobs or nodes, or fewer --runs",
        SceneError::Nothing(_) => "check the jobs and --gpus",
        SceneError::NoProfiles(_) => "choose a GPU whose model has MIG profiles (docs/mig.md)",
        SceneError::NoGpu { .. } => "count GPUs from 0 over all nodes",
        SceneError::NoQueue(_) => "name a queue of the jobs, or list the queues with --queues",
        SceneError::NoProject(_) => "give its quota before the question with --projects NAME=GPUS",
        SceneError::NotPositive { .. } => "check the times of the jobs, and --load",
        SceneError::Running { .. } => "check --gpus: the running jobs must fit on the GPUs",
    };
    usage(error.to_string(), hint)
}

fn describe(scene: &Scene, source: &Source, changes: &[Change], requests: String) -> WaitScene {
    let (jobs, runs, seed) = match source {
        Source::Listed(jobs) => (jobs.len(), 1, None),
        Source::Drawn(draw) => (draw.jobs as usize, draw.runs, Some(draw.seed)),
    };
    WaitScene {
        nodes: scene.nodes.len(),
        gpus: scene.gpus(),
        requests,
        jobs,
        runs,
        seed,
        order: scene.order.name(),
        backfill: scene.backfill,
        changes: changes.iter().map(ToString::to_string).collect(),
    }
}
