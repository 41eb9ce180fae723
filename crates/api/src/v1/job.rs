//! Jobs: what is submitted, what is shown, why one waits.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Bypass, Confirmation, Container, JobClaim, MigSlice, Output, Script};

/// How much GPU a job asks for.
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
    /// The same share on `count` different GPUs.
    Shares { count: u32, thousandths: u16 },
    /// A MIG instance of this profile: `2g.10gb`.
    Mig { profile: String },
}

/// What is to hold a slice's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Parts of shared GPUs first, MIG instances then.
    #[default]
    Any,
    /// The limiter: parts of shared GPUs only.
    Cooperative,
    /// At least the driver. Of what there is only a MIG instance does.
    Driver,
    /// The GPU itself: MIG instances only.
    Hardware,
}

/// Who starts the program once it has its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Runner {
    /// The agent starts a supervisor that outlives it; output goes to the job's log.
    #[default]
    Supervisor,
    /// The submitting client starts it, on its own terminal (`divvy run`).
    Client,
    /// Nobody here: another scheduler has given what the job holds to others, who start theirs in it (`PUT /v1/claims/{uid}`). Not for
    /// submissions.
    Claim,
}

/// `POST /v1/jobs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Submit {
    /// Program and arguments; may be empty only with a container, whose image has its own.
    pub command: Vec<String>,
    /// Absent: a plain process, or the daemon's own container.
    #[serde(default)]
    pub container: Option<Container>,
    #[serde(default)]
    pub name: Option<String>,
    /// Queue to wait in; `default` when absent.
    #[serde(default)]
    pub queue: Option<String>,
    #[serde(default)]
    pub project: Option<String>,
    /// Absent: the queue's own amount.
    #[serde(default)]
    pub amount: Option<Amount>,
    /// `fair`, `strict` or `none`.
    #[serde(default)]
    pub compute: Option<String>,
    /// Only GPUs with these indices; empty means any.
    #[serde(default)]
    pub gpus_on: Vec<u32>,
    #[serde(default)]
    pub isolation: Isolation,
    /// Memory is meant to the byte: a MIG instance whose name says enough and whose memory is less will not do.
    #[serde(default)]
    pub memory_exact: bool,
    /// Working directory, absolute.
    pub cwd: String,
    /// The program's environment, whole; in a container, besides the image's.
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub runner: Runner,
    /// Refuse with `would_wait` instead of queueing.
    #[serde(default)]
    pub no_wait: bool,
    /// Say what would happen and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The same key submits once: a repeat answers with the first job.
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// Higher first in its queue and its project, -1000 to 1000.
    #[serde(default)]
    pub priority: i32,
    /// It may be stopped for a job that is within its project's quota, and waits again then; in return it may use what other
    /// projects leave.
    #[serde(default)]
    pub preemptible: bool,
    /// It is stopped once it has run for so long.
    #[serde(default)]
    pub time_limit_s: Option<u64>,
    /// It waits until these have ended.
    #[serde(default)]
    pub after: Vec<After>,
    /// How often its program is started again after it failed.
    #[serde(default)]
    pub retries: u32,
    /// More of the program's environment, which is kept out of everything that can be read.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Absent: the daemon's own rule. One that is milder takes the role operator.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// One job for each index, alike but for the variable `DIVVY_ARRAY_INDEX`.
    #[serde(default)]
    pub array: Option<Array>,
    /// Once it has its slice it waits for `POST /v1/jobs/{job}/confirm`, and nothing of it is started before that.
    #[serde(default)]
    pub confirm: bool,
    /// How long it keeps its slice while nobody confirms it or waits for it, 1 to 86400 seconds; absent: 60.
    #[serde(default)]
    pub confirm_within_s: Option<u64>,
    /// What a front end wants to find again on its jobs: at most 32, names of up to 64 letters, digits and `._-/:`, values of up
    /// to 256 bytes.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// It waits, and holds no other job up, until `POST /v1/jobs/{job}/release`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// The user on whose behalf a front end submits it, who need not be a user of the machine: up to 200 bytes on one line.
    /// Lists, usage and metrics show this user; the program runs as the caller, to whom the job belongs. Takes the role operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The script that it runs; absent: the command is a program. Not with a container or on a client's terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// Absent: the job's log. Not with a container or on a client's terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// A line for `sh -c`, at most 4096 bytes, that the daemon starts as the job's user when the job has ended: at most once, without
    /// GPUs, for a minute at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

