//! Output of `simulate` for waits in queues: a row for all jobs, for each queue, and for each amount of a queue.

use divvy_core::simulate::waits::figures::{
    Answer, Difference, Figures, Forecast, JobFigures, Wait,
};
use serde::Serialize;

use super::{Item, Ratio, View};
use crate::table::{self, Column};

/// The waits of some jobs, before a change and after it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitRow {
    /// Absent for all jobs.
    pub queue: Option<String>,
    /// Absent for all jobs of the queue.
    pub amount: Option<String>,
    pub scene: WaitScene,
    pub before: WaitFigures,
    /// Absent without a question.
    pub after: Option<WaitFigures>,
    /// Job by job; absent without a question, and for an amount.
    pub difference: Option<WaitDifference>,
}

/// The simulated scene. Equal scenes give equal figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitScene {
    pub nodes: usize,
    pub gpus: usize,
    /// The name of the list.
    pub requests: String,
    /// Of each run.
    pub jobs: usize,
    pub runs: u32,
    /// Of the first run; absent for a list as it was.
    pub seed: Option<u64>,
    pub backfill: bool,
    /// What the question changes.
    pub changes: Vec<String>,
}

/// The figures of some jobs. Times are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitFigures {
    pub submitted: u64,
    /// They fit on no node, or exceed a limit or quota even alone.
    pub refused: u64,
    /// Not refused, and never started.
    pub stuck: u64,
    pub preempted: u64,
    /// Jobs that started.
    pub started: u64,
    pub p50_s: Ratio,
    pub p90_s: Ratio,
    pub mean_s: Ratio,
    pub longest_s: Ratio,
    /// Of all GPUs, the part that jobs hold. For all jobs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use: Option<Ratio>,
}

/// What a change does to the jobs that start both with it and without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitDifference {
    pub jobs: u64,
    pub shorter: u64,
    pub longer: u64,
    /// Negative: less waiting.
    pub mean_s: Ratio,
    /// Half of the 95 % confidence interval over the runs.
    pub ci95_s: Option<Ratio>,
}

/// When a job would start, from the present state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitForecast {
    pub queue: String,
    pub amount: String,
    pub runs: u32,
    pub seed: u64,
    pub starts_now: bool,
    /// Runs in which it never started.
    pub stuck: u32,
    pub p50_s: Ratio,
    pub p90_s: Ratio,
    pub longest_s: Ratio,
}

impl Item for WaitRow {
    const KIND: &'static str = "WaitList";

    /// `half/0.5`, `half`, `all`.
    fn name(&self) -> String {
        let parts = [&self.queue, &self.amount].into_iter().flatten();
        let parts: Vec<&str> = parts.map(String::as_str).collect();
        match parts.as_slice() {
            [] => "all".to_owned(),
            parts => parts.join("/"),
        }
    }
}

impl Item for WaitForecast {
    const KIND: &'static str = "WaitForecast";

    fn name(&self) -> String {
        format!("{}/{}", self.queue, self.amount)
    }
}

impl WaitFigures {
    fn of(figures: &JobFigures) -> Self {
        let Wait {
            jobs,
            mean_ms,
            p50_ms,
            p90_ms,
            longest_ms,
        } = figures.wait;
        Self {
            submitted: figures.submitted,
            refused: figures.refused,
            stuck: figures.stuck,
            preempted: figures.preempted,
            started: jobs,
            p50_s: of_ms(p50_ms),
            p90_s: of_ms(p90_ms),
            mean_s: Ratio(mean_ms / 1000.0),
            longest_s: of_ms(longest_ms),
            in_use: None,
        }
    }
}

fn of_ms(time: u64) -> Ratio {
    Ratio(time as f64 / 1000.0)
}

impl From<Difference> for WaitDifference {
    fn from(difference: Difference) -> Self {
        Self {
            jobs: difference.jobs,
            shorter: difference.shorter,
            longer: difference.longer,
            mean_s: Ratio(difference.mean_ms / 1000.0),
            ci95_s: difference.ci95_ms.map(|within| Ratio(within / 1000.0)),
        }
    }
}

impl WaitForecast {
    pub fn of(forecast: &Forecast, queue: String, amount: String, seed: u64) -> Self {
        Self {
            queue,
            amount,
            runs: forecast.runs,
            seed,
            starts_now: forecast.starts_now,
            stuck: forecast.stuck,
            p50_s: of_ms(forecast.wait.p50_ms),
            p90_s: of_ms(forecast.wait.p90_ms),
            longest_s: of_ms(forecast.wait.longest_ms),
        }
    }
}

