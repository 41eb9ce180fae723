//! Jobs: submission, job records, and the reasons why a job waits.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Bypass, Confirmation, Container, Folded, JobClaim, MigSlice, Output, Script, UnlistedHolder,
};

/// The amount of GPU that a job requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Amount {
    /// A part of one GPU, in thousandths (1 to 999).
    Share { thousandths: u16 },
    /// Memory on one GPU, in bytes.
    Memory { bytes: u64 },
    /// Whole GPUs.
    Whole { count: u32 },
    /// As many whole GPUs as are free, at least `min`, at most `max`.
    Range { min: u32, max: u32 },
    /// The same share on each of `count` different GPUs.
    Shares { count: u32, thousandths: u16 },
    /// A MIG instance of this profile: `2g.10gb`.
    Mig { profile: String },
}

/// The kind of enforcement that a job requests for its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Any kind: a slice of a shared GPU if there is one, otherwise a MIG instance.
    #[default]
    Any,
    /// The limiter: slices of shared GPUs only.
    Cooperative,
    /// The driver or stronger. Only MIG instances meet this today.
    Driver,
    /// The hardware: MIG instances only.
    Hardware,
}

/// The part that starts the job's program once the job has its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Runner {
    /// The daemon starts a supervisor, which outlives the daemon. Output goes to the job's log.
    #[default]
    Supervisor,
    /// The submitting client starts the program on its own terminal (`divvy run`).
    Client,
    /// No part of Divvy: another scheduler starts programs in the slices of a claim (`PUT /v1/claims/{uid}`). Not
    /// allowed in a submission.
    Claim,
}

/// Body of `POST /v1/jobs`: a job to submit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Submit {
    /// Program and arguments. Empty only with a container, whose image has a command of its own.
    pub command: Vec<String>,
    /// The container to run in. Absent: a plain process, or the daemon's default image.
    #[serde(default)]
    pub container: Option<Container>,
    #[serde(default)]
    pub name: Option<String>,
    /// Queue to wait in. Absent: `default`.
    #[serde(default)]
    pub queue: Option<String>,
    #[serde(default)]
    pub project: Option<String>,
    /// The requested amount. Absent: the amount that the queue gives each job.
    #[serde(default)]
    pub amount: Option<Amount>,
    /// Division of compute time: `fair`, `strict` or `none`.
    #[serde(default)]
    pub compute: Option<String>,
    /// Latency goal, such as `20ms`: the job is served before others while it keeps to its share. Needs `fair`. Absent:
    /// that of the queue or project, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    /// Indices of the GPUs that the job may use. Empty: any GPU.
    #[serde(default)]
    pub gpus_on: Vec<u32>,
    #[serde(default)]
    pub isolation: Isolation,
    /// The memory of a MIG instance must reach the requested bytes exactly; the rounded size in a profile's name does
    /// not count.
    #[serde(default)]
    pub memory_exact: bool,
    /// Working directory, an absolute path.
    pub cwd: String,
    /// The complete environment of the program. For a container: variables in addition to the image's.
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub runner: Runner,
    /// Refuse the job with `would_wait` if it cannot start at once.
    #[serde(default)]
    pub no_wait: bool,
    /// Report the outcome without changing anything.
    #[serde(default)]
    pub dry_run: bool,
    /// Idempotency key: a second submission with the same key returns the first job.
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// Priority from -1000 to 1000. Higher values come first in the queue and in the project.
    #[serde(default)]
    pub priority: i32,
    /// The job may use quota that other projects leave unused. In return, a job within its project's quota may
    /// preempt it, and it then waits again.
    #[serde(default)]
    pub preemptible: bool,
    /// Time limit in seconds. The daemon stops the job when it has run this long.
    #[serde(default)]
    pub time_limit_s: Option<u64>,
    /// Jobs that must end before this one starts.
    #[serde(default)]
    pub after: Vec<After>,
    /// Number of restarts after the program failed.
    #[serde(default)]
    pub retries: u32,
    /// Secret environment variables. No listing, log or event shows their values.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Rule for idle GPUs. Absent: the daemon's own rule. A milder rule requires the role operator.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// Submit one job for each index. The jobs differ only in the variable `DIVVY_ARRAY_INDEX`.
    #[serde(default)]
    pub array: Option<Array>,
    /// Wait for `POST /v1/jobs/{job}/confirm` once the job has its slices. The program does not start before that.
    #[serde(default)]
    pub confirm: bool,
    /// Seconds that the job keeps its slices without a confirmation, 1 to 86400. Absent: 60.
    #[serde(default)]
    pub confirm_within_s: Option<u64>,
    /// Labels by which a front end finds its jobs: at most 32, names of up to 64 letters, digits and `._-/:`, values
    /// of up to 256 bytes.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Hold the job until `POST /v1/jobs/{job}/release`. A held job delays no other job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// User on whose behalf a front end submits the job: one line of up to 200 bytes; the machine need not know this
    /// user. Lists, usage and metrics show this name, while the program runs as the caller. Requires the role
    /// operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Script to run. Absent: the command is a program. Not allowed with a container or on a client's terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// Files for the output. Absent: the job's log. Not allowed with a container or on a client's terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Command line for `sh -c`, at most 4096 bytes. The daemon runs it as the job's user when the job has ended: at most
    /// once, without GPUs, for at most one minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// Cancel the job when the process that makes this call has ended, by SIGKILL too. The kernel names that process,
    /// so this has no effect over TCP; the answer then has a warning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_client: bool,
}