/// What is done with a job that does nothing with its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// After so many seconds; 0 in a submission: never, whatever the daemon's own rule is.
    pub after_s: u64,
    pub action: IdleAction,
}

/// In the order of how much they take from the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IdleAction {
    /// An event tells of it.
    Notify,
    /// Its processes are stopped, and it keeps its memory, until somebody resumes it. A container is only told of.
    Suspend,
    /// It is stopped, and ends with `idle_timeout`.
    Cancel,
}

/// A job that another runs after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct After {
    /// Its number, or the number of an array, which means all jobs of that; in a submission its name or `last` too.
    pub job: String,
    /// Only if it exits with code 0; otherwise the job that waits ends with `dependency_failed`.
    #[serde(default)]
    pub ok: bool,
}

/// `0-9%2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// Different ones, at most 10000.
    pub indices: Vec<u32>,
    /// So many of its jobs hold something at once; absent: any number.
    #[serde(default)]
    pub max_running: Option<u32>,
}

/// Which of an array's jobs one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ArrayTask {
    /// The array's first job, whose number is also the array's.
    pub array: String,
    pub index: u32,
    /// How many jobs the array was submitted with; absent for arrays of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// So many of the array's jobs hold something at once; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
}

impl fmt::Display for ArrayTask {
    /// `12_3`: what other calls refer to the job by.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}_{}", self.array, self.index)
    }
}

/// A job's life, as `ps` shows it.
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

/// Why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The program exited with code 0.
    Completed,
    /// It exited with another code, or by a signal that Divvy did not send.
    Failed,
    Cancelled,
    /// The program could not be started.
    LaunchFailed,
    /// Its supervisor is gone without a record, so its exit code is unknown.
    SupervisorLost,
    /// Divvy killed it: it held GPU memory past the limiter, and that is the daemon's policy.
    Bypass,
    /// It was stopped at the end of the time it was given.
    TimeLimit,
    /// It was stopped because it did nothing with its GPUs for as long as the rule says.
    IdleTimeout,
    /// It never started: a job that it was to run after did not end well.
    DependencyFailed,
    /// A GPU that it was on fell off the bus, or is not there any more.
    GpuLost,
    /// A claim was given back, or the machine was started anew since.
    Released,
}

/// What a job waits for, in one word. `insufficient` to `preempting` are those of the metric `divvy_pending_jobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReasonCode {
    /// It is its turn, and it does not fit.
    Insufficient,
    /// It waits for its turn.
    Behind,
    /// It would fit, and starting it now might delay a job ahead.
    Reserved,
    /// The GPUs that it needs are not there any more.
    Unsatisfiable,
    /// Its project may not take so much.
    Quota,
    /// A job of its project waits for that.
    BehindQuota,
    /// It is within its project's quota, and others make room for it.
    Preempting,
    /// A job that it runs after has not ended.
    Dependency,
    /// Its array has as many jobs at once as it may.
    ArrayLimit,
    /// It was not confirmed yet.
    Confirmation,
    /// The disk of the daemon is full, and no job starts.
    DiskFull,
    /// It is held until `POST /v1/jobs/{job}/release`.
    Held,
}

impl ReasonCode {
    pub const ALL: [Self; 12] = [
        Self::Insufficient,
        Self::Behind,
        Self::Reserved,
        Self::Unsatisfiable,
        Self::Quota,
        Self::BehindQuota,
        Self::Preempting,
        Self::Dependency,
        Self::ArrayLimit,
        Self::Confirmation,
        Self::DiskFull,
        Self::Held,
    ];

    /// As JSON and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Insufficient => "insufficient",
            Self::Behind => "behind",
            Self::Reserved => "reserved",
            Self::Unsatisfiable => "unsatisfiable",
            Self::Quota => "quota",
            Self::BehindQuota => "behind_quota",
            Self::Preempting => "preempting",
            Self::Dependency => "dependency",
            Self::ArrayLimit => "array_limit",
            Self::Confirmation => "confirmation",
            Self::DiskFull => "disk_full",
            Self::Held => "held",
        }
    }
}

/// A word of a later version is as good as none to whoever does not know it.
fn known<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ReasonCode>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    Ok(word.and_then(|word| (ReasonCode::ALL.into_iter()).find(|code| code.name() == word)))
}