impl WaitRow {
    /// Rows of one scene: all jobs, then each queue with its amounts.
    pub fn all(figures: &Figures, scene: &WaitScene) -> Vec<Self> {
        let row = |queue: Option<String>, amount: Option<String>, of: &JobFigures| Self {
            queue,
            amount,
            scene: scene.clone(),
            before: WaitFigures::of(of),
            after: None,
            difference: None,
        };
        let mut rows = vec![row(None, None, &figures.all)];
        rows[0].before.in_use = Some(Ratio(figures.in_use));
        for (queue, of) in &figures.queues {
            rows.push(row(Some(queue.to_string()), None, of));
            let amounts = figures.shapes.iter().filter(|(of, ..)| of == queue);
            rows.extend(amounts.map(|(queue, amount, of)| {
                row(Some(queue.to_string()), Some(amount.to_string()), of)
            }));
        }
        rows
    }

    /// Rows of one scene before and after a change.
    pub fn compared(answer: &Answer, scene: &WaitScene) -> Vec<Self> {
        let after = Self::all(&answer.after, scene);
        let mut rows = Self::all(&answer.before, scene);
        for row in &mut rows {
            let same = |other: &&Self| (&other.queue, &other.amount) == (&row.queue, &row.amount);
            let found = after.iter().find(same).map(|other| other.before);
            row.after = Some(found.unwrap_or_default());
            let of_queue = |(queue, _): &&(_, _)| Some(ToString::to_string(queue)) == row.queue;
            row.difference = match (&row.queue, &row.amount) {
                (None, _) => Some(answer.all.into()),
                (Some(_), None) => answer
                    .queues
                    .iter()
                    .find(of_queue)
                    .map(|(_, of)| (*of).into()),
                (Some(_), Some(_)) => None,
            };
        }
        // Amounts that exist only after the change, such as eighths.
        for other in after {
            let known = rows
                .iter()
                .any(|row| (&row.queue, &row.amount) == (&other.queue, &other.amount));
            let last = rows.iter().rposition(|row| row.queue == other.queue);
            if let (false, Some(last)) = (known, last) {
                let row = Self {
                    after: Some(other.before),
                    before: WaitFigures::default(),
                    ..other
                };
                rows.insert(last + 1, row);
            }
        }
        rows
    }
}