/// Rule for a job whose GPUs are idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// Idle time in seconds before the action. 0 in a submission: never, regardless of the daemon's rule.
    pub after_s: u64,
    pub action: IdleAction,
}

/// Actions for an idle job, from the mildest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IdleAction {
    /// Record an event.
    Notify,
    /// Move the job's GPU memory to host memory when another job needs the room, or at once, as the daemon's key
    /// `park.when` says. For a job that cannot be parked, only record an event.
    Park,
    /// Suspend the job until a user resumes it; it keeps its memory. For a container, only record an event.
    Suspend,
    /// Stop the job. It ends with `idle_timeout`.
    Cancel,
}

/// A dependency: a job that has to end first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct After {
    /// Number of the job, or of an array, which stands for all jobs of the array. A submission may also give a name
    /// or `last`.
    pub job: String,
    /// Require exit code 0. If the job ends otherwise, the dependent job ends with `dependency_failed`.
    #[serde(default)]
    pub ok: bool,
}

/// `0-9%2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// Distinct indices, at most 10000.
    pub indices: Vec<u32>,
    /// Largest number of jobs of the array that hold slices at the same time. Absent: no limit.
    #[serde(default)]
    pub max_running: Option<u32>,
}

/// Position of a job in its array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ArrayTask {
    /// Number of the array's first job, which is also the number of the array.
    pub array: String,
    pub index: u32,
    /// Number of jobs that the array was submitted with. Absent for arrays of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Largest number of jobs of the array that hold slices at the same time. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
}

impl fmt::Display for ArrayTask {
    /// Handle `12_3`, by which other calls refer to this job.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}_{}", self.array, self.index)
    }
}

/// State of a job, as `ps` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    Starting,
    Running,
    Stopping,
    Ended,
}

/// Reason why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The program exited with code 0.
    Completed,
    /// The program exited with another code, or a signal ended it that Divvy did not send.
    Failed,
    Cancelled,
    /// Divvy could not start the program.
    LaunchFailed,
    /// The supervisor ended without writing an exit record, so the exit code is unknown.
    SupervisorLost,
    /// The daemon killed the job by policy: a process held GPU memory that the limiter did not count.
    Bypass,
    /// The job reached its time limit.
    TimeLimit,
    /// The job's GPUs were idle for as long as its rule allows.
    IdleTimeout,
    /// The job never started: a job that it depends on did not succeed.
    DependencyFailed,
    /// One of the job's GPUs fell off the bus or was removed.
    GpuLost,
    /// The claim was released, or the machine was rebooted.
    Released,
}

impl JobState {
    pub const ALL: [Self; 5] = [
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Ended,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }
}

impl EndReason {
    pub const ALL: [Self; 11] = [
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::LaunchFailed,
        Self::SupervisorLost,
        Self::Bypass,
        Self::TimeLimit,
        Self::IdleTimeout,
        Self::DependencyFailed,
        Self::GpuLost,
        Self::Released,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::LaunchFailed => "launch_failed",
            Self::SupervisorLost => "supervisor_lost",
            Self::Bypass => "bypass",
            Self::TimeLimit => "time_limit",
            Self::IdleTimeout => "idle_timeout",
            Self::DependencyFailed => "dependency_failed",
            Self::GpuLost => "gpu_lost",
            Self::Released => "released",
        }
    }
}

