//! Parts of a chart: axis, grid, labels, colours.

use std::fmt::Write as _;

/// Size of a chart, in its own units: it fits a page of a document, and letters keep their size there.
pub const WIDTH: f64 = 720.0;
pub const HEIGHT: f64 = 400.0;
/// The drawing inside its margins. So labels of axes and curves have room beside it.
pub const LEFT: f64 = 64.0;
pub const RIGHT: f64 = 590.0;
pub const TOP: f64 = 56.0;
pub const BOTTOM: f64 = 344.0;

/// Colours of series, for light and for dark: Okabe and Ito's, which readers with any colour vision tell apart.
pub const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#e69f00"),
    ("#009e73", "#2bd4a4"),
    ("#aa4499", "#cc79a7"),
    ("#8a6d00", "#f0e442"),
    ("#555555", "#bbbbbb"),
    ("#882255", "#ff9da7"),
];

/// Lines differ in their dashes too.
pub const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// The vertical axis: from 0 to a round number above every value.
pub struct Scale {
    step: f64,
    steps: u32,
}

impl Scale {
    pub fn of(top: f64) -> Self {
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

    pub fn y(&self, value: f64) -> f64 {
        BOTTOM - value / (self.step * f64::from(self.steps)) * (BOTTOM - TOP)
    }

    pub fn grid(&self, svg: &mut String, unit: &str) {
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
pub fn place_labels(svg: &mut String, mut labels: Vec<(f64, usize, &str)>) {
    /// As tall as a line of the labels, so that two never overlap: a larger one would push them from their curves.
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

/// A short text, centred.
pub fn note(svg: &mut String, x: f64, y: f64, text: &str) {
    /// Longer names would leave the margin.
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

/// The head of a chart: size, colours, title and description.
pub fn begin(title: &str, summary: &str) -> String {
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
    let plain = divvy_cli::text::clean(text);
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
