//! Charts of simulations as SVG: equal results give equal bytes, and colours follow the reader's light or dark scheme.

mod draw;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use divvy_api::v1::{Error, ErrorCode};

use crate::render::{Packing, WaitFigures, WaitRow};
use divvy_cli::error_output::Result;
use draw::{BOTTOM, COLOURS, DASHES, LEFT, RIGHT, Scale, TOP, begin, note, place_labels};

/// Queues in a chart; a table has all. A reader could not tell more lines apart by colour.
const MOST_GROUPS: usize = 12;

/// A line: percent asked for, percent unallocated.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub name: &'static str,
    pub points: Vec<(u32, f64)>,
}

/// A group of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    pub name: String,
    /// One for each series.
    pub values: Vec<Option<f64>>,
}

/// What stays unallocated, by how much has been asked for.
pub fn fill(results: &[Packing], curves: &[Curve]) -> String {
    /// Below it the policies differ little, so that their differences fill the chart.
    const FROM: u32 = 70;
    let shown = |points: &[(u32, f64)]| -> Vec<(u32, f64)> {
        points
            .iter()
            .copied()
            .filter(|(percent, _)| *percent >= FROM)
            .collect()
    };
    let lines: Vec<(&str, Vec<(u32, f64)>)> = curves
        .iter()
        .map(|curve| (curve.name, shown(&curve.points)))
        .collect();
    let all = lines.iter().flat_map(|(_, points)| points);
    let (mut last, mut top) = (FROM + 10, 0.0_f64);
    for (percent, value) in all {
        last = last.max(*percent);
        top = top.max(*value);
    }
    let scale = Scale::of(top);
    let x =
        |percent: u32| LEFT + f64::from(percent - FROM) / f64::from(last - FROM) * (RIGHT - LEFT);
    let summary = results.iter().filter_map(|one| {
        let point = crate::render::packing_at(one)?;
        let value = point.unallocated.ratio.0 * 100.0;
        Some(format!(
            "{}: {value:.2} % at {} %",
            one.policy, point.arrived_percent
        ))
    });
    let mut svg = begin(
        "GPUs unallocated, by the GPUs that jobs have asked for",
        &summary.collect::<Vec<_>>().join("; "),
    );
    scale.grid(&mut svg, "% unallocated");
    for percent in (FROM..=last).step_by(10) {
        let at = x(percent);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{BOTTOM}\" x2=\"{at:.1}\" y2=\"{:.1}\"/>\n\
             <text class=\"note\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{percent}</text>",
            BOTTOM + 5.0,
            BOTTOM + 20.0,
        );
    }
    note(
        &mut svg,
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 40.0,
        "% of the GPUs asked for",
    );
    let mut labels: Vec<(f64, usize, &str)> = Vec::new();
    for (nth, (name, points)) in lines.iter().enumerate() {
        let text: Vec<String> = points
            .iter()
            .map(|(percent, value)| format!("{:.1},{:.1}", x(*percent), scale.y(*value)))
            .collect();
        let dash = DASHES[nth % DASHES.len()];
        let _ = writeln!(
            svg,
            "<polyline class=\"line s{}\" stroke-dasharray=\"{dash}\" points=\"{}\"/>",
            nth % COLOURS.len(),
            text.join(" ")
        );
        let end = points.last().map_or(BOTTOM, |(_, value)| scale.y(*value));
        labels.push((end, nth, name));
    }
    place_labels(&mut svg, labels);
    svg + "</svg>\n"
}

/// The part of the volume that each policy refuses.
pub fn departures(results: &[Packing]) -> String {
    let groups: Vec<Bars> = results
        .iter()
        .map(|one| Bars {
            name: one.policy.to_owned(),
            values: vec![Some(one.refused.ratio.0 * 100.0)],
        })
        .collect();
    bars(
        "GPU volume refused, with jobs that come and go",
        "% refused",
        &["refused"],
        &groups,
    )
}