/// Reason code of a pending job. `insufficient` to `preempting` are also labels of the metric `divvy_pending_jobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReasonCode {
    /// It is the job's turn, but the GPUs have too little room.
    Insufficient,
    /// Other jobs are ahead in the queue.
    Behind,
    /// The job would fit, but its start could delay a job ahead that has a reservation.
    Reserved,
    /// The GPUs that the job needs are no longer present.
    Unsatisfiable,
    /// The GPUs that the job needs are out of service.
    OutOfService,
    /// The job's project has reached its limit or quota.
    Quota,
    /// An earlier job of the same project waits for quota.
    BehindQuota,
    /// The job's user has reached the limit of GPUs for each user.
    UserLimit,
    /// An earlier job of the same user waits for that limit.
    BehindUserLimit,
    /// The job is within its project's quota, and other jobs are being preempted for it.
    Preempting,
    /// A job that it depends on has not ended.
    Dependency,
    /// Its array already has as many running jobs as it may.
    ArrayLimit,
    /// The front end has not confirmed the job yet.
    Confirmation,
    /// The daemon's disk is full, so that no job starts.
    DiskFull,
    /// The job is held until `POST /v1/jobs/{job}/release`.
    Held,
}

impl ReasonCode {
    pub const ALL: [Self; 15] = [
        Self::Insufficient,
        Self::Behind,
        Self::Reserved,
        Self::Unsatisfiable,
        Self::OutOfService,
        Self::Quota,
        Self::BehindQuota,
        Self::UserLimit,
        Self::BehindUserLimit,
        Self::Preempting,
        Self::Dependency,
        Self::ArrayLimit,
        Self::Confirmation,
        Self::DiskFull,
        Self::Held,
    ];

    /// The name in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Insufficient => "insufficient",
            Self::Behind => "behind",
            Self::Reserved => "reserved",
            Self::Unsatisfiable => "unsatisfiable",
            Self::OutOfService => "out_of_service",
            Self::Quota => "quota",
            Self::BehindQuota => "behind_quota",
            Self::UserLimit => "user_limit",
            Self::BehindUserLimit => "behind_user_limit",
            Self::Preempting => "preempting",
            Self::Dependency => "dependency",
            Self::ArrayLimit => "array_limit",
            Self::Confirmation => "confirmation",
            Self::DiskFull => "disk_full",
            Self::Held => "held",
        }
    }
}

/// Reads a reason code; a code of a later version becomes `None`.
fn known<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ReasonCode>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    Ok(word.and_then(|word| (ReasonCode::ALL.into_iter()).find(|code| code.name() == word)))
}

