//! Output of `describe`: everything about one job, the reason last.

use std::fmt::Write as _;

use divvy_api::v1::{
    Amount, Bypass, BypassAction, ClaimEnd, Confirmation, IdleAction, Isolation, Job, JobClaim,
    JobState, LimiterForm, MemoryPlace, Runner, Slice, TaskBound, TaskBoundKind,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{View, jobs, mig};
use crate::text;

/// One line a fact.
pub fn describe(job: &Job, view: View) -> String {
    describe_with(job, &super::efficiency(job, &[], None), view)
}

/// The same with the use of an ended job in words.
pub fn describe_with(job: &Job, used: &str, view: View) -> String {
    let mut facts = Facts {
        text: String::new(),
        now: view.now,
        zone: view.zone,
    };
    facts.add("job", &format!("#{} {}", job.id, text::clean(&job.name)));
    facts.add("array", &task(job));
    facts.add("state", &state(job, view.now));
    facts.add("queue", &text::clean(&job.queue));
    facts.add("request", &request_in_words(job));
    facts.add("compute", &compute(job));
    let latency = job.compute_time.and_then(|time| time.latency);
    facts.add(
        "latency",
        &latency.map_or_else(String::new, |time| text::latency(&time)),
    );
    facts.add("image", &image(job));
    facts.add("command", &text::command_line(&job.command));
    match &job.claim {
        None => facts.add("folder", &text::clean(&job.cwd)),
        Some(claim) => facts.add_claim(claim),
    }
    facts.add("user", &text::clean(&job.user));
    facts.add(
        "project",
        &text::clean(job.project.as_deref().unwrap_or_default()),
    );
    facts.add("options", &terms(job));
    facts.add("idle", &idle(job));
    facts.add("secrets", &text::clean(&job.secrets.join(", ")));
    facts.add("labels", &labels(job));
    facts.add("confirmed", confirmation(job));
    facts.add_time("submitted", Some(job.submitted_at));
    facts.add("starts", &expected(job, view.now));
    facts.add_time("started", job.started_at);
    facts.add_time("ended", job.ended_at);
    facts.add(
        "stopped",
        &text::clean(job.end_detail.as_deref().unwrap_or_default()),
    );
    facts.add("used", used);
    facts.add("gpu memory", &memory(job, view.now));
    facts.add("granted", &mig::asked_and_got(job));
    for slice in &job.slices {
        facts.add_slice(slice, job.state == JobState::Ended);
    }
    for bypass in &job.bypasses {
        facts.add_bypass(bypass);
    }
    facts.add("limiter", &limiter(job));
    facts.add("uncounted", &uncounted(job));
    facts.add("processes", &processes(job));
    facts.add(
        "slice files",
        job.slice_directory.as_deref().unwrap_or_default(),
    );
    facts.add("records", &text::clean(&job.directory));
    let output = match job.runner {
        Runner::Supervisor => format!("divvy logs {}", job.reference()),
        Runner::Client => "on the terminal that started it".to_owned(),
        Runner::Claim if is_slice(job) => "where its engine writes it".to_owned(),
        Runner::Claim => "in the logs of its pods".to_owned(),
    };
    facts.add("output", &output);
    let files = job.output.clone().unwrap_or_default();
    let (written, errors) = (
        files.stdout.unwrap_or_default(),
        files.stderr.unwrap_or_default(),
    );
    facts.add("  file", &text::clean(&written));
    if errors != written {
        facts.add("  errors", &text::clean(&errors));
    }
    let client = job
        .client_pid
        .map(|pid| format!("process {pid}; the job ends with it"));
    facts.add("client", &client.unwrap_or_default());
    facts.add(
        "notify",
        &text::clean(job.notify.as_deref().unwrap_or_default()),
    );
    facts.add(
        "reason",
        &text::clean(job.reason.as_deref().unwrap_or_default()),
    );
    facts.text
}

fn is_slice(job: &Job) -> bool {
    let claim = job.claim.as_ref();
    claim.is_some_and(|claim| claim.namespace.is_empty())
}

fn state(job: &Job, now: Timestamp) -> String {
    let since = text::elapsed(job.since(), now);
    let pid = job
        .pid
        .map(|pid| format!(", pid {pid}"))
        .unwrap_or_default();
    match (job.state, job.place) {
        (JobState::Queued, Some(place)) => format!("queued for {since}, place {place}"),
        (JobState::Ended, _) => text::state(job),
        _ => format!("{} for {since}{pid}", text::state(job)),
    }
}

/// `12_3, of 4 jobs`: which job of an array it is.
fn task(job: &Job) -> String {
    let Some(task) = &job.array else {
        return String::new();
    };
    let of = task.count.map(|count| format!(", of {count} jobs"));
    format!("{task}{}", of.unwrap_or_default())
}

/// Place of a suspended job's memory, if its release was requested.
fn memory(job: &Job, now: Timestamp) -> String {
    let Some(memory) = &job.gpu_memory else {
        return String::new();
    };
    let place = match memory.place {
        MemoryPlace::Gpu => "on its GPUs; the driver could not release it",
        MemoryPlace::Offloading => "moving to host memory",
        MemoryPlace::Host => "in host memory; the job holds no GPU",
        MemoryPlace::RestorePending => "in host memory; room on its GPUs is reserved for it",
        MemoryPlace::Restoring => "moving back to its GPUs",
    };
    format!("{place}, for {}", text::elapsed(memory.since, now))
}

/// `clearml.task=4f2, clearml.queue=half`.
fn labels(job: &Job) -> String {
    let labels = job
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    text::clean(&labels.collect::<Vec<_>>().join(", "))
}

/// State of the confirmation.
fn confirmation(job: &Job) -> &'static str {
    match (job.confirmation, job.state) {
        (None, _) => "",
        (Some(Confirmation::Confirmed), _) => "yes",
        (Some(_), JobState::Ended) => "no",
        (Some(Confirmation::NotPlaced), _) => "not yet: it has no slice",
        (Some(Confirmation::Awaiting), _) => "not yet",
    }
}

