//! The board: what every viewer sees of the node, in one pass over the jobs.
//!
//! Ten thousand jobs may wait. Of a waiting job the pass reads its user, its project and its reason; only the first
//! jobs of the queues are put into words. No field is one that redaction removes, so that one board serves every role.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use divvy_api::v1::board::{FIRST_WAITING, MOST_SHARES};
use divvy_api::v1::{
    Board, BoardGpu, BoardInstance, BoardJob, BoardMig, BoardQueue, BoardShare, BoardSlice,
    BoardWaiting, BoardWaitingJob, Folded, Gpu, JobState, Mig, MigState, ReasonCode, Slice,
};
use divvy_api::version;
use divvy_core::{JobId, JobState as Life, QueueName};
use jiff::{SignedDuration, Timestamp};

use crate::controller::io::Io;
use crate::controller::query;
use crate::controller::query::folds::{self, FoldKey};
use crate::controller::query::view::{self, JobView};
use crate::controller::runtime::ActiveJob;
use crate::controller::state::State;
use crate::host::clock::now;
use crate::model::job::Job;

/// Name of the queue of a job that names none: left out.
const DEFAULT_QUEUE: &str = "default";

/// Division of compute time that is left out.
const USUAL_COMPUTE: &str = "fair";

/// Processes outside slices of a GPU that the board lists. A longer list would not fit the row of a GPU; `GET /v1/gpus`
/// has all.
const MOST_PROCESSES: usize = 4;

/// Letters of a reason; the whole text is in `GET /v1/jobs/{job}/why`. So one or two lines of a screen.
const LONGEST_REASON: usize = 160;

/// The board without the start times of waiting jobs.
pub fn board(state: &State, io: &Io) -> Board {
    // Each ledger is read once, for its job and for its GPUs.
    let ledgers = query::ledgers(state);
    let ledger_of = |id: JobId| {
        let at = ledgers.binary_search_by_key(&id, |(active, _)| active.job.id);
        at.ok().and_then(|at| ledgers.get(at)?.1.as_ref())
    };
    let mut sums = Sums::of(io);
    let (mut jobs, mut first) = (Vec::new(), FirstWaiting::default());
    let mut waiting = BoardWaiting::default();
    for active in state.jobs.active.values() {
        let job = &active.job;
        match &job.state {
            Life::Queued => {
                waiting.count += 1;
                let queue = sums.count_waiting(job);
                let wait = state.jobs.waits.get(&job.id);
                if let Some(code) = reason_code(state, active) {
                    *sums.reasons.entry(code.name()).or_default() += 1;
                }
                first.offer(wait.map(|wait| (queue, wait.place)), job);
            }
            Life::Ended { .. } => {}
            _ => {
                let ledger = ledger_of(job.id);
                let shown = board_job(query::active_job_view_of(state, io, active, ledger));
                sums.count_running(job, &shown);
                jobs.push(shown);
            }
        }
    }
    let first = first.jobs().filter_map(|(id, key)| {
        let folded = key.and_then(|key| folds::fold(state, &key, None).1);
        let active = state.jobs.active.get(&id)?;
        let seen = query::active_job_view_of(state, io, active, None);
        Some(waiting_job(seen, folded))
    });
    waiting.first = first.collect();
    waiting.reasons = (sums.reasons.iter())
        .map(|(code, count)| ((*code).to_owned(), *count))
        .collect();
    let quota = |name: &str| {
        let mut projects = state.queues.projects.iter();
        let project = projects.find(|project| project.name.as_str() == name)?;
        Some(project.quota.gpus.thousandths())
    };
    let projects = largest(sums.projects).into_iter().map(|share| BoardShare {
        quota: quota(&share.name),
        ..share
    });
    Board {
        hostname: io.config.node.hostname.clone(),
        version: version::program(),
        changed_at: now(),
        last_event: io
            .store
            .last_seq()
            .ok()
            .and_then(|seq| u64::try_from(seq).ok())
            .unwrap_or_default(),
        gpus: query::gpus_of(state, io, &ledgers)
            .into_iter()
            .map(board_gpu)
            .collect(),
        jobs,
        waiting,
        queues: sums.queues,
        users: largest(sums.users),
        projects: projects.collect(),
    }
}

/// Why a pending job waits, without the words.
pub fn reason_code(state: &State, active: &ActiveJob) -> Option<ReasonCode> {
    match state.jobs.waits.get(&active.job.id) {
        Some(wait) => Some(ReasonCode::from(&wait.reason)),
        None => block_code(state, active),
    }
}