impl Job {
    /// What other calls refer to this job and to no other by: its number, or `12_3` for a job of an array.
    pub fn reference(&self) -> String {
        let task = self.array.as_ref().map(ToString::to_string);
        task.unwrap_or_else(|| self.id.clone())
    }
}

/// One job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Job {
    pub id: String,
    pub name: String,
    pub user: String,
    /// Number of the user who submitted it, as whom its program runs.
    #[serde(default)]
    pub uid: Option<u32>,
    /// It is another user's, and what it runs is not shown: command, folders, container, secrets, what went wrong.
    #[serde(default)]
    pub redacted: bool,
    /// What holds its processes together; absent before it was started, in lists of ended jobs, and for containers.
    #[serde(default)]
    pub group: Option<JobGroup>,
    pub project: Option<String>,
    pub queue: String,
    pub state: JobState,
    pub end_reason: Option<EndReason>,
    /// Why Divvy stopped its program, in words: `its time limit of 2h was reached`, `cancelled by ana (uid 1001)`. Absent where Divvy did
    /// not, and for others' jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_detail: Option<String>,
    /// The user who asked for that; absent where a limit or a rule did, and for others' jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Asker>,
    /// When it was told to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// The program's code, or 128+N when signal N ended it.
    pub exit_code: Option<i32>,
    pub request: Amount,
    #[serde(default)]
    pub isolation: Isolation,
    /// As in the submission.
    #[serde(default)]
    pub memory_exact: bool,
    /// `fair`, `strict` or `none`, with `=0.25` behind it where the share is not that of the memory.
    pub compute: String,
    /// What it gets of its GPUs' time; absent where it has them to itself.
    #[serde(default)]
    pub compute_time: Option<ComputeTime>,
    pub slices: Vec<Slice>,
    /// While queued: what it waits for. After a failure: what went wrong.
    pub reason: Option<String>,
    /// What it waits for in one word, for programs; absent where `reason` is about something else.
    #[serde(
        default,
        deserialize_with = "known",
        skip_serializing_if = "Option::is_none"
    )]
    pub reason_code: Option<ReasonCode>,
    /// Place in its queue, from 1, while queued.
    pub place: Option<u32>,
    pub command: Vec<String>,
    /// What the command runs in; absent for a plain process.
    #[serde(default)]
    pub container: Option<Container>,
    pub cwd: String,
    pub runner: Runner,
    /// Process id of the program while it runs.
    pub pid: Option<u32>,
    pub submitted_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Path of the job's folder: its log, its exit record.
    pub directory: String,
    /// Path of the slice folder while the job holds one.
    pub slice_directory: Option<String>,
    /// Processes of it that held GPU memory past the limiter, oldest first.
    #[serde(default)]
    pub bypasses: Vec<Bypass>,
    /// How the limiter got into its program; absent before it was started, and in lists of ended jobs.
    #[serde(default)]
    pub limiter: Option<Limiter>,
    /// How often its limiter passed on what it could not count or hold up, or came upon an error of its own, in the slice that it
    /// holds. Absent where that never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncounted_calls: Option<u64>,
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub preemptible: bool,
    #[serde(default)]
    pub time_limit_s: Option<u64>,
    /// What it was to run after.
    #[serde(default)]
    pub after: Vec<After>,
    #[serde(default)]
    pub retries: u32,
    /// How often it went back to its queue after its program had been started.
    #[serde(default)]
    pub runs_before: u32,
    /// Its processes are stopped until somebody lets them go on; its memory stays charged.
    #[serde(default)]
    pub suspended: bool,
    /// Where its GPU memory is, while it is suspended and that was to be released; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<JobMemory>,
    /// What is done when it does nothing with its GPUs; absent: nothing.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// For how long it has done nothing with them as far as was seen, in seconds; absent while it does not run, is suspended, or
    /// is on a MIG instance, where nothing is seen.
    #[serde(default)]
    pub idle_s: Option<u64>,
    #[serde(default)]
    pub array: Option<ArrayTask>,
    /// Names of its secret variables.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// While it waits, where it is asked for alone: when it starts if nobody else comes and everybody before it runs for as
    /// long as it may. Absent where somebody's time has no limit.
    #[serde(default)]
    pub expected_start: Option<Timestamp>,
    /// The same at the latest, whenever the others end before their time is over. Absent where somebody's time has no limit or who
    /// comes next is not certain, as with projects, and where it is too much to work out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_start: Option<Timestamp>,
    /// How many times it was given a slice.
    #[serde(default)]
    pub attempt: u32,
    /// Absent for a job that starts by itself.
    #[serde(default)]
    pub confirmation: Option<Confirmation>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it is the claim of, with the runner `claim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<JobClaim>,
    /// The files of its output; absent where that is in the job's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// What is started when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// Who holds it in its queue; absent for a job that is not held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<JobHold>,
}

/// Who holds a waiting job, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobHold {
    pub by: String,
    /// An operator holds another user's job: only operators release it.
    pub operator: bool,
    pub since: Timestamp,
}

/// A user who asked for something, by the kernel's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Asker {
    pub uid: u32,
    pub name: String,
}

/// Where the GPU memory of a suspended job is.
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
    /// It could not be released and stays on its GPUs: the job's `reason` says why.
    Gpu,
    /// It is being copied to the host's memory.
    Offloading,
    /// In the host's memory: the job holds nothing.
    Host,
    /// There too; the job is to go on, and room on its GPUs is kept for it.
    RestorePending,
    /// It is being copied back.
    Restoring,
}

/// What holds a job's processes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobGroup {
    /// Path of its control group (cgroup v2); absent where its session does.
    pub path: Option<String>,
    /// Why it has no control group.
    pub reason: Option<String>,
    /// What bounds their number; absent for jobs that an earlier version of Divvy started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<TaskBound>,
}

/// What bounds the number of a job's processes and threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TaskBound {
    pub by: TaskBoundKind,
    /// So many there may be; absent where nothing bounds them.
    pub max: Option<u64>,
    /// The user whose processes and threads are counted, in jobs or not; absent where the job's own are.
    pub uid: Option<u32>,
    /// Why its control group does not bound them.
    pub reason: Option<String>,
}

/// Who counts a job's processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskBoundKind {
    /// The `pids` controller of its control group.
    Group,
    /// The kernel, for all of its user's (`RLIMIT_NPROC`).
    User,
    /// Nothing: `RLIMIT_NPROC` does not bind root.
    Nothing,
}

/// How a job's limiter got into its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Limiter {
    pub form: LimiterForm,
    /// Why it is not the stronger form, the wrapper.
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimiterForm {
    /// In front of every library, by `LD_PRELOAD`.
    Preload,
    /// Where the driver's libraries lay, in a mount namespace of the job's own.
    Wrapper,
}

/// What a slice gets of the compute time of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ComputeTime {
    /// Its share in the division, in thousandths of each GPU.
    pub share_asked: u16,
    /// What its processes used of each GPU over the last ten seconds, by their own measure, in thousandths. Absent while nobody
    /// shares its GPUs: then nothing is measured.
    pub share_used: Option<u16>,
    /// How long its threads have waited for their turn, all together.
    pub throttled_ms: u64,
}

/// What a job holds of one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Slice {
    /// `gpu2.25a`: GPU index, share, letter; `gpu0.1g.5gb@3`: GPU index, MIG profile, place.
    pub label: String,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub memory_limit_bytes: u64,
    /// Thousandths of the GPU.
    pub share: u16,
    /// Charged in the ledger now: allocations and context overhead of all its processes.
    pub memory_used_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u32,
    /// Allocations refused at the limit so far.
    pub denials: u64,
    /// Size of the last refused allocation.
    pub last_denied_bytes: Option<u64>,
    /// What holds the limit: `interposer` or `mig`.
    pub enforcement: String,
    /// What the job's programs see of the GPU: its UUID, or that of a MIG device. Absent before a MIG device is made.
    #[serde(default)]
    pub device_uuid: Option<String>,
    /// The MIG instance that it is.
    #[serde(default)]
    pub mig: Option<MigSlice>,
    /// What its processes hold by the driver's account; absent while nothing runs and where the driver does not say.
    #[serde(default)]
    pub memory_driver_bytes: Option<u64>,
    /// The account's error: the driver's figure less what was charged. Absent where they cannot be compared.
    #[serde(default)]
    pub memory_mismatch_bytes: Option<i64>,
    /// The largest error so far, in either direction.
    #[serde(default)]
    pub memory_mismatch_max_bytes: u64,
    /// What the limit counts besides the account, because the driver says so.
    #[serde(default)]
    pub memory_unaccounted_bytes: u64,
    /// What the job is to hold after a resize to less: allocations beyond it are refused already, and the rest is given to
    /// nobody else before the job uses no more than this.
    #[serde(default)]
    pub memory_target_bytes: Option<u64>,
    /// The share that goes with it.
    #[serde(default)]
    pub share_target: Option<u16>,
}

/// `POST /v1/jobs/{id}/suspend`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Suspend {
    /// Have the driver put its GPU memory into the host's memory and give its GPUs to others meanwhile. The answer comes once that is so,
    /// or is not to be: the job is suspended all the same then, and `gpu_memory` is `gpu`.
    #[serde(default)]
    pub release_memory: bool,
}

/// `POST /v1/jobs/{id}/resize`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// What the job is to have: while it runs, of each of the GPUs that it has. What it has, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// How its compute time is divided from now on, as in a submission: `fair`, `strict=0.25`. As before, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
}

/// `POST /v1/jobs/{id}/change`: all of it is done, or nothing. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// The queue to wait in. A job that has its queue's own amount gets that of the new queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// First in its queue among jobs of equal priority; for users, among their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub top: bool,
    /// What a waiting job asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// As in a submission; of a waiting job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// As in a submission, 0 for none. Of a job that runs, only operators make it longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// For a job of an array, without the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `GET /v1/jobs/{id}/why`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Why {
    pub job: String,
    pub state: JobState,
    pub queue: String,
    pub place: Option<u32>,
    /// One sentence: `needs 1 whole GPU; 2.75 of 3 GPUs in use`.
    pub summary: String,
    /// One entry per GPU with every predicate that failed there; empty when the job does not wait.
    pub gpus: Vec<WhyGpu>,
    /// Jobs that are served before this one, by id.
    pub behind: Vec<String>,
    /// Changes that would start it now, cheapest first, as text.
    pub suggestions: Vec<String>,
    /// The same for programs, in the same order.
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
    /// An estimate: when it starts if nobody else comes and everybody before it runs for as long as such runs usually take, or for as
    /// long as it may where that is less. Absent where neither is known of somebody, and where nothing is known but time limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_start: Option<Timestamp>,
    /// What its front end wants people to know: the job's label `note`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What would start a waiting job now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhyChange {
    pub text: String,
    /// The command that does it, word by word; absent where there is none, or where the daemon would refuse it from this
    /// caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// One GPU seen from a waiting job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhyGpu {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    /// `0.75 in use, a whole GPU is needed`; empty when the job would fit here.
    pub unmet: Vec<String>,
    /// `#2 quarter_gpu 0.25`: who holds it.
    pub holders: Vec<String>,
    /// The same for programs, in the same order, with what is known of their ends.
    #[serde(default)]
    pub held_by: Vec<WhyHolder>,
}