impl Job {
    /// The handle of this job alone: its number, or `12_3` for a job of an array.
    pub fn reference(&self) -> String {
        let task = self.array.as_ref().map(ToString::to_string);
        task.unwrap_or_else(|| self.id.clone())
    }
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Job {
    pub id: String,
    pub name: String,
    pub user: String,
    /// Number (uid) of the submitting user; the program runs as this user.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The job belongs to another user: command, folders, container, secrets and error texts are removed.
    #[serde(default)]
    pub redacted: bool,
    /// The control group or session of the job's processes. Absent before the start, in lists of ended jobs, and for
    /// containers.
    #[serde(default)]
    pub group: Option<JobGroup>,
    pub project: Option<String>,
    pub queue: String,
    pub state: JobState,
    pub end_reason: Option<EndReason>,
    /// Sentence on why Divvy stopped the program: `its time limit of 2h was reached`, `cancelled by ana (uid 1001)`.
    /// Absent if Divvy did not stop it, and for other users' jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_detail: Option<String>,
    /// User who requested the stop. Absent if a limit or a rule stopped the job, and for other users' jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Asker>,
    /// Time at which the daemon began to stop the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// Exit code of the program, or 128+N if signal N ended it.
    pub exit_code: Option<i32>,
    pub request: Amount,
    #[serde(default)]
    pub isolation: Isolation,
    /// As in the submission.
    #[serde(default)]
    pub memory_exact: bool,
    /// Division of compute time: `fair`, `strict` or `none`, followed by `=0.25` if the share differs from the share
    /// of the memory. A latency goal follows as `,latency=20ms`.
    pub compute: String,
    /// Compute time that the job gets. Absent while the job has its GPUs to itself.
    #[serde(default)]
    pub compute_time: Option<ComputeTime>,
    pub slices: Vec<Slice>,
    /// For a pending job: what it waits for. For a failed job: the error.
    pub reason: Option<String>,
    /// Reason code, for programs. Absent if `reason` is about something else.
    #[serde(
        default,
        deserialize_with = "known",
        skip_serializing_if = "Option::is_none"
    )]
    pub reason_code: Option<ReasonCode>,
    /// Position in the queue, from 1. Absent unless the job is queued.
    pub place: Option<u32>,
    pub command: Vec<String>,
    /// The container that the command runs in. Absent for a plain process.
    #[serde(default)]
    pub container: Option<Container>,
    pub cwd: String,
    pub runner: Runner,
    /// Process ID of the running program.
    pub pid: Option<u32>,
    pub submitted_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Path of the job's folder, which holds its log and its exit record.
    pub directory: String,
    /// Path of the slice folder while the job holds slices.
    pub slice_directory: Option<String>,
    /// Processes of the job that held GPU memory which the limiter did not count, oldest first.
    #[serde(default)]
    pub bypasses: Vec<Bypass>,
    /// In a list with `fold=true`: the tasks that this item stands for; the other fields show the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<Folded>,
    /// Form in which the limiter was loaded into the program. Absent before the start, and in lists of ended jobs.
    #[serde(default)]
    pub limiter: Option<Limiter>,
    /// Number of calls that the limiter passed to the driver without counting or throttling them, or that failed
    /// inside the limiter, while the job holds its slices. Absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncounted_calls: Option<u64>,
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub preemptible: bool,
    #[serde(default)]
    pub time_limit_s: Option<u64>,
    /// Jobs that the job depends on.
    #[serde(default)]
    pub after: Vec<After>,
    #[serde(default)]
    pub retries: u32,
    /// Number of times that the job returned to its queue after its program had started.
    #[serde(default)]
    pub runs_before: u32,
    /// All processes of the job are stopped until a user resumes the job. Its memory stays charged.
    #[serde(default)]
    pub suspended: bool,
    /// Place of the GPU memory of a job that was parked, or suspended with `release_memory`. Absent for other jobs. A
    /// parked job is not `suspended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<JobMemory>,
    /// Rule for idle GPUs. Absent: no rule.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// Seconds for which the job's GPUs have been idle, as far as observed. Absent while the job does not run, is
    /// suspended, or is on a MIG instance, where the driver reports no use.
    #[serde(default)]
    pub idle_s: Option<u64>,
    #[serde(default)]
    pub array: Option<ArrayTask>,
    /// Names of the secret variables.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Expected start of a pending job, in answers for one job: no other job arrives, and each job ahead runs up to
    /// its time limit. Absent if one of those jobs has no time limit.
    #[serde(default)]
    pub expected_start: Option<Timestamp>,
    /// Latest start of a pending job, whenever the jobs ahead end within their time limits. Absent if a job ahead has
    /// no time limit, if the order is not certain (projects), or if the computation is too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_start: Option<Timestamp>,
    /// Number of times that the job was given slices.
    #[serde(default)]
    pub attempt: u32,
    /// State of the confirmation. Absent for a job that starts without one.
    #[serde(default)]
    pub confirmation: Option<Confirmation>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The claim that this job stands for (runner `claim`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<JobClaim>,
    /// Files of the output. Absent if the output goes to the job's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Command that the daemon runs when the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// Process ID of the client with which the job ends (`with_client`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_pid: Option<u32>,
    /// User who holds the pending job. Absent for a job that is not held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<JobHold>,
    /// In the answer to a submission: what the user may not have meant, such as an unknown name of a project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A hold on a pending job: its user and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobHold {
    pub by: String,
    /// An operator holds another user's job; only operators can release it.
    pub operator: bool,
    pub since: Timestamp,
}

/// A user who made a request, identified by the kernel's peer credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Asker {
    pub uid: u32,
    pub name: String,
}

