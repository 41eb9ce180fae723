//! Job views: the controller gathers what only it knows of a job. Another thread converts it for the API, as a list of
//! ten thousand jobs takes longer than a round should.

use divvy_api::home::Home;
use divvy_api::v1;
use divvy_api::v1::EndReason;
use divvy_api::v1::ReasonCode;
use divvy_api::v1::TaskBoundKind;
use divvy_core::JobId;
use divvy_core::JobState;
use divvy_core::Wait;

use crate::controller::state::mig::is_divided;
use crate::host::cgroup::CgroupStatus;
use crate::host::task_limits::TaskBound;
use crate::job_dir::JobDir;
use crate::job_dir::injection::{InjectedLimiter, InjectionMode};
use crate::model::bypass::Bypass;
use crate::model::idle::Rule;
use crate::model::job::Job;
use crate::model::policy;
use crate::model::policy::Hold;
use crate::supervisor::output;

/// A job as the controller sees it.
pub struct JobView {
    pub(in crate::controller) job: Job,
    pub(in crate::controller) slices: Vec<v1::Slice>,
    pub(in crate::controller) compute_time: Option<v1::ComputeTime>,
    /// The alarm counter of its slice.
    pub(in crate::controller) alarm_count: Option<u64>,
    pub(in crate::controller) wait: Option<Wait>,
    /// Why it is not even considered in its queue.
    pub(in crate::controller) block_reason: Option<BlockReason>,
    pub(in crate::controller) idle: Option<Rule>,
    pub(in crate::controller) idle_s: Option<u64>,
    pub(in crate::controller) claim: Option<v1::JobClaim>,
    /// The folder of its supervisor's records, if it has been placed.
    pub(in crate::controller) records: Option<JobDir>,
}

impl JobView {
    /// The job in the form of the API.
    pub fn into_api(self, home: &Home) -> v1::Job {
        let job = self.job;
        let id = job.id.to_string();
        let holds = !job.state.grants().is_empty();
        let state = state(&job.state);
        let wait = self.wait.filter(|_| state == v1::JobState::Queued);
        let code = wait.as_ref().map(|wait| ReasonCode::from(&wait.reason));
        let ask = &job.spec;
        let stopped = job.stopped();
        let record = self.records.and_then(|records| records.record().ok());
        let record = record.unwrap_or_default();
        v1::Job {
            name: ask.name.clone(),
            user: ask.user.clone(),
            uid: Some(ask.credentials.uid),
            group: record.held.map(group),
            redacted: false,
            project: ask.project.clone(),
            queue: ask.queue.to_string(),
            state,
            end_reason: job.state.outcome().map(EndReason::from),
            stopped_at: stopped.as_ref().map(|stopped| stopped.at),
            ended_by: (stopped.as_ref())
                .and_then(|stopped| stopped.cause.by.as_ref())
                .map(v1::Asker::from),
            end_detail: stopped.map(|stopped| stopped.cause.words),
            exit_code: job.exit_code,
            request: job.request().amount.into(),
            isolation: ask.request.isolation.into(),
            memory_exact: ask.request.exact,
            compute: job.compute().to_string(),
            compute_time: self.compute_time,
            slices: self.slices,
            reason: (wait.as_ref().map(|wait| wait.reason.to_string()))
                .or_else(|| {
                    self.block_reason
                        .as_ref()
                        .map(|held_up| held_up.message.clone())
                })
                .or_else(|| job.reason.clone()),
            reason_code: code.or_else(|| self.block_reason?.code),
            place: wait.and_then(|wait| u32::try_from(wait.place).ok()),
            command: ask.command.clone(),
            container: ask.container.clone(),
            cwd: ask.cwd.clone(),
            runner: ask.runner,
            pid: job.state.process().map(|process| process.pid),
            submitted_at: job.submitted_at,
            started_at: job.started_at,
            ended_at: job.ended_at,
            directory: home.job(&id).display().to_string(),
            slice_directory: (holds && !is_divided(job.state.grants()))
                .then(|| home.slice(&id).display().to_string()),
            bypasses: job.bypasses.iter().map(Bypass::to_api).collect(),
            folded: None,
            limiter: record.limiter.map(limiter),
            uncounted_calls: self.alarm_count,
            priority: ask.policy.priority,
            preemptible: ask.policy.preemptible,
            time_limit_s: ask.policy.time_limit_s,
            after: ask
                .policy
                .after
                .iter()
                .map(policy::dependency_to_api)
                .collect(),
            retries: ask.policy.retries,
            runs_before: job.run_state.runs,
            suspended: job.run_state.suspended,
            gpu_memory: job.memory(),
            idle: self.idle.map(Rule::to_api),
            idle_s: self.idle_s,
            array: ask.policy.array.map(|task| v1::ArrayTask {
                array: task.array_of(job.id).to_string(),
                index: task.index,
                count: task.count,
                max_running: task.most,
            }),
            secrets: ask.secrets.clone(),
            expected_start: None,
            latest_start: None,
            attempt: job.attempt,
            confirmation: job.confirmation(),
            labels: ask.policy.labels.clone(),
            claim: self.claim,
            hold: job.on_hold().map(Hold::to_api),
            output: output::output_of(&job),
            notify: ask.policy.notify.clone(),
            client_pid: ask.policy.tie.as_ref().map(|tie| tie.client.pid),
            warnings: Vec::new(),
            id,
        }
    }
}

impl JobView {
    pub fn id(&self) -> JobId {
        self.job.id
    }
}

/// The cgroup of a job, as its supervisor recorded it.
fn group(held: CgroupStatus) -> v1::JobGroup {
    v1::JobGroup {
        path: held.group.map(|path| path.display().to_string()),
        reason: held.because,
        bound: held.tasks.map(bound),
    }
}

fn bound(tasks: TaskBound) -> v1::TaskBound {
    let (by, most, uid, reason) = match tasks {
        TaskBound::Group { most } => (TaskBoundKind::Group, Some(most), None, None),
        TaskBound::User { uid, most, because } => {
            (TaskBoundKind::User, Some(most), Some(uid), Some(because))
        }
        TaskBound::Nothing { because } => (TaskBoundKind::Nothing, None, None, Some(because)),
    };
    v1::TaskBound {
        by,
        max: most,
        uid,
        reason,
    }
}

/// The limiter of a job, as its supervisor recorded it.
fn limiter(limiter: InjectedLimiter) -> v1::Limiter {
    v1::Limiter {
        form: match limiter.form {
            InjectionMode::Preload => v1::LimiterForm::Preload,
            InjectionMode::Wrapper => v1::LimiterForm::Wrapper,
        },
        reason: limiter.because,
    }
}

pub(in crate::controller) fn state(state: &JobState) -> v1::JobState {
    match state {
        JobState::Queued => v1::JobState::Queued,
        JobState::Starting { .. } => v1::JobState::Starting,
        JobState::Running { .. } | JobState::Bound { .. } => v1::JobState::Running,
        JobState::Stopping { .. } => v1::JobState::Stopping,
        JobState::Ended { .. } => v1::JobState::Ended,
    }
}

/// Why a job does not progress, apart from its turn in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReason {
    /// `None` for a job that has been placed, and so waits for no turn.
    pub code: Option<ReasonCode>,
    pub message: String,
}