/// When it starts, where that is known.
fn expected(job: &Job, now: Timestamp) -> String {
    super::jobs::start(job, now).unwrap_or_default()
}

/// Priority, time limit, dependencies and retries, as far as the job has them.
pub(super) fn terms(job: &Job) -> String {
    let mut words = Vec::new();
    if job.priority != 0 {
        words.push(format!("priority {}", job.priority));
    }
    if job.preemptible {
        words.push("preemptible".to_owned());
    }
    if let Some(limit) = job.time_limit_s {
        words.push(format!("time limit {}", text::seconds(limit)));
    }
    for after in &job.after {
        let how = if after.ok { " if it exits with 0" } else { "" };
        words.push(format!("after #{}{how}", after.job));
    }
    if job.retries > 0 {
        words.push(format!("retries {}", job.retries));
    }
    if job.runs_before > 0 {
        words.push(format!("run {}", job.runs_before + 1));
    }
    words.join(", ")
}

/// `for 12m, suspended after 30m`: its idle time, if an idle rule applies.
fn idle(job: &Job) -> String {
    let Some(rule) = job.idle else {
        return String::new();
    };
    let then = match rule.action {
        IdleAction::Notify => "event",
        IdleAction::Park => "parkable",
        IdleAction::Suspend => "suspended",
        IdleAction::Cancel => "cancelled",
    };
    let rule = format!("{then} after {}", text::seconds(rule.after_s));
    match (job.idle_s, job.state) {
        (Some(idle), _) => format!("for {}, {rule}", text::seconds(idle)),
        (None, JobState::Running) if !job.suspended && !job.is_parked() => {
            format!("unknown, because idle time is not measured here ({rule})")
        }
        (None, _) => rule,
    }
}

/// Image of the container, with its flags.
pub(super) fn image(job: &Job) -> String {
    let Some(container) = &job.container else {
        return String::new();
    };
    let image = std::iter::once(&container.image);
    let words: Vec<String> = image.chain(&container.arguments).cloned().collect();
    text::command_line(&words)
}

/// Requested amount and isolation.
pub(super) fn request_in_words(job: &Job) -> String {
    let exactly = if job.memory_exact {
        ", exact memory"
    } else {
        ""
    };
    let amount = text::amount_in_words(&job.request);
    match job.isolation {
        Isolation::Any => format!("{amount}{exactly}"),
        Isolation::Cooperative => format!("{amount}{exactly}, enforced by the limiter"),
        Isolation::Driver => format!("{amount}{exactly}, enforced by the driver or the hardware"),
        Isolation::Hardware => format!("{amount}{exactly}, enforced by the hardware"),
    }
}

/// `at most 4915 (pids), held by the control group /sys/fs/cgroup/…`: how many there may be, and what finds all of
/// them.
fn processes(job: &Job) -> String {
    let Some(group) = &job.group else {
        return String::new();
    };
    let held = match (&group.path, &group.reason) {
        (Some(path), _) => format!("tracked by the control group {path}"),
        (None, Some(reason)) => format!("tracked by their session ({reason})"),
        (None, None) => "tracked by their session".to_owned(),
    };
    match group.bound.as_ref().map(task_bound) {
        Some(bound) => format!("{bound}; {held}"),
        None => held,
    }
}

