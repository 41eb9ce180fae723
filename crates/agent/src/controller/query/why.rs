//! Why: the reason why a job waits, which jobs hold what it waits for, and when these may end.
//!
//! ```text
//! time limits ──► ends_by ──────► latest_start, expected_start   reliable
//! earlier runs ─► usually_ends ─► usual_start                    an estimate
//! ```
//! As with [`StartEstimator`], the controller only copies what it knows. Another thread reads the run history from the
//! journal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use divvy_api::v1::{self, Error};
use divvy_core::estimate::estimate_start;
use divvy_core::order_key::sort_queue;
use divvy_core::runtime_stats::{RUNS, RuntimeEstimate, estimate_runtime};
use divvy_core::{JobId, Queue, QueueSpec, Snapshot, WhyHolder};
use jiff::Timestamp;

use crate::controller::admission::{array, dependencies};
use crate::controller::io::Io;
use crate::controller::lifecycle::change::{ChangeKind, SuggestedChange};
use crate::controller::lifecycle::{confirm, offload};
use crate::controller::mig::claim;
use crate::controller::query::estimate;
use crate::controller::query::view::BlockReason;
use crate::controller::reference::JobRef;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::State;
use crate::controller::state::estimate::{Run, StartEstimator};
use crate::controller::{query, reference};
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::journal::{RuntimeHistory, StoreError};
use crate::model::policy::Dependency;
use crate::model::run_signature::RunSignature;

/// The input for the answer why a job waits.
pub struct WhyQuery {
    job: v1::Job,
    estimator: StartEstimator,
    database: PathBuf,
    held_up: Option<BlockReason>,
    after: Vec<Dependency>,
    is_ready: bool,
    /// For a held job: the planner's input as it would be after its release.
    released: Option<Snapshot>,
}

/// Usual run times, for jobs with enough history.
type Usuals = BTreeMap<JobId, RuntimeEstimate>;

impl WhyQuery {
    /// Computes the answer; takes up to seconds. `sees`: whether the caller may see what a user's jobs run. If the run
    /// history cannot be read, no usual times are given. The second value has the changes that would start the job, in
    /// the order of `suggestions`.
    pub fn answer(mut self, sees: impl Fn(u32) -> bool) -> (v1::Why, Vec<Option<SuggestedChange>>) {
        let id = self.estimator.id;
        let why = divvy_core::why(self.estimator.input.snapshot(), id).unwrap_or_default();
        let released = self.released.take();
        let released = released.filter(|released| divvy_core::starts_now(released, id));
        let released = released.map(|_| ("would start now".to_owned(), Some(ChangeKind::Release)));
        self.estimator.estimate_start(&mut self.job);
        let usuals = self.usuals(&why, sees).unwrap_or_else(|error| {
            let cause = error_chain(&error);
            tracing::warn!(job = %self.estimator.id, "cannot read the usual lengths of runs: {cause}");
            Usuals::new()
        });
        let usual_start = self.usual_start(&usuals);
        let gpu = |gpu: &divvy_core::WhyGpu| v1::WhyGpu {
            gpu_uuid: gpu.uuid.to_string(),
            gpu_index: gpu.index,
            unmet: gpu.failed.clone(),
            holders: gpu.holders.iter().map(ToString::to_string).collect(),
            held_by: (gpu.holders.iter())
                .map(|holder| self.holder(holder, &usuals))
                .collect(),
        };
        let gpus = why.gpus.iter().map(gpu).collect();
        let job = self.job;
        let ended = || (job.reason.clone()).unwrap_or_else(|| "it has ended".to_owned());
        let release = released.map(|(text, what)| {
            (
                text,
                what.map(|what| SuggestedChange {
                    job: id,
                    change: what,
                }),
            )
        });
        let changes = (why.suggestions.iter()).map(|one| {
            (
                one.text.clone(),
                one.change
                    .as_ref()
                    .map(|change| SuggestedChange::of(id, change)),
            )
        });
        let (sooner, tries): (Vec<String>, _) = release.into_iter().chain(changes).unzip();
        let why = v1::Why {
            summary: match (job.state, self.held_up) {
                (v1::JobState::Ended, _) => ended(),
                (_, Some(held_up)) => held_up.message,
                (_, None) if self.is_ready => why.summary,
                (_, None) => format!("{}, which is not ready yet", why.summary),
            },
            gpus,
            behind: (self.after.iter().map(Dependency::to_string))
                .chain(why.jobs_ahead.iter().map(JobId::to_string))
                .collect(),
            suggested_changes: Vec::new(),
            suggestions: sooner,
            state: job.state,
            queue: job.queue,
            place: job.place,
            reason_code: job.reason_code,
            expected_start: job.expected_start,
            latest_start: job.latest_start,
            usual_start,
            note: job.labels.get("note").cloned(),
            job: job.id,
        };
        (why, tries)
    }