/// Why a job without a place waits. The first of several reasons, without its words.
fn block_code(state: &State, active: &ActiveJob) -> Option<ReasonCode> {
    let job = &active.job;
    let codes = [
        (job.run_state.hold.is_some(), ReasonCode::Held),
        (!active.after.is_empty(), ReasonCode::Dependency),
        (
            (job.spec.policy.array).is_some_and(|task| task.most.is_some()),
            ReasonCode::ArrayLimit,
        ),
        (state.disk.full.is_some(), ReasonCode::DiskFull),
        (active.has_expired_confirmation(), ReasonCode::Confirmation),
    ];
    let found = codes.into_iter().find(|(is_so, _)| *is_so);
    found.map(|(_, code)| code)
}

/// Sums over the jobs.
struct Sums<'a> {
    reasons: BTreeMap<&'static str, u64>,
    queues: Vec<BoardQueue>,
    /// Indices of the queues.
    by_name: BTreeMap<&'a QueueName, usize>,
    last_queue: Option<(&'a QueueName, usize)>,
    users: Shares<'a>,
    projects: Shares<'a>,
}

impl<'a> Sums<'a> {
    fn of(io: &'a Io) -> Self {
        let mut sums = Self {
            reasons: BTreeMap::new(),
            queues: Vec::new(),
            by_name: BTreeMap::new(),
            last_queue: None,
            users: Shares::default(),
            projects: Shares::default(),
        };
        for queue in &io.config.schedule.queues {
            sums.queue(&queue.name);
        }
        sums
    }

    /// The index of a queue. Queues of an earlier daemon come last.
    fn queue(&mut self, name: &'a QueueName) -> usize {
        if let Some((_, at)) = self.last_queue.filter(|(last, _)| *last == name) {
            return at;
        }
        let queues = &mut self.queues;
        let at = *self.by_name.entry(name).or_insert_with(|| {
            queues.push(BoardQueue {
                name: name.to_string(),
                waiting: 0,
                running: 0,
            });
            queues.len() - 1
        });
        self.last_queue = Some((name, at));
        at
    }

    /// Counts a waiting job; the index of its queue.
    fn count_waiting(&mut self, job: &'a Job) -> usize {
        let at = self.queue(&job.spec.queue);
        if let Some(queue) = self.queues.get_mut(at) {
            queue.waiting += 1;
        }
        self.each_share(job, |share| share.waiting += 1);
        at
    }

    fn count_running(&mut self, job: &'a Job, shown: &BoardJob) {
        let at = self.queue(&job.spec.queue);
        if let Some(queue) = self.queues.get_mut(at) {
            queue.running += 1;
        }
        self.each_share(job, |share| {
            share.running += 1;
            for slice in &shown.slices {
                share.share += u64::from(slice.share);
                share.limit_bytes = share.limit_bytes.saturating_add(slice.limit_bytes);
                share.used_bytes = share.used_bytes.saturating_add(slice.used_bytes);
                if let Some(used) = slice.share_used {
                    *share.share_used.get_or_insert(0) += u64::from(used);
                }
            }
        });
    }

    fn each_share(&mut self, job: &'a Job, mut add: impl FnMut(&mut BoardShare)) {
        self.users.of(&job.spec.user).map(&mut add);
        if let Some(project) = job.spec.project.as_deref() {
            self.projects.of(project).map(add);
        }
    }
}

/// Shares by name. Jobs that follow each other are often of one user.
#[derive(Default)]
struct Shares<'a> {
    all: Vec<BoardShare>,
    by_name: BTreeMap<&'a str, usize>,
    last: Option<(&'a str, usize)>,
}

impl<'a> Shares<'a> {
    fn of(&mut self, name: &'a str) -> Option<&mut BoardShare> {
        let at = match self.last {
            Some((last, at)) if last == name => at,
            _ => *self.by_name.entry(name).or_insert_with(|| {
                self.all.push(BoardShare {
                    name: name.to_owned(),
                    running: 0,
                    waiting: 0,
                    share: 0,
                    share_used: None,
                    limit_bytes: 0,
                    used_bytes: 0,
                    quota: None,
                });
                self.all.len() - 1
            }),
        };
        self.last = Some((name, at));
        self.all.get_mut(at)
    }
}