/// A job that holds a GPU or a part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WhyHolder {
    pub job: String,
    pub queue: String,
    /// `0.25`, `1g.5gb@3`: how much it holds of this GPU.
    pub size: String,
    /// Thousandths of the GPU.
    pub share: u16,
    pub memory_bytes: u64,
    /// It holds nothing of it now: its memory is in the host's memory, and the room is kept for it, as it is to go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserved: bool,
    /// When it is gone at the latest, by its time limit and the grace to go. Absent where it has no limit, may be started again, or is
    /// not confirmed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
    /// An estimate: when it ends if it takes what such runs usually take. In the past where it has taken longer already. Absent where too
    /// few are known, and while it is suspended or being stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usually_ends: Option<Timestamp>,
    /// What that is from; absent with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_run: Option<UsualRun>,
}

/// How long runs took that are like a job's: of the same user, name and amount, the newest that ended with exit code 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UsualRun {
    /// The middle one of their lengths, in seconds.
    pub median_s: u64,
    /// How many they were, at least 3.
    pub runs: u32,
}

/// Something that happened, in journal order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Event {
    /// Grows by one; resume with `?after=SEQ`.
    pub seq: u64,
    pub at: Timestamp,
    pub job: Option<String>,
    /// `submitted`, `starting`, `running`, `ended`, …
    pub kind: String,
    pub text: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