fn task_bound(bound: &TaskBound) -> String {
    let most = bound.max.unwrap_or_default();
    let why = bound.reason.as_deref().unwrap_or_default();
    match bound.by {
        TaskBoundKind::Group => format!("at most {most} (pids)"),
        TaskBoundKind::User => {
            let uid = bound.uid.unwrap_or_default();
            format!("at most {most} for all processes of uid {uid} (RLIMIT_NPROC; {why})")
        }
        TaskBoundKind::Nothing => {
            format!("no limit (RLIMIT_NPROC does not limit root; {why})")
        }
    }
}

/// In which form, and why not in the stronger one.
fn limiter(job: &Job) -> String {
    let Some(limiter) = &job.limiter else {
        return String::new();
    };
    let form = match limiter.form {
        LimiterForm::Preload => "preload",
        LimiterForm::Wrapper => "wrapper",
    };
    match &limiter.reason {
        Some(reason) => format!("{form} ({})", text::clean(reason)),
        None => form.to_owned(),
    }
}

/// Memory that the limiter could not count.
fn uncounted(job: &Job) -> String {
    let times = match job.uncounted_calls {
        None => return String::new(),
        Some(1) => "1 call".to_owned(),
        Some(count) => format!("{count} calls"),
    };
    format!(
        "the limiter let {times} through without accounting or throttling (unsupported call or internal error)"
    )
}

/// How its compute time is divided, and what it gets.
pub(super) fn compute(job: &Job) -> String {
    if job.slices.iter().any(|slice| slice.mig.is_some())
        || matches!(job.request, Amount::Mig { .. })
    {
        return "the instance's own multiprocessors, without time slices".to_owned();
    }
    let mode = match job.compute.as_str() {
        "none" => "none: the driver's time-slicing",
        mode => mode,
    };
    match (job.state, &job.compute_time) {
        (JobState::Running | JobState::Stopping, Some(time)) => {
            format!("{mode} · {}", text::compute_time(time))
        }
        (JobState::Running | JobState::Stopping, None) => {
            format!("{mode} · no other job on its GPUs")
        }
        _ => mode.to_owned(),
    }
}

/// The slice's memory according to the driver, and the difference to its ledger.
fn driver(slice: &Slice, ended: bool) -> String {
    let most = text::memory(slice.memory_mismatch_max_bytes);
    let off = |bytes: i64| {
        let size = text::memory(bytes.unsigned_abs());
        match bytes.signum() {
            1 => format!("{size} more than accounted"),
            -1 => format!("{size} less than accounted"),
            _ => "as accounted".to_owned(),
        }
    };
    match (slice.memory_driver_bytes, slice.memory_mismatch_bytes) {
        _ if ended && slice.memory_mismatch_max_bytes == 0 => String::new(),
        _ if ended => format!("largest difference from the account {most}"),
        (Some(held), Some(bytes)) if slice.memory_mismatch_max_bytes == 0 => {
            format!("{}, {}", text::memory(held), off(bytes))
        }
        (Some(held), Some(bytes)) => {
            format!(
                "{}, {}; largest difference so far {most}",
                text::memory(held),
                off(bytes)
            )
        }
        _ => String::new(),
    }
}

pub(super) struct Facts {
    pub(super) text: String,
    pub(super) now: Timestamp,
    pub(super) zone: fn() -> TimeZone,
}