/// One row for each group of jobs.
pub fn waits(all: &[WaitRow], view: View) -> String {
    let Some(first) = all.first() else {
        return String::new();
    };
    let is_compared = first.after.is_some();
    let mut columns = vec![
        Column::Fixed("QUEUE"),
        Column::Right("AMOUNT"),
        Column::Right("JOBS"),
    ];
    if is_compared {
        columns.extend(["P50", "AFTER", "P90", "AFTER"].map(Column::Right));
        columns.push(Column::Right("DIFFERENCE"));
    } else {
        columns.extend(["REFUSED", "P50", "P90", "MEAN", "LONGEST"].map(Column::Right));
    }
    if view.wide && is_compared {
        columns
            .extend(["SHORTER", "LONGER", "REFUSED", "AFTER", "STUCK", "AFTER"].map(Column::Right));
    } else if view.wide {
        columns.extend(["STUCK", "PREEMPTED"].map(Column::Right));
    }
    let row = |one: &WaitRow| {
        let mut cells = vec![
            one.queue
                .as_deref()
                .map_or_else(|| "all".to_owned(), crate::text::clean),
            one.amount.clone().unwrap_or_default(),
            one.before
                .submitted
                .max(one.after.map_or(0, |after| after.submitted))
                .to_string(),
        ];
        let before = &one.before;
        if let Some(after) = &one.after {
            for (of, figures) in [
                (Figure::P50, before),
                (Figure::P50, after),
                (Figure::P90, before),
                (Figure::P90, after),
            ] {
                cells.push(of.of(figures));
            }
            cells.push(one.difference.map_or_else(String::new, difference));
            if view.wide {
                let moved = one.difference.map(|of| [of.shorter, of.longer]);
                cells.extend(match moved {
                    Some(moved) => moved.map(|jobs| jobs.to_string()),
                    None => [String::new(), String::new()],
                });
                let counts = [before.refused, after.refused, before.stuck, after.stuck];
                cells.extend(counts.map(|jobs| jobs.to_string()));
            }
        } else {
            cells.push(before.refused.to_string());
            cells.extend(
                [Figure::P50, Figure::P90, Figure::Mean, Figure::Longest].map(|of| of.of(before)),
            );
            if view.wide {
                cells.extend([before.stuck, before.preempted].map(|jobs| jobs.to_string()));
            }
        }
        cells
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

/// A wait in a table.
#[derive(Clone, Copy)]
enum Figure {
    P50,
    P90,
    Mean,
    Longest,
}

impl Figure {
    /// `-` where no job started.
    fn of(self, figures: &WaitFigures) -> String {
        let time = match self {
            Self::P50 => figures.p50_s,
            Self::P90 => figures.p90_s,
            Self::Mean => figures.mean_s,
            Self::Longest => figures.longest_s,
        };
        match figures.started {
            0 => "-".to_owned(),
            _ => duration(time.0),
        }
    }
}

fn difference(of: WaitDifference) -> String {
    if of.jobs == 0 {
        return "-".to_owned();
    }
    let text = duration(of.mean_s.0.abs());
    let sign = match of.mean_s.0 {
        _ if text == "0s" => "",
        mean if mean < 0.0 => "-",
        _ => "+",
    };
    match of.ci95_s {
        Some(within) => format!("{sign}{text} ±{}", duration(within.0)),
        None => format!("{sign}{text}"),
    }
}

/// A time with two units at most: `45s`, `12m30s`, `3h05m`, `2d04h`.
fn duration(seconds: f64) -> String {
    let all = seconds.round().max(0.0) as u64;
    let (minutes, hours, days) = (all / 60, all / 3600, all / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{all}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", all % 60),
        (0, ..) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// One row for the job.
pub fn wait_forecasts(all: &[WaitForecast], view: View) -> String {
    let columns = [
        Column::Fixed("QUEUE"),
        Column::Right("AMOUNT"),
        Column::Right("STARTS NOW"),
        Column::Right("P50"),
        Column::Right("P90"),
        Column::Right("LONGEST"),
        Column::Right("NEVER"),
    ];
    let row = |one: &WaitForecast| {
        let time = |of: Ratio| match one.runs == one.stuck {
            true => "-".to_owned(),
            false => duration(of.0),
        };
        let now = if one.starts_now { "yes" } else { "no" };
        vec![
            crate::text::clean(&one.queue),
            one.amount.clone(),
            now.to_owned(),
            time(one.p50_s),
            time(one.p90_s),
            time(one.longest_s),
            format!("{} of {}", one.stuck, one.runs),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

/// The simulated scene in one sentence.
pub fn wait_scene(scene: &WaitScene) -> String {
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let runs = match (scene.runs, scene.seed) {
        (_, None) => "as they were submitted".to_owned(),
        (1, Some(seed)) => format!("one run, seed {seed}"),
        (runs, Some(seed)) => {
            format!("{runs} runs, seed {seed}, the first tenth of each not counted")
        }
    };
    let backfill = if scene.backfill { ", backfill" } else { "" };
    let changes = match scene.changes.is_empty() {
        true => String::new(),
        false => format!("; after: {}", scene.changes.join(", ")),
    };
    format!(
        "{} node{}, {} GPU{}{backfill}, {}: {} jobs, {runs}{}",
        scene.nodes,
        s(scene.nodes),
        scene.gpus,
        s(scene.gpus),
        crate::text::clean(&scene.requests),
        scene.jobs,
        crate::text::clean(&changes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (seconds, text) in [
            (0.0, "0s"),
            (59.6, "1m00s"),
            (754.0, "12m34s"),
            (11_100.0, "3h05m"),
            (187_200.0, "2d04h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn a_difference_has_a_sign_unless_it_is_none() {
        let of = |mean, within| WaitDifference {
            jobs: 1,
            mean_s: Ratio(mean),
            ci95_s: within,
            ..WaitDifference::default()
        };
        assert_eq!(difference(of(-90.0, Some(Ratio(5.0)))), "-1m30s ±5s");
        assert_eq!(difference(of(90.0, None)), "+1m30s");
        assert_eq!(difference(of(-0.2, None)), "0s");
        assert_eq!(difference(WaitDifference::default()), "-");
    }
}