/// The waits of each queue, before and after a change.
pub fn waits(rows: &[WaitRow]) -> String {
    let minutes = |figures: &WaitFigures| {
        let started = figures.started > 0;
        [figures.p50_s, figures.p90_s].map(|time| started.then_some(time.0 / 60.0))
    };
    let queues = rows
        .iter()
        .filter(|row| row.amount.is_none())
        .take(MOST_GROUPS);
    let group = |row: &WaitRow| {
        let [p50, p90] = minutes(&row.before);
        Bars {
            name: row.queue.clone().unwrap_or_else(|| "all jobs".to_owned()),
            values: match row.after.as_ref().map(minutes) {
                None => vec![p50, p90],
                Some([after50, after90]) => vec![p50, after50, p90, after90],
            },
        }
    };
    let groups: Vec<Bars> = queues.map(group).collect();
    let series: &[&str] = if rows.first().is_some_and(|row| row.after.is_some()) {
        &["p50", "p50 after", "p90", "p90 after"]
    } else {
        &["p50", "p90"]
    };
    bars(
        "Minutes that jobs wait, by queue",
        "minutes",
        series,
        &groups,
    )
}

/// Groups of bars, one colour a series.
pub fn bars(title: &str, unit: &str, series: &[&str], groups: &[Bars]) -> String {
    let values = groups
        .iter()
        .flat_map(|group| group.values.iter().flatten());
    let scale = Scale::of(values.copied().fold(0.0, f64::max));
    let summary = groups.iter().map(|group| {
        let values = group.values.iter().zip(series);
        let values = values.map(|(value, name)| match value {
            Some(value) => format!("{name} {value:.2}"),
            None => format!("{name} none"),
        });
        format!("{}: {}", group.name, values.collect::<Vec<_>>().join(", "))
    });
    let mut svg = begin(title, &summary.collect::<Vec<_>>().join("; "));
    scale.grid(&mut svg, unit);
    let room = (RIGHT - LEFT) / groups.len().max(1) as f64;
    let width = (room * 0.8 / series.len().max(1) as f64).min(64.0);
    for (nth, group) in groups.iter().enumerate() {
        let middle = LEFT + room * (nth as f64 + 0.5);
        let start = middle - width * series.len() as f64 / 2.0;
        for (place, value) in group.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let (x, y) = (start + width * place as f64, scale.y(*value));
            let _ = writeln!(
                svg,
                "<rect class=\"f{}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\n\
                 <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.2}</text>",
                place % COLOURS.len(),
                x + 1.0,
                width - 2.0,
                BOTTOM - y,
                x + width / 2.0,
                y - 4.0,
            );
        }
        note(&mut svg, middle, BOTTOM + 20.0, &group.name);
    }
    if series.len() > 1 {
        let labels = (0..series.len()).map(|nth| (TOP + 20.0 * nth as f64, nth, series[nth]));
        place_labels(&mut svg, labels.collect());
    }
    svg + "</svg>\n"
}

/// Refuses a file that cannot be written, before the study takes its time.
///
/// # Errors
/// A folder that cannot be written.
pub fn refuse_unwritable(path: &Path) -> Result<()> {
    let beside = beside(path);
    let made = std::fs::File::create(&beside);
    made.map_err(|error| unwritable(path, &error))?;
    // What is left is written over, or stays empty beside the chart.
    let _ = std::fs::remove_file(&beside);
    Ok(())
}

/// The file in which a chart is written first.
fn beside(path: &Path) -> OsString {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    beside
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    let what = format!("--svg: cannot write {}: {error}", path.display());
    Error::new(ErrorCode::Usage, what).hint("name a file in a folder that you can write")
}

/// Writes a chart, whole or not at all.
///
/// # Errors
/// A folder that cannot be written.
pub fn write(path: &Path, svg: &str) -> Result<()> {
    let beside = beside(path);
    let written = std::fs::write(&beside, svg).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        // What is left of the attempt, if anything; the error of the write is the one that matters.
        let _ = std::fs::remove_file(&beside);
        unwritable(path, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_element() {
        let groups = [Bars {
            name: "</text><script>&".to_owned(),
            values: vec![Some(2.0), None],
        }];
        let svg = bars("waits", "minutes", &["p50", "p90"], &groups);
        assert!(!svg.contains("<script>"), "{svg}");
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;&amp;"), "{svg}");
        assert!(
            svg.contains("<desc id=\"desc\">") && svg.contains("p90 none"),
            "{svg}"
        );
        assert_eq!(svg, bars("waits", "minutes", &["p50", "p90"], &groups));
    }
}