/// Place of the GPU memory of a suspended or parked job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobMemory {
    pub place: MemoryPlace,
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlace {
    /// On the GPU: the release failed, and the job's `reason` has the cause.
    Gpu,
    /// The driver is copying it to host memory.
    Offloading,
    /// In host memory; the job holds no GPU.
    Host,
    /// In host memory; the job is being resumed or woken, and room on its GPUs is reserved.
    RestorePending,
    /// The driver is copying it back to the GPU.
    Restoring,
}

/// The control group or session that contains a job's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobGroup {
    /// Path of the control group (cgroup v2). Absent if a session contains the processes.
    pub path: Option<String>,
    /// Reason why there is no control group.
    pub reason: Option<String>,
    /// Limit on the number of processes. Absent for jobs that an earlier version of Divvy started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<TaskBound>,
}

/// Limit on the number of a job's processes and threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TaskBound {
    pub by: TaskBoundKind,
    /// The limit. Absent if there is none.
    pub max: Option<u64>,
    /// User (uid) whose processes and threads all count, inside and outside jobs. Absent if only the job's own count.
    pub uid: Option<u32>,
    /// Reason why the control group sets no limit.
    pub reason: Option<String>,
}

/// The part of the kernel that counts a job's processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskBoundKind {
    /// The `pids` controller of the control group.
    Group,
    /// The limit of the user (`RLIMIT_NPROC`).
    User,
    /// No part: `RLIMIT_NPROC` does not apply to root.
    Nothing,
}

/// Form in which the limiter was loaded into a job's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Limiter {
    pub form: LimiterForm,
    /// Reason why the stronger form, the wrapper, was not possible.
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimiterForm {
    /// Loaded before every library, through `LD_PRELOAD`.
    Preload,
    /// Mounted in the place of the driver's libraries, in a mount namespace of the job.
    Wrapper,
}

/// Compute time of a slice on its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ComputeTime {
    /// Share of the slice, in thousandths of each GPU.
    pub share_asked: u16,
    /// Use of each GPU over the last ten seconds, as the processes measured it, in thousandths. Absent while no other
    /// slice is on the GPUs, because nothing is measured then.
    pub share_used: Option<u16>,
    /// Time that the slice's threads have waited at the launch gate, in milliseconds, summed over all threads.
    pub throttled_ms: u64,
    /// Requests of the last minute, for a job with a latency goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyTime>,
}

/// Requests of a job with a latency goal over the last minute, while other jobs wanted its GPUs: from a launch that
/// waited until the job had no more work. The daemon measures them, to about a millisecond. A goal is not a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LatencyTime {
    /// The goal, in microseconds.
    pub goal_us: u64,
    /// Number of requests.
    pub requests: u32,
    /// Requests that took longer than the goal.
    pub missed: u32,
    /// Median of the time at the launch gate, in microseconds.
    pub wait_p50_us: u64,
    /// The time at the launch gate that 99 of 100 requests do not exceed.
    pub wait_p99_us: u64,
    /// Median of the time from the launch to the end of the work.
    pub work_p50_us: u64,
    /// The same that 99 of 100 requests do not exceed.
    pub work_p99_us: u64,
    /// The job has used up its share, and waits like the others for a while.
    pub over_share: bool,
    /// The most frequent cause of missed goals.
    pub cause: Option<LatencyCause>,
}

/// Cause of a missed latency goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LatencyCause {
    /// The job had used up its share.
    OverShare,
    /// The job's own work takes longer than the goal.
    OwnWork { work_us: u64 },
    /// A job with `none` runs beside it.
    UngatedNeighbour,
    /// Work of this job was on the GPU for about so long. A kernel is not interrupted.
    Neighbour { job: u64, work_us: u64 },
    /// None of these. Perhaps the host was busy, or the goal is below a time slice of the driver.
    Unknown,
}

