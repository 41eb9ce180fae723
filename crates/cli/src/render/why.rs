//! Output of `why`: one sentence, then each GPU, the expected ends and start, and changes that would help.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use divvy_api::v1::{JobState, Why, WhyChange, WhyGpu, WhyHolder};
use jiff::Timestamp;

use super::{View, jobs};
use crate::table;
use crate::text;

/// Jobs ahead, or jobs with unknown ends, that the text names. A longer list hides the reason above it; the count
/// follows.
const MOST_NAMED: usize = 8;

/// Columns before the text of a line that has a lead. As wide as the longest lead, so that all texts begin in one
/// column.
const LEAD: usize = 10;

/// The explanation as lines.
pub fn why(why: &Why, view: View) -> String {
    let (queue, summary) = (text::clean(&why.queue), text::clean(&why.summary));
    let mut lines = match (why.state, why.place) {
        (JobState::Queued, Some(place)) => format!(
            "#{} waits in queue {queue}, place {place}: {summary}\n",
            why.job
        ),
        (JobState::Queued, None) => format!("#{} waits in queue {queue}: {summary}\n", why.job),
        _ => format!("#{} does not wait: {summary}\n", why.job),
    };
    for gpu in &why.gpus {
        add(
            &mut lines,
            &format!("gpu {}", gpu.gpu_index),
            [one_gpu(gpu)],
        );
    }
    add(&mut lines, "ends", ends(&why.gpus, view.now));
    add(&mut lines, "starts", starts(why, view.now));
    let ahead: Vec<String> = why.behind.iter().map(|id| format!("#{id}")).collect();
    let behind = (!ahead.is_empty()).then(|| named(ahead));
    add(&mut lines, "behind", behind);
    add(&mut lines, "options", options(why));
    add(&mut lines, "note", why.note.as_deref().map(text::clean));
    table::wrapped(&lines, view.width, LEAD)
}

/// What would start it now, with the command that does it. An older daemon names no commands.
fn options(why: &Why) -> Vec<String> {
    let of_changes = |change: &WhyChange| {
        if change.command.is_empty() {
            text::clean(&change.text)
        } else {
            let command = text::command_line(&change.command);
            format!("{}: {command}", text::clean(&change.text))
        }
    };
    if why.suggested_changes.is_empty() {
        why.suggestions
            .iter()
            .map(|text| text::clean(text))
            .collect()
    } else {
        why.suggested_changes.iter().map(of_changes).collect()
    }
}

/// Adds lines, the first of them with its lead.
fn add(lines: &mut String, lead: &str, about: impl IntoIterator<Item = String>) {
    for (at, line) in about.into_iter().enumerate() {
        let lead = if at == 0 { lead } else { "" };
        let _ = writeln!(lines, "  {lead:<7} {line}");
    }
}

fn one_gpu(gpu: &WhyGpu) -> String {
    let failed = if gpu.unmet.is_empty() {
        "would fit".to_owned()
    } else {
        text::clean(&gpu.unmet.join("; "))
    };
    // An older daemon names no users.
    let named = gpu.held_by.iter().filter(|holder| !holder.user.is_empty());
    let named: Vec<&WhyHolder> = named.collect();
    let (failed, holders) = if named.len() == gpu.holders.len() {
        with_names(failed, &named)
    } else {
        (failed, gpu.holders.clone())
    };
    match holders.as_slice() {
        [] => failed,
        holders => format!("{failed} ({})", text::clean(&holders.join(", "))),
    }
}

/// The text with name and user behind each job's number, and the holders that it does not name.
fn with_names(mut text: String, holders: &[&WhyHolder]) -> (String, Vec<String>) {
    let mut others = Vec::new();
    for holder in holders {
        let number = format!("#{}", holder.job);
        let of = format!("{number} {} of {}", holder.name, holder.user);
        let mut at = text
            .match_indices(&number)
            .map(|(at, number)| at + number.len());
        let ends = |at: &usize| !text[*at..].starts_with(|next: char| next.is_ascii_digit());
        let end = at.find(ends);
        match end {
            Some(end) => text.replace_range(end - number.len()..end, &text::clean(&of)),
            None => {
                let resuming = if holder.reserved { ", resuming" } else { "" };
                let (queue, size) = (&holder.queue, &holder.size);
                others.push(format!("{of}, {queue} {size}{resuming}"));
            }
        }
    }
    (text, others)
}

/// The expected ends of the jobs that hold slices, and the jobs with unknown ends.
fn ends(gpus: &[WhyGpu], now: Timestamp) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let holders = gpus.iter().flat_map(|gpu| &gpu.held_by);
    let holders = holders.filter(|holder| seen.insert(holder.job.as_str()));
    let (mut lines, mut unknown) = (Vec::new(), Vec::new());
    for holder in holders {
        match end(holder, now) {
            Some(words) => lines.push(format!("#{} {words}", text::clean(&holder.job))),
            None => unknown.push(format!("#{}", text::clean(&holder.job))),
        }
    }
    if !unknown.is_empty() {
        lines.push(format!(
            "unknown for {}: no time limit, no earlier runs",
            named(unknown)
        ));
    }
    lines
}

/// The first of these jobs, and how many more there are.
fn named(mut jobs: Vec<String>) -> String {
    let more = jobs.len().saturating_sub(MOST_NAMED);
    jobs.truncate(MOST_NAMED);
    let more = (more > 0).then(|| format!(" and {more} more"));
    format!("{}{}", jobs.join(", "), more.unwrap_or_default())
}

/// `usually runs 42m (median of 7), so in about 12m03s; in 1h00m at the latest`.
fn end(holder: &WhyHolder, now: Timestamp) -> Option<String> {
    let usual = holder.usual_run.zip(holder.usually_ends).map(|(run, at)| {
        let so = if at > now {
            format!("so in about {}", text::elapsed(now, at))
        } else {
            "already exceeded".to_owned()
        };
        let (length, runs) = (text::seconds(run.median_s), run.runs);
        format!("usually runs {length} (median of {runs}), {so}")
    });
    let latest = holder
        .ends_by
        .map(|at| format!("in {} at the latest", text::elapsed(now, at)));
    let words: Vec<String> = usual.into_iter().chain(latest).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// When the job itself starts, by time limits and by what is usual.
fn starts(why: &Why, now: Timestamp) -> Vec<String> {
    let certain = jobs::starts(why.expected_start, why.latest_start, now);
    let sooner = |at: &Timestamp| why.expected_start.is_none_or(|expected| *at < expected);
    let usual = why.usual_start.filter(sooner).map(|at| {
        let wait = text::elapsed(now, at);
        format!(
            "in about {wait}, if no other job is submitted and the jobs ahead take their usual time"
        )
    });
    usual.into_iter().chain(certain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_jobs_the_first_are_named_and_the_others_counted() {
        let jobs = |count: usize| named((1..=count).map(|id| format!("#{id}")).collect());
        assert_eq!(jobs(2), "#1, #2");
        assert_eq!(jobs(8), "#1, #2, #3, #4, #5, #6, #7, #8");
        assert_eq!(jobs(3000), "#1, #2, #3, #4, #5, #6, #7, #8 and 2992 more");
    }
}
