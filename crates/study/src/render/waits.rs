//! Output of `simulate` for waits in queues: a row for all jobs, for each queue, and for each amount of a queue.

mod table;

use crate::engine::waits::figures::{Answer, Difference, Figures, Forecast, JobFigures, Wait};
use serde::Serialize;

use divvy_cli::render::Item;

use super::Ratio;
pub use table::{wait_forecasts, wait_scene, waits};

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
    /// Order of the queues: `strict` or `fairness`.
    pub order: &'static str,
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