/// A slice of one GPU that a job holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Slice {
    /// Label of the slice. `gpu2.25a`: GPU index, share, letter; `gpu0.1g.5gb@3`: GPU index, MIG profile, slot.
    pub label: String,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub memory_limit_bytes: u64,
    /// Share in thousandths of the GPU.
    pub share: u16,
    /// Bytes charged in the ledger now: allocations and context overhead of all processes.
    pub memory_used_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u32,
    /// Number of allocations that the limiter has refused so far.
    pub denials: u64,
    /// Size of the last refused allocation, in bytes.
    pub last_denied_bytes: Option<u64>,
    /// Enforcement of the limit: `interposer` (the limiter), `driver` (its own limit, with the limiter on top) or `mig`.
    pub enforcement: String,
    /// Since when the driver's own limit is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforced_since: Option<Timestamp>,
    /// UUID of the GPU or MIG device that the job's programs see. Absent before a MIG device exists.
    #[serde(default)]
    pub device_uuid: Option<String>,
    /// The MIG instance behind the slice.
    #[serde(default)]
    pub mig: Option<MigSlice>,
    /// Bytes that the slice's processes hold according to the driver. Absent while no process runs, and if the driver
    /// does not report it.
    #[serde(default)]
    pub memory_driver_bytes: Option<u64>,
    /// The driver's figure minus the ledger's figure, in bytes. Absent if the two cannot be compared.
    #[serde(default)]
    pub memory_mismatch_bytes: Option<i64>,
    /// The largest mismatch so far, in bytes, in either direction.
    #[serde(default)]
    pub memory_mismatch_max_bytes: u64,
    /// Bytes that count against the limit although the ledger lacks them, because the driver reports them.
    #[serde(default)]
    pub memory_unaccounted_bytes: u64,
    /// Present while the job may hold memory of the GPU that the driver lists for no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_unlisted: Option<UnlistedHolder>,
    /// Target of a resize to a smaller limit, in bytes. The limiter refuses allocations beyond it already; the daemon
    /// frees the rest once the job uses no more than this.
    #[serde(default)]
    pub memory_target_bytes: Option<u64>,
    /// Share that belongs to the target.
    #[serde(default)]
    pub share_target: Option<u16>,
    /// The largest charge since the last resize of the job, in bytes; since its start without one. Absent in a job that has
    /// ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_recent_peak_bytes: Option<u64>,
}

/// Body of `POST /v1/jobs/{id}/cancel`. Only the daemon's own user may set a field: the fields are for its front ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelJob {
    /// Why the job ends, in the front end's words, at most 256 bytes: `dequeued on the ClearML server by Ana`. Absent:
    /// the caller cancels it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Delete the job's record. It only stood for work in another system's queue, and its program never started. Not
    /// allowed once it was confirmed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdraw: bool,
}

/// Body of `POST /v1/jobs/{id}/suspend`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Suspend {
    /// Copy the job's GPU memory to host memory and free its GPUs. The answer arrives when the copy is complete or
    /// has failed. After a failure the job is suspended, with `gpu_memory` at `gpu`.
    #[serde(default)]
    pub release_memory: bool,
}

/// Body of `POST /v1/jobs/{id}/resize`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// New amount on each GPU that the running job holds. Absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// New division of compute time, as in a submission: `fair`, `strict=0.25`. Absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
}

/// Body of `POST /v1/jobs/{id}/change`. The daemon applies all fields or none; absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// New queue. A job with its queue's amount gets the amount of the new queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Move the job to the front of its queue among jobs of equal priority; for users, among their own jobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub top: bool,
    /// New amount of a pending job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// New priority of a pending job, as in a submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// New time limit in seconds, 0 for none. Only operators can extend the limit of a running job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// New name, without the index for a job of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Answer of `GET /v1/jobs/{id}/why`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Why {
    pub job: String,
    pub state: JobState,
    pub queue: String,
    pub place: Option<u32>,
    /// Summary in one sentence: `needs 1 whole GPU; 2.75 of 3 GPUs in use`.
    pub summary: String,
    /// One entry per GPU, with each requirement that is not met there. Empty if the job is not pending.
    pub gpus: Vec<WhyGpu>,
    /// Numbers of the jobs ahead of this one.
    pub behind: Vec<String>,
    /// Changes that would start the job now, cheapest first, as text.
    pub suggestions: Vec<String>,
    /// The same changes for programs, in the same order.
    #[serde(default)]
    pub suggested_changes: Vec<WhyChange>,
    /// As of the job.
    #[serde(
        default,
        deserialize_with = "known",
        skip_serializing_if = "Option::is_none"
    )]
    pub reason_code: Option<ReasonCode>,
    /// As of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<Timestamp>,
    /// As of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_start: Option<Timestamp>,
    /// Estimated start: no other job arrives, and each job ahead runs as long as similar runs usually did, or up to
    /// its time limit if that is shorter. Absent if neither is known for a job ahead, or if only time limits are
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_start: Option<Timestamp>,
    /// Note of the front end, from the job's label `note`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A change that would start a pending job now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhyChange {
    pub text: String,
    /// The command for the change, word by word. Absent if there is none, or if the daemon would refuse it from this
    /// caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// A GPU from the point of view of a pending job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhyGpu {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    /// Unmet requirements, such as `0.75 in use, a whole GPU is needed`. Empty if the job would fit here.
    pub unmet: Vec<String>,
    /// Holders of the GPU as text, such as `#2 quarter_gpu 0.25`.
    pub holders: Vec<String>,
    /// The same holders for programs, in the same order, with their known or estimated ends.
    #[serde(default)]
    pub held_by: Vec<WhyHolder>,
}

