//! `describe`: everything about one job, the reason last.

use std::fmt::Write as _;

use divvy_api::v1::{Job, JobState, Runner, Slice};
use jiff::Timestamp;

use super::{COMPUTE, View, jobs};
use crate::text;

/// One line a fact.
pub fn describe(job: &Job, view: View) -> String {
    let mut facts = Facts {
        text: String::new(),
        now: view.now,
    };
    facts.add("job", &format!("#{} {}", job.id, text::clean(&job.name)));
    facts.add("state", &state(job, view.now));
    facts.add("queue", &text::clean(&job.queue));
    facts.add("asked", &text::amount_in_words(&job.request));
    facts.add("compute", &compute(job));
    facts.add("command", &text::command_line(&job.command));
    facts.add("in", &text::clean(&job.cwd));
    facts.add("user", &text::clean(&job.user));
    facts.add(
        "project",
        &text::clean(job.project.as_deref().unwrap_or_default()),
    );
    facts.add_time("submitted", Some(job.submitted_at));
    facts.add_time("started", job.started_at);
    facts.add_time("ended", job.ended_at);
    for slice in &job.slices {
        facts.add_slice(slice, job.state == JobState::Ended);
    }
    facts.add(
        "slice files",
        job.slice_directory.as_deref().unwrap_or_default(),
    );
    facts.add("records", &text::clean(&job.directory));
    let output = match job.runner {
        Runner::Supervisor => format!("divvy logs {}", job.id),
        Runner::Client => "on the terminal it was started from".to_owned(),
    };
    facts.add("output", &output);
    facts.add(
        "reason",
        &text::clean(job.reason.as_deref().unwrap_or_default()),
    );
    facts.text
}

fn state(job: &Job, now: Timestamp) -> String {
    let since = text::elapsed(jobs::in_state_since(job), now);
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

/// Who divides compute: never more than what is true.
fn compute(job: &Job) -> String {
    match job.compute.as_str() {
        "fair" => format!("{COMPUTE} (fair is recorded as a weight and not enforced)"),
        _ => COMPUTE.to_owned(),
    }
}

struct Facts {
    text: String,
    now: Timestamp,
}

impl Facts {
    /// `compute:     driver time-slicing`; an empty value says nothing.
    fn add(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            let _ = writeln!(self.text, "{:<12} {value}", format!("{name}:"));
        }
    }

    fn add_time(&mut self, name: &str, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.add(
                name,
                &format!("{} ago ({at:.0})", text::elapsed(at, self.now)),
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
                slice.label, slice.gpu_index, slice.gpu_uuid
            ),
        );
        self.add(
            "  limit",
            &format!("{limit} of memory, held by {}", slice.enforcement),
        );
        let (used, peak) = (
            text::memory(slice.memory_used_bytes),
            text::memory(slice.memory_peak_bytes),
        );
        let processes = match slice.processes {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        if ended {
            self.add("  memory", &format!("{peak} at most"));
        } else {
            self.add(
                "  memory",
                &format!("{used} by {processes}, {peak} at most so far"),
            );
        }
        if let Some(refusals) = jobs::refusals(std::slice::from_ref(slice)) {
            self.add("  refused", &refusals);
        }
    }
}