/// The largest shares, then those with the most waiting jobs.
fn largest(shares: Shares<'_>) -> Vec<BoardShare> {
    let mut shares = shares.all;
    shares.sort_by(|one, next| {
        let size = |share: &BoardShare| (share.share, share.running, share.waiting);
        (size(next).cmp(&size(one))).then_with(|| one.name.cmp(&next.name))
    });
    shares.truncate(MOST_SHARES);
    shares
}

/// A rank in the order in which the daemon serves jobs: the queue and the place in it; jobs without a place come last.
type Rank = (bool, Option<(usize, usize)>, JobId);

/// The first waiting jobs, sorted.
#[derive(Default)]
struct FirstWaiting(Vec<(Rank, Option<FoldKey>)>);

impl FirstWaiting {
    /// Takes a job. Of the tasks with one key, the first stands for all.
    fn offer(&mut self, place: Option<(usize, usize)>, job: &Job) {
        let rank = (place.is_none(), place, job.id);
        let is_full = self.0.len() == FIRST_WAITING;
        if is_full && self.0.last().is_some_and(|(last, _)| *last < rank) {
            return;
        }
        let same = |(_, known): &(Rank, Option<FoldKey>)| {
            known.as_ref().is_some_and(|known| known.is_of(job))
        };
        if let Some(at) = self.0.iter().position(same) {
            if self.0.get(at).is_some_and(|(before, _)| *before < rank) {
                return;
            }
            self.0.remove(at);
        }
        let at = self.0.partition_point(|(before, _)| *before < rank);
        self.0.insert(at, (rank, FoldKey::of(job)));
        self.0.truncate(FIRST_WAITING);
    }

    fn jobs(self) -> impl Iterator<Item = (JobId, Option<FoldKey>)> {
        self.0.into_iter().map(|((_, _, id), key)| (id, key))
    }
}

fn board_gpu(gpu: Gpu) -> BoardGpu {
    BoardGpu {
        index: gpu.index,
        model: gpu.model,
        mode: gpu.mode,
        usable_bytes: gpu.memory_usable_bytes,
        used_bytes: gpu.memory_used_bytes,
        allocated_bytes: gpu.memory_allocated_bytes,
        unmanaged_bytes: gpu.memory_unmanaged_bytes,
        share: gpu.share_allocated,
        utilization_percent: gpu.utilization_percent,
        temperature_celsius: gpu.temperature_celsius,
        power_watts: gpu.power_watts,
        asleep: gpu.asleep,
        available: gpu.available,
        problem: gpu.problem,
        processes: {
            let mut processes = gpu.processes;
            processes.sort_by_key(|process| (Reverse(process.memory_bytes), process.pid));
            processes.truncate(MOST_PROCESSES);
            processes
        },
        held_elsewhere: gpu.held_elsewhere,
        mig: gpu.mig.map(board_mig),
    }
}

fn board_mig(mig: Mig) -> BoardMig {
    let state = |state: MigState| match state {
        MigState::InUse => "held",
        MigState::Idle => "idle",
        MigState::Unmanaged => "unmanaged",
        MigState::Quarantined => "quarantined",
        MigState::Destroying => "destroying",
        MigState::Creating => "creating",
    };
    let instances = mig.instances.into_iter().map(|instance| BoardInstance {
        profile: instance.profile,
        start: instance.start.into(),
        size: instance.memory_slices.into(),
        state: state(instance.state).to_owned(),
        job: instance.job,
    });
    BoardMig {
        slots: mig.memory_slices.into(),
        instances: instances.collect(),
    }
}

fn board_job(seen: JobView) -> BoardJob {
    let job = &seen.job;
    let state = view::state(&job.state);
    let share_used = seen.compute_time.and_then(|time| time.share_used);
    let limit = job.spec.policy.time_limit_s;
    let limit = limit.and_then(|limit| i64::try_from(limit).ok());
    let end = limit.zip(job.started_at).and_then(|(limit, started)| {
        let end = started.checked_add(SignedDuration::from_secs(limit));
        end.ok().map(whole_seconds)
    });
    BoardJob {
        id: job.id.to_string(),
        task: task(job),
        name: job.spec.name.clone(),
        user: job.spec.user.clone(),
        queue: queue(job),
        project: job.spec.project.clone(),
        state: (state != JobState::Running).then_some(state),
        suspended: job.run_state.suspended,
        parked: job.run_state.aside.is_parked(),
        since: whole_seconds(job.started_at.unwrap_or(job.submitted_at)),
        compute: Some(job.compute().to_string()).filter(|compute| compute != USUAL_COMPUTE),
        latency: seen.compute_time.and_then(|time| time.latency),
        denials: seen.slices.iter().map(|slice| slice.denials).sum(),
        bypass: job.bypasses.iter().any(|bypass| bypass.over.is_none()),
        ends_by: end,
        slices: (seen.slices.iter())
            .map(|slice| board_slice(slice, share_used))
            .collect(),
    }
}