/// A job that holds a GPU or a slice of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhyHolder {
    pub job: String,
    /// Name and user of the job. Empty for an unknown job, and from daemons up to 0.1.0.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub user: String,
    pub queue: String,
    /// Size of what the job holds on this GPU: `0.25`, `1g.5gb@3`.
    pub size: String,
    /// Share in thousandths of the GPU.
    pub share: u16,
    pub memory_bytes: u64,
    /// The job holds no memory here now: its memory is in host memory, and the room is reserved for its resume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserved: bool,
    /// Latest end, from the time limit and the grace period. Absent for a job without a limit, with retries, or not
    /// yet confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
    /// Estimated end, if the job takes as long as similar runs did. In the past if it has already taken longer.
    /// Absent if too few runs are known, and while the job is suspended or stopping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usually_ends: Option<Timestamp>,
    /// The runs behind the estimate. Absent without an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_run: Option<UsualRun>,
}

/// Duration of similar runs: same user, name and amount; the newest ones that ended with exit code 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UsualRun {
    /// Median duration in seconds.
    pub median_s: u64,
    /// Number of runs, at least 3.
    pub runs: u32,
}

/// An event, in the order of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Event {
    /// Sequence number, which grows by one. Resume with `?after=SEQ`.
    pub seq: u64,
    pub at: Timestamp,
    pub job: Option<String>,
    /// Kind of the event: `submitted`, `starting`, `running`, `ended`, …
    pub kind: String,
    pub text: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_reference_lists_exactly_the_reason_codes() {
        let page = include_str!("../../../../docs/reference.md");
        let (_, table) = page.split_once("\n| `reason_code` |").unwrap();
        let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
        let mut listed: Vec<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
        listed.sort_unstable();
        let mut known = ReasonCode::ALL.map(ReasonCode::name);
        known.sort_unstable();
        assert_eq!(listed, known);
    }

    #[test]
    fn states_and_end_reasons_have_the_names_that_json_has() {
        let states = JobState::ALL.map(|state| (json!(state), state.name()));
        let reasons = EndReason::ALL.map(|reason| (json!(reason), reason.name()));
        for (written, name) in states.into_iter().chain(reasons) {
            assert_eq!(written, name);
        }
    }

    #[test]
    fn a_word_of_a_later_version_for_what_a_job_waits_for_is_none() {
        let mut job = json!({
            "id": "4", "name": "train", "user": "ana", "queue": "single_gpu", "state": "queued",
            "request": {"kind": "whole", "count": 1}, "compute": "fair", "slices": [],
            "command": ["true"], "cwd": "/", "runner": "supervisor",
            "submitted_at": "2026-01-02T03:04:05Z", "directory": "/",
        });
        let mut why = json!({
            "job": "4", "state": "queued", "queue": "single_gpu", "summary": "", "gpus": [],
            "behind": [], "suggestions": [],
        });
        let known = ReasonCode::ALL.map(|code| (json!(code), Some(code)));
        let others = [(json!("of_tomorrow"), None), (json!(null), None)];
        for (word, code) in known.into_iter().chain(others) {
            job["reason_code"] = word.clone();
            why["reason_code"] = word;
            let read: Job = serde_json::from_value(job.clone()).unwrap();
            assert_eq!(read.reason_code, code);
            let read: Why = serde_json::from_value(why.clone()).unwrap();
            assert_eq!(read.reason_code, code);
        }
        for text in [&mut job, &mut why] {
            text.as_object_mut().unwrap().remove("reason_code");
        }
        assert_eq!(
            serde_json::from_value::<Job>(job).unwrap().reason_code,
            None
        );
        assert_eq!(
            serde_json::from_value::<Why>(why).unwrap().reason_code,
            None
        );
    }
}
