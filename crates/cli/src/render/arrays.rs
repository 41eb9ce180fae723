//! Output for whole arrays: submission, actions, state.

use std::collections::BTreeMap;

use divvy_api::v1::{ArrayTask, Job, JobState};
use jiff::Timestamp;

use super::View;
use super::describe::{Facts, compute, image, request_in_words, terms};
use super::jobs::{fate, would};
use crate::text;

/// Failed jobs of an array that the text names. Eight indices fit one line; `divvy ps` lists the others.
const MOST_NAMED: usize = 8;

/// The name that an array was submitted with.
fn name(job: &Job) -> String {
    let index = job.array.as_ref().map(|task| format!("[{}]", task.index));
    let name = index.and_then(|index| job.name.strip_suffix(index.as_str()));
    text::clean(name.unwrap_or(&job.name))
}

fn jobs(count: usize) -> String {
    match count {
        1 => "1 job".to_owned(),
        count => format!("{count} jobs"),
    }
}

/// How many jobs it was submitted with, as far as that is known.
fn count(tasks: &[&ArrayTask]) -> usize {
    let said = tasks.iter().find_map(|task| task.count);
    said.map_or(tasks.len(), |count| count as usize)
}

/// `12_0 to 12_3`.
fn extent(array: &str, first: u32, last: u32) -> String {
    if first == last {
        format!("{array}_{first}")
    } else {
        format!("{array}_{first} to {array}_{last}")
    }
}

/// What became of a submitted array, in one line. `job`: its first; `last`: its highest index.
pub fn submitted_array(job: &Job, last: u32, dry_run: bool, now: Timestamp) -> String {
    let Some(task) = &job.array else {
        return super::submitted(job, dry_run, now);
    };
    let what = text::amount_in_words(&job.request);
    let (queue, fate) = (text::clean(&job.queue), fate(job, now));
    let count = jobs(count(&[task]));
    if dry_run {
        let name = name(job);
        let fate = would(&fate);
        return format!(
            "{name} is an array of {count}, each requests {what} in queue {queue}; if submitted now, the first {fate}\n"
        );
    }
    let array = &task.array;
    // One command for all of them.
    let release = |reference: &str| format!("`divvy release {reference}`");
    let fate = fate.replace(&release(&job.reference()), &release(array));
    let all = extent(array, task.index.min(last), last);
    format!(
        "#{array} is an array of {count} ({all}), each requests {what} in queue {queue}; {task} {fate}\n"
    )
}

/// `3 cancelled, 1 stopping`: how many are in which state, whatever their exit codes.
fn states(jobs: &[Job]) -> String {
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for job in jobs {
        let state = text::state(job);
        let state = state.split(" (").next().unwrap_or_default();
        *states.entry(state.to_owned()).or_default() += 1;
    }
    let words = states
        .iter()
        .map(|(state, count)| format!("{count} {state}"));
    words.collect::<Vec<_>>().join(", ")
}

/// What was done to the jobs of an array, in one line: `#12 sweep: 3 cancelled; 1 had ended already`.
pub fn array_changed(array: &str, jobs: &[Job], others: &str) -> String {
    let tasks: Vec<&ArrayTask> = jobs.iter().filter_map(|job| job.array.as_ref()).collect();
    let name = jobs.first().map(name).unwrap_or_default();
    let rest = match count(&tasks).saturating_sub(jobs.len()) {
        0 => String::new(),
        rest => format!("; {rest} {others}"),
    };
    format!("#{array} {name}: {}{rest}", states(jobs))
}

/// How an array stands: the facts of all its jobs, and how many are in which state.
pub fn describe_array(array: &str, all: &[Job], view: View) -> String {
    let mut facts = Facts {
        text: String::new(),
        now: view.now,
        zone: view.zone,
    };
    let tasks: Vec<&ArrayTask> = all.iter().filter_map(|job| job.array.as_ref()).collect();
    let indices = || tasks.iter().map(|task| task.index);
    let (Some(job), Some(first), Some(last)) = (all.first(), indices().min(), indices().max())
    else {
        return facts.text;
    };
    let count = count(&tasks);
    let jobs = jobs(count);
    let extent = extent(array, first, last);
    let most = tasks.iter().find_map(|task| task.max_running);
    let most = most.map_or_else(String::new, |most| format!(", at most {most} at once"));
    facts.add(
        "array",
        &format!("#{array} {}, {jobs} ({extent}){most}", name(job)),
    );
    facts.add("state", &states(all));
    if count > all.len() {
        let gone = count - all.len();
        facts.add("deleted", &format!("{gone} that had ended"));
    }
    facts.add("failures", &failures(all));
    facts.add("queue", &text::clean(&job.queue));
    facts.add("request", &request_in_words(job));
    facts.add("compute", &compute(job));
    facts.add("image", &image(job));
    facts.add("command", &text::command_line(&job.command));
    facts.add("folder", &text::clean(&job.cwd));
    facts.add("user", &text::clean(&job.user));
    let project = job.project.as_deref().unwrap_or_default();
    facts.add("project", &text::clean(project));
    facts.add("options", &terms(job));
    facts.add_time("submitted", Some(job.submitted_at));
    facts.add_time("started", all.iter().filter_map(|job| job.started_at).min());
    let has_ended = all.iter().all(|job| job.state == JobState::Ended);
    let ended = all.iter().filter_map(|job| job.ended_at).max();
    facts.add_time("ended", ended.filter(|_| has_ended));
    facts.add("output", &format!("divvy logs {array}"));
    facts.add("jobs", &format!("divvy ps {array}"));
    facts.add("waits", &waits(all));
    facts.text
}