fn board_slice(slice: &Slice, share_used: Option<u16>) -> BoardSlice {
    BoardSlice {
        gpu: slice.gpu_index,
        label: slice.label.clone(),
        limit_bytes: slice.memory_limit_bytes,
        used_bytes: slice.memory_used_bytes,
        peak_bytes: Some(slice.memory_peak_bytes).filter(|peak| *peak != slice.memory_used_bytes),
        share: slice.share,
        share_used,
        mismatch_bytes: slice.memory_mismatch_bytes.filter(|bytes| *bytes != 0),
        mig: slice.mig.clone(),
    }
}

fn waiting_job(seen: JobView, folded: Option<Folded>) -> BoardWaitingJob {
    let job = &seen.job;
    let wait = seen.wait.as_ref();
    let block = seen.block_reason.as_ref();
    let reason = wait
        .map(|wait| wait.reason.to_string())
        .or_else(|| block.map(|block| block.message.clone()))
        .or_else(|| job.reason.clone());
    BoardWaitingJob {
        id: job.id.to_string(),
        task: task(job),
        name: job.spec.name.clone(),
        user: job.spec.user.clone(),
        queue: queue(job),
        request: job.amount().to_string(),
        since: whole_seconds(job.submitted_at),
        reason: reason.map(shortened),
        reason_code: wait
            .map(|wait| ReasonCode::from(&wait.reason))
            .or_else(|| block.and_then(|block| block.code)),
        expected_start: None,
        latest_start: None,
        folded,
    }
}

fn task(job: &Job) -> Option<String> {
    job.spec.policy.array.map(|task| task.handle(job.id))
}

fn queue(job: &Job) -> Option<String> {
    let queue = job.spec.queue.as_str();
    (queue != DEFAULT_QUEUE).then(|| queue.to_owned())
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(LONGEST_REASON) {
        None => text,
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::ArrayTask;

    #[test]
    fn the_first_waiting_jobs_are_those_of_the_first_queues_and_places() {
        let mut first = FirstWaiting::default();
        for number in 0..100_usize {
            let id = JobId(number as u64);
            // Every third job has no place; places fall with numbers, in two queues.
            let place = (!number.is_multiple_of(3)).then_some((number % 2, 100 - number));
            first.offer(place, &job(id, None));
        }
        let found: Vec<u64> = first.jobs().map(|(id, _)| id.0).collect();
        assert_eq!(found, [98, 94, 92, 88, 86, 82, 80, 76]);
        let mut few = FirstWaiting::default();
        few.offer(None, &job(JobId(1), None));
        few.offer(Some((1, 1)), &job(JobId(3), None));
        few.offer(None, &job(JobId(2), None));
        assert_eq!(
            few.jobs().map(|(id, _)| id.0).collect::<Vec<_>>(),
            [3, 1, 2]
        );
    }

    #[test]
    fn the_tasks_of_an_array_hide_no_other_job() {
        let mut first = FirstWaiting::default();
        // Forty tasks with falling places, and a job behind them.
        for number in 0..40_u32 {
            let task = job(JobId(u64::from(number) + 5), Some((JobId(5), number)));
            first.offer(Some((0, 40 - number as usize)), &task);
        }
        first.offer(Some((0, 41)), &job(JobId(90), None));
        let found: Vec<(u64, bool)> = first
            .jobs()
            .map(|(id, key)| (id.0, key.is_some()))
            .collect();
        assert_eq!(found, [(44, true), (90, false)]);
    }

    fn job(id: JobId, task: Option<(JobId, u32)>) -> Job {
        let mut job = Job::queued(id, &crate::journal::tests::new(None));
        let mut spec = (*job.spec).clone();
        spec.policy.array = task.map(|(array, index)| ArrayTask {
            array: Some(array),
            index,
            most: None,
            count: None,
        });
        job.spec = spec.into();
        job
    }

    #[test]
    fn a_reason_on_the_board_has_a_bound() {
        assert_eq!(shortened("behind #1".into()), "behind #1");
        let long = shortened("ü".repeat(1000));
        assert_eq!(long.chars().count(), LONGEST_REASON + 1);
    }
}