    /// The usual run times of jobs that hold what the job waits for, and of jobs that wait with it.
    fn usuals(
        &self,
        why: &divvy_core::Why,
        sees: impl Fn(u32) -> bool,
    ) -> Result<Usuals, StoreError> {
        let mut usuals = Usuals::new();
        if why.gpus.is_empty() {
            return Ok(usuals);
        }
        let holders = why.gpus.iter().flat_map(|gpu| &gpu.holders);
        let queues = self.estimator.input.snapshot().queues.iter();
        let waiting = queues.flat_map(|queue| &queue.waiting);
        let others = waiting.filter(|waiting| waiting.job != self.estimator.id);
        let jobs = (holders.map(|holder| holder.job)).chain(others.map(|waiting| waiting.job));
        let active = &self.estimator.input.active;
        let goes_on = |job| Some((job, active.get(&job).filter(|run| run.goes_on)?));
        let runs: Vec<(JobId, &Run)> = jobs.filter_map(goes_on).collect();
        let owners: BTreeSet<u32> = runs
            .iter()
            .map(|(_, run)| run.ask.credentials.uid)
            .collect();
        let mut past = RuntimeHistory::open(&self.database, owners.len())?;
        let mut known: BTreeMap<RunSignature, Option<RuntimeEstimate>> = BTreeMap::new();
        for (job, run) in runs {
            let Some(signature) = RunSignature::of(&run.ask, sees(run.ask.credentials.uid)) else {
                continue;
            };
            let found = match known.get(&signature) {
                Some(found) => *found,
                None => {
                    let found = estimate_runtime(past.similar_runs(&signature, RUNS)?);
                    known.insert(signature, found);
                    found
                }
            };
            usuals.extend(found.map(|usual| (job, usual)));
        }
        Ok(usuals)
    }

    fn holder(&self, holder: &WhyHolder, usuals: &Usuals) -> v1::WhyHolder {
        let estimator = &*self.estimator.input;
        let left = estimator.known.remaining_s.get(&holder.job);
        let run = estimator.active.get(&holder.job);
        let ran_s = run.map_or(0, |run| run.ran_s);
        let usual = usuals.get(&holder.job);
        v1::WhyHolder {
            job: holder.job.to_string(),
            name: run.map(|run| run.ask.name.clone()).unwrap_or_default(),
            user: run.map(|run| run.ask.user.clone()).unwrap_or_default(),
            queue: holder.queue.to_string(),
            size: holder.size(),
            share: holder.grant.share.thousandths(),
            memory_bytes: holder.grant.memory.get(),
            reserved: holder.is_resuming,
            ends_by: left.and_then(|left| estimator.after(*left)),
            usually_ends: usual.and_then(|usual| match usual.remaining_s(ran_s) {
                Some(left) => estimator.after(left),
                None => estimator.before(ran_s - usual.median_s),
            }),
            usual_run: usual.map(|usual| v1::UsualRun {
                median_s: usual.median_s,
                runs: u32::try_from(usual.runs).unwrap_or(u32::MAX),
            }),
        }
    }

    /// The start if every job takes its usual time. A job that has run longer counts with its time limit.
    fn usual_start(&self, usuals: &Usuals) -> Option<Timestamp> {
        if usuals.is_empty() || self.job.state != v1::JobState::Queued {
            return None;
        }
        let StartEstimator { id, input } = &self.estimator;
        let (runs, known) = (&input.known_runs, &input.known);
        let mut left = known.remaining_s.clone();
        left.extend(&runs.remaining_s);
        for (job, usual) in usuals {
            let ran_s = self
                .estimator
                .input
                .active
                .get(job)
                .map_or(0, |run| run.ran_s);
            if let Some(usually) = usual.remaining_s(ran_s) {
                let left = left.entry(*job).or_insert(usually);
                *left = usually.min(*left);
            }
        }
        let start = estimate_start(input.snapshot(), *id, &left);
        start.and_then(|seconds| input.after(seconds))
    }
}

/// Why a job waits.
///
/// # Errors
/// As `Queries::job`.
pub fn why(state: &State, io: &Io, reference: &str) -> Result<WhyQuery, Error> {
    let id = match reference::resolve_reference(&state.jobs, io, reference)? {
        JobRef::Job { id, .. } => id,
        JobRef::Array(array) => array::representative_job(&state.jobs, io, array)?,
    };
    let active = state.jobs.active.get(&id);
    let held_up = active.and_then(|active| {
        let job = &active.job;
        (dependencies::block_reason(&state.jobs, &state.disk, job)
            .or_else(|| confirm::confirmation_block_reason(&state.jobs, job)))
        .or_else(|| offload::offload_block_reason(&state.jobs, job))
    });
    Ok(WhyQuery {
        job: query::job_to_api(state, io, id)?,
        estimator: StartEstimator {
            id,
            input: estimate::input(state, io),
        },
        database: io.config.home.database(),
        held_up,
        after: active.map_or_else(Vec::new, |active| active.after.clone()),
        is_ready: claim::has_all_instances(&state.jobs, id),
        released: active.and_then(|active| self::released(state, io, active)),
    })
}

/// The planner's input after the release of a held job, if the job would then wait only for its turn.
fn released(state: &State, io: &Io, active: &ActiveJob) -> Option<Snapshot> {
    let job = &active.job;
    job.on_hold()?;
    let mut after = job.clone();
    after.run_state.hold = None;
    if !active.after.is_empty()
        || dependencies::block_reason(&state.jobs, &state.disk, &after).is_some()
    {
        return None;
    }
    let mut snapshot = estimate::input(state, io).snapshot().clone();
    let mut waiting = job.waiting_in_queue(snapshot.backfill.then(now));
    waiting.request.gives_way = snapshot.parking.gives_way.contains(&job.id);
    let mut queues = snapshot.queues.iter_mut();
    match queues.find(|queue| queue.spec.name == job.spec.queue) {
        Some(queue) => {
            queue.waiting.push(waiting);
            sort_queue(&mut queue.waiting);
        }
        // A queue of an earlier daemon.
        None => snapshot.queues.push(Queue {
            spec: QueueSpec::open(job.spec.queue.clone()),
            waiting: vec![waiting],
        }),
    }
    Some(snapshot)
}