/// `12_2 failed (3), 12_5 cancelled, and 4 more`.
fn failures(all: &[Job]) -> String {
    let is_bad = |job: &&Job| job.state == JobState::Ended && job.exit_code != Some(0);
    let bad: Vec<&Job> = all.iter().filter(is_bad).collect();
    let named = bad.iter().take(MOST_NAMED);
    let mut words: Vec<String> = named
        .map(|job| format!("{} {}", job.reference(), text::state(job)))
        .collect();
    if bad.len() > MOST_NAMED {
        words.push(format!("and {} more", bad.len() - MOST_NAMED));
    }
    words.join(", ")
}

/// Reason of the first pending job.
fn waits(all: &[Job]) -> String {
    let job = all.iter().find(|job| job.state == JobState::Queued);
    let reason = job.and_then(|job| Some((job.reference(), job.reason.as_deref()?)));
    reason.map_or_else(String::new, |(job, reason)| {
        format!("{job}: {}", text::clean(reason))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The job of an array of four named `a b`, with this index.
    fn job(index: u32, state: &str, code: Option<i32>) -> Job {
        let reason = match code {
            None | Some(0) => None,
            Some(_) => Some("failed"),
        };
        let end = if code == Some(0) {
            Some("completed")
        } else {
            reason
        };
        let waits = (state == "queued").then_some("its array has 1 job at once at most");
        let job = json!({
            "id": (12 + index).to_string(), "name": format!("a b[{index}]"), "user": "ana", "project": null, "queue": "q",
            "state": state, "end_reason": end, "exit_code": code, "request": {"kind": "share", "thousandths": 250},
            "compute": "fair", "slices": [], "reason": waits, "place": null, "command": ["./part.sh"], "cwd": "/",
            "runner": "supervisor", "pid": null, "submitted_at": "2026-01-02T03:04:05Z", "started_at": null,
            "ended_at": null, "directory": "/d", "slice_directory": null,
            "array": {"array": "12", "index": index, "count": 4, "max_running": 1},
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn an_array_is_submitted_with_the_references_of_its_jobs() {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let first = job(0, "queued", None);
        assert_eq!(
            submitted_array(&first, 3, false, now),
            "#12 is an array of 4 jobs (12_0 to 12_3), each requests 0.25 of a GPU in queue q; 12_0 waits: its array has 1 job \
             at once at most\n"
        );
        let dry = submitted_array(&first, 3, true, now);
        let said = "a b is an array of 4 jobs, each requests 0.25 of a GPU in queue q; if submitted now, the first would wait";
        assert!(dry.starts_with(said), "{dry}");
    }

    #[test]
    fn an_array_is_described_by_the_states_of_its_jobs() {
        let all = [
            job(0, "ended", Some(0)),
            job(1, "ended", Some(3)),
            job(3, "queued", None),
        ];
        let view = View {
            wide: false,
            width: None,
            now: "2026-01-02T03:05:05Z".parse().unwrap(),
            zone: || jiff::tz::TimeZone::UTC,
            palette: Default::default(),
        };
        let said = describe_array("12", &all, view);
        for line in [
            "array:       #12 a b, 4 jobs (12_0 to 12_3), at most 1 at once\n",
            "state:       1 completed, 1 failed, 1 queued\n",
            "deleted:     1 that had ended\n",
            "failures:    12_1 failed (3)\n",
            "output:      divvy logs 12\n",
            "waits:       12_3: its array has 1 job at once at most\n",
        ] {
            assert!(said.contains(line), "{line}\n{said}");
        }
        let changed = array_changed("12", &all[2..], "had already ended");
        assert_eq!(changed, "#12 a b: 1 queued; 3 had already ended");
        let many: Vec<Job> = (0..20).map(|at| job(at, "ended", Some(1))).collect();
        let said = describe_array("12", &many, view);
        assert!(said.contains("12_7 failed (1), and 12 more\n"), "{said}");
    }
}
