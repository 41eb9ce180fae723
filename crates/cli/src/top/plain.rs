//! `divvy top --plain`: for screen readers and dumb terminals. It prints a line when its text changes, and never moves
//! the cursor.

use std::collections::BTreeMap;

use divvy_api::v1::{Board, BoardGpu, BoardJob, Event};
use divvy_core::units;
use jiff::tz::TimeZone;

use super::filter::{self, Filter};
use super::rows::{labels, sum};
use crate::text;

const GIB: u64 = 1 << 30;

/// The lines that were printed, by their subject.
#[derive(Debug, Default)]
pub struct Plain {
    printed: BTreeMap<String, String>,
}

impl Plain {
    /// The lines that differ from those printed before.
    pub fn changes(&mut self, board: &Board, filter: &Filter) -> Vec<String> {
        let mut lines = Vec::new();
        for gpu in &board.gpus {
            lines.push((format!("GPU {}", gpu.index), gpu_words(gpu)));
        }
        for job in board.jobs.iter().filter(|job| filter.matches_job(job)) {
            let name = format!(
                "job {} {} of {}",
                job.reference(),
                text::cleaned(&job.name),
                text::cleaned(&job.user)
            );
            lines.push((name, job_words(job)));
        }
        lines.push(("pending jobs".to_owned(), waiting_words(board)));
        // A job that has ended is no subject any more; its event says that it ended.
        let known = |subject: &String| lines.iter().any(|(known, _)| known == subject);
        self.printed.retain(|subject, _| known(subject));
        let mut changed = Vec::new();
        for (subject, words) in lines {
            if self.printed.get(&subject) != Some(&words) {
                changed.push(format!("{subject}: {words}"));
                self.printed.insert(subject, words);
            }
        }
        changed
    }
}

/// An event as a line.
pub fn event_words(event: &Event, zone: TimeZone) -> String {
    let at = event.at.to_zoned(zone);
    let job = event
        .job
        .as_ref()
        .map(|job| format!("job {} ", text::cleaned(job)));
    let words =
        [text::cleaned(&event.kind), text::cleaned(&event.text)].map(|text| text.replace('_', " "));
    format!(
        "{} {}{}",
        at.strftime("%H:%M:%S"),
        job.unwrap_or_default(),
        words.join(": ")
    )
}

/// Whole GiB: a reader is not told of each MiB.
fn gib(bytes: u64) -> u64 {
    bytes.saturating_add(GIB / 2) / GIB
}

fn gpu_words(gpu: &BoardGpu) -> String {
    let mut words = vec![
        format!(
            "{} of {} GiB used",
            gib(gpu.used_bytes),
            gib(gpu.usable_bytes)
        ),
        match gpu.mode.as_str() {
            "shared" => format!("{} allocated", units::gpus(u64::from(gpu.share))),
            mode => text::clean(mode),
        },
    ];
    if gpu.asleep {
        words.push("asleep".to_owned());
    } else if let Some(percent) = gpu.utilization_percent {
        // In quarters, so that noise is no news.
        words.push(format!(
            "about {} percent busy",
            (percent.min(100) + 12) / 25 * 25
        ));
    }
    if gpu.unmanaged_bytes > 0 {
        words.push(format!("{} GiB outside Divvy", gib(gpu.unmanaged_bytes)));
    }
    words.extend(gpu.problem.as_deref().map(text::clean));
    words.join(", ")
}

fn job_words(job: &BoardJob) -> String {
    let used = gib(sum(job, |slice| slice.used_bytes));
    let limit = gib(sum(job, |slice| slice.limit_bytes));
    let mut words = vec![
        format!("{} on {}", filter::state(job), labels(job)),
        format!("{used} of {limit} GiB"),
    ];
    match job.denials {
        0 => {}
        1 => words.push("memory refused once".to_owned()),
        times => words.push(format!("memory refused {times} times")),
    }
    if job.bypass {
        words.push("bypass of the limiter".to_owned());
    }
    words.join(", ")
}

fn waiting_words(board: &Board) -> String {
    let reasons = board.waiting.reasons.iter();
    let reasons =
        reasons.map(|(code, count)| format!("{count} {}", text::cleaned(code).replace('_', " ")));
    let count = std::iter::once(board.waiting.count.to_string());
    count.chain(reasons).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn only_lines_that_changed_are_printed() {
        let (mut plain, none) = (Plain::default(), Filter::default());
        let mut board = sample::board();
        let first = plain.changes(&board, &none);
        insta::assert_snapshot!(first.join("\n"));
        assert_eq!(plain.changes(&board, &none), Vec::<String>::new());
        // Noise below a quarter of use and half a GiB is no news.
        board.gpus[0].utilization_percent = Some(74);
        board.jobs[0].slices[0].used_bytes += 1 << 20;
        assert_eq!(plain.changes(&board, &none), Vec::<String>::new());
        board.jobs[0].denials += 1;
        board.jobs.remove(1);
        board.waiting.count = 3;
        assert_eq!(
            plain.changes(&board, &none),
            [
                "job 7 train of ana: running on gpu0:0.5a, 31 of 40 GiB, memory refused 3 times",
                "pending jobs: 3, 3 behind, 1 insufficient"
            ]
        );
    }
}