impl Facts {
    /// `compute:     driver time-slicing`; an empty value says nothing.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            let _ = writeln!(self.text, "{:<12} {value}", format!("{name}:"));
        }
    }

    pub(super) fn add_time(&mut self, name: &str, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.add(
                name,
                &format!(
                    "{} ago ({})",
                    text::elapsed(at, self.now),
                    text::time(at, (self.zone)())
                ),
            );
        }
    }

    fn add_slice(&mut self, slice: &Slice, ended: bool) {
        let (share, limit) = (
            text::share(slice.share),
            text::memory(slice.memory_limit_bytes),
        );
        self.add(
            "slice",
            &format!(
                "{}: {share} of GPU {} ({})",
                jobs::labels(std::slice::from_ref(slice)),
                slice.gpu_index,
                slice.gpu_uuid
            ),
        );
        if let Some(instance) = &slice.mig {
            self.add("  instance", &mig::instance(instance));
        }
        self.add(
            "  limit",
            &format!(
                "{limit} of memory, enforced by {}",
                text::enforcer(&slice.enforcement)
            ),
        );
        if let Some(since) = slice.enforced_since {
            self.add_time("  since", Some(since));
        }
        if let Some(target) = slice.memory_target_bytes {
            let target = text::memory(target);
            self.add(
                "  target",
                &format!(
                    "{target}: the limiter refuses more; the rest is released when the job uses no more than this"
                ),
            );
        }
        let (used, peak) = (
            text::memory(slice.memory_used_bytes),
            text::memory(slice.memory_peak_bytes),
        );
        let processes = match slice.processes {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        if ended {
            self.add("  memory", &format!("peak {peak}"));
        } else {
            self.add(
                "  memory",
                &format!("{used} by {processes}, peak so far {peak}"),
            );
        }
        self.add("  driver", &driver(slice, ended));
        if slice.memory_unaccounted_bytes > 0 {
            let unseen = text::memory(slice.memory_unaccounted_bytes);
            self.add(
                "  unseen",
                &format!("{unseen} without a known allocation, counted against the limit"),
            );
        }
        if let Some(unlisted) = &slice.memory_unlisted {
            self.add(
                "  unlisted",
                &format!(
                    "no listed process uses {} of the GPU; pid {} has {} descriptors that can hold it",
                    text::memory(unlisted.memory_bytes),
                    unlisted.pid,
                    unlisted.descriptors
                ),
            );
        }
        if let Some(refusals) = jobs::refusals(std::slice::from_ref(slice)) {
            self.add("  refused", &refusals);
        }
    }

    /// The claim at another scheduler, and the CDI device for containers.
    fn add_claim(&mut self, claim: &JobClaim) {
        let JobClaim {
            uid,
            namespace,
            name,
            pods,
            cdi_device,
            ends,
        } = claim;
        if namespace.is_empty() {
            self.add("slice name", &text::clean(uid));
            let end = match ends {
                Some(ClaimEnd { pid: Some(pid), .. }) => format!("with process {pid}"),
                Some(ClaimEnd {
                    cgroup: Some(folder),
                    ..
                }) => format!("with the control group {folder}"),
                _ => format!("with `divvy slice rm {uid}`"),
            };
            self.add("ends", &text::clean(&end));
        } else {
            let whose = format!("{namespace}/{name}, uid {uid}");
            self.add("claim", &text::clean(&whose));
        }
        self.add("pods", &text::clean(&pods.join(", ")));
        self.add("device", &text::clean(cdi_device));
    }

    fn add_bypass(&mut self, bypass: &Bypass) {
        let held = bypass
            .memory_driver_bytes
            .map_or_else(|| "memory".to_owned(), text::memory);
        let (verb, when) = match bypass.ended_at {
            Some(over) => ("held", text::elapsed(over, self.now)),
            None => ("holds", text::elapsed(bypass.detected_at, self.now)),
        };
        let action = match (bypass.action, bypass.ended_at) {
            (BypassAction::Warned, Some(_)) => format!("until {when} ago"),
            (BypassAction::Warned, None) => format!("since {when}"),
            (BypassAction::Denied, Some(_)) => {
                format!("until {when} ago; its slice got no memory meanwhile")
            }
            (BypassAction::Denied, None) => format!("since {when}; its slice gets no more memory"),
            (BypassAction::Killed, _) => "killed".to_owned(),
        };
        self.add(
            "bypass",
            &format!(
                "pid {} ({}) {verb} {held} of GPU {}, {action}: {}",
                bypass.pid,
                text::clean(&bypass.program),
                bypass.gpu_index,
                text::clean(&bypass.cause)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_processes_is_named_with_what_counts_them_and_why() {
        let said = |by, most, uid, reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            task_bound(&TaskBound {
                by,
                max: most,
                uid,
                reason,
            })
        };
        let why = Some("/g has no pids controller");
        assert_eq!(
            said(TaskBoundKind::Group, Some(4915), None, None),
            "at most 4915 (pids)"
        );
        assert_eq!(
            said(TaskBoundKind::User, Some(10_813), Some(1001), why),
            "at most 10813 for all processes of uid 1001 (RLIMIT_NPROC; /g has no pids controller)"
        );
        assert_eq!(
            said(TaskBoundKind::Nothing, None, None, why),
            "no limit (RLIMIT_NPROC does not limit root; /g has no pids controller)"
        );
    }
}
