//! Charts of simulations as SVG: equal results give equal bytes, and colours follow the reader's light or dark scheme.

use std::fmt::Write as _;
use std::path::Path;

use divvy_api::v1::{Error, ErrorCode};

use crate::error_output::Result;
use crate::render::{Packing, WaitFigures, WaitRow};

/// Size of a chart, in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// The drawing inside its margins.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 590.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 344.0;

/// Colours of series, for light and for dark: Okabe and Ito's, which readers with any colour vision tell apart.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#e69f00"),
    ("#009e73", "#2bd4a4"),
    ("#aa4499", "#cc79a7"),
    ("#8a6d00", "#f0e442"),
    ("#555555", "#bbbbbb"),
    ("#882255", "#ff9da7"),
];

/// Lines differ in their dashes too.
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// Queues in a chart; a table has all.
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
    let series: &[&str] = match rows.first().is_some_and(|row| row.after.is_some()) {
        false => &["p50", "p90"],
        true => &["p50", "p50 after", "p90", "p90 after"],
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

/// Writes a chart, whole or not at all.
///
/// # Errors
/// A folder that cannot be written.
pub fn write(path: &Path, svg: &str) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, svg).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        // What is left of the attempt, if anything; the error of the write is the one that matters.
        let _ = std::fs::remove_file(&beside);
        let what = format!("--svg: cannot write {}: {error}", path.display());
        Error::new(ErrorCode::Usage, what).hint("name a file in a folder that you can write")
    })
}

/// The vertical axis: from 0 to a round number above every value.
struct Scale {
    step: f64,
    steps: u32,
}

impl Scale {
    fn of(top: f64) -> Self {
        let top = if top > 0.0 { top } else { 1.0 };
        let power = 10_f64.powf((top / 4.0).log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|digit| digit * power);
        let step = round
            .into_iter()
            .find(|step| top / step <= 5.0)
            .unwrap_or(top);
        Self {
            step,
            steps: ((top * 1.02 / step).ceil() as u32).max(1),
        }
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - value / (self.step * f64::from(self.steps)) * (BOTTOM - TOP)
    }

    fn grid(&self, svg: &mut String, unit: &str) {
        for nth in 0..=self.steps {
            let value = self.step * f64::from(nth);
            let y = self.y(value);
            let text = format!("{value:.3}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>\n\
                 <text class=\"note\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 8.0,
                y + 4.0,
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"note\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            8.0,
            TOP - 14.0,
            escaped(unit)
        );
    }
}

/// Names of series at the right, none on top of another.
fn place_labels(svg: &mut String, mut labels: Vec<(f64, usize, &str)>) {
    const APART: f64 = 18.0;
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = TOP;
    for (y, nth, name) in labels {
        let y = y.max(next);
        next = y + APART;
        let _ = writeln!(
            svg,
            "<rect class=\"f{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\"/>\n\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            nth % COLOURS.len(),
            RIGHT + 10.0,
            y - 9.0,
            RIGHT + 26.0,
            y,
            escaped(name)
        );
    }
}

fn note(svg: &mut String, x: f64, y: f64, text: &str) {
    const MOST: usize = 24;
    let short = match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    };
    let text = escaped(&short);
    let _ = writeln!(
        svg,
        "<text class=\"note\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>"
    );
}

fn begin(title: &str, summary: &str) -> String {
    let mut style = String::from(
        "svg{background:#ffffff;color:#1b1b1b}text{font:13px system-ui,sans-serif;fill:currentColor}\
         .title{font-size:16px;font-weight:600}.value{font-size:11px}.grid{stroke:#8888;stroke-width:1}\
         .line{fill:none;stroke-width:2.5}",
    );
    let mut dark = String::from("svg{background:#15181c;color:#e8e8e8}");
    for (nth, (light, on_dark)) in COLOURS.iter().enumerate() {
        let _ = write!(style, ".s{nth}{{stroke:{light}}}.f{nth}{{fill:{light}}}");
        let _ = write!(dark, ".s{nth}{{stroke:{on_dark}}}.f{nth}{{fill:{on_dark}}}");
    }
    let (title, summary) = (escaped(title), escaped(summary));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-labelledby=\"title desc\">\n<title id=\"title\">{title}</title>\n<desc id=\"desc\">{summary}</desc>\n\
         <style>{style}@media(prefers-color-scheme:dark){{{dark}}}</style>\n\
         <text class=\"title\" x=\"8\" y=\"24\">{title}</text>\n"
    )
}

/// Text of an element; a name of a queue or file may hold anything.
fn escaped(text: &str) -> String {
    let plain = crate::text::clean(text);
    plain
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_above_every_value_at_a_round_number() {
        for (top, step, steps) in [
            (13.9, 5.0, 3),
            (0.0, 0.2, 6),
            (100.0, 20.0, 6),
            (4.0, 1.0, 5),
        ] {
            let scale = Scale::of(top);
            assert_eq!((scale.step, scale.steps), (step, steps), "{top}");
            assert!(scale.y(top) >= TOP);
        }
    }

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

    #[test]
    fn labels_keep_apart() {
        let mut svg = String::new();
        place_labels(
            &mut svg,
            vec![(100.0, 0, "a"), (101.0, 1, "b"), (90.0, 2, "c")],
        );
        let heights: Vec<f64> = svg
            .lines()
            .filter_map(|line| {
                line.strip_prefix("<text")?
                    .split("y=\"")
                    .nth(1)?
                    .split('"')
                    .next()?
                    .parse()
                    .ok()
            })
            .collect();
        assert_eq!(heights, [90.0, 108.0, 126.0]);
    }
}
