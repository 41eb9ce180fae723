//! Waits as tables, and the scene of a study in one sentence.

use super::{WaitDifference, WaitFigures, WaitForecast, WaitRow, WaitScene};
use divvy_cli::render::View;

use crate::render::Ratio;
use divvy_cli::table::{self, Column};

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
                .map_or_else(|| "all".to_owned(), divvy_cli::text::clean),
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
        let time = |of: Ratio| {
            if one.runs == one.stuck {
                "-".to_owned()
            } else {
                duration(of.0)
            }
        };
        let now = if one.starts_now { "yes" } else { "no" };
        vec![
            divvy_cli::text::clean(&one.queue),
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
    let order = match scene.order {
        "strict" => String::new(),
        other => format!(", order {other}"),
    };
    let backfill = if scene.backfill { ", backfill" } else { "" };
    let changes = if scene.changes.is_empty() {
        String::new()
    } else {
        format!("; after: {}", scene.changes.join(", "))
    };
    format!(
        "{} node{}, {} GPU{}{order}{backfill}, {}: {} jobs, {runs}{}",
        scene.nodes,
        s(scene.nodes),
        scene.gpus,
        s(scene.gpus),
        divvy_cli::text::clean(&scene.requests),
        scene.jobs,
        divvy_cli::text::clean(&changes)
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
