//! The look of the live view: glyphs and colours, by what the terminal can show.
//!
//! Two colours carry meaning, blue (use) and orange (attention), and each of them stands beside a glyph or a word. All
//! other text has the terminal's own foreground, so that light terminals need no setting.

use ratatui::style::{Color, Modifier, Style};

/// Characters of bars, charts and tables.
#[derive(Debug)]
pub struct Glyphs {
    pub used: &'static str,
    pub limit: &'static str,
    pub free: &'static str,
    /// Memory of processes outside any slice.
    pub outside: &'static str,
    /// Memory that another daemon holds.
    pub elsewhere: &'static str,
    pub border: &'static str,
    /// Eight levels, the lowest first.
    pub levels: [&'static str; 8],
    /// The limit in a chart.
    pub line: &'static str,
    pub cut: &'static str,
    pub none: &'static str,
    pub times: &'static str,
    pub degree: &'static str,
    pub branch: &'static str,
    pub last_branch: &'static str,
    pub down: &'static str,
    pub up: &'static str,
}

const UNICODE: Glyphs = Glyphs {
    used: "█",
    limit: "▒",
    free: "·",
    outside: "╳",
    elsewhere: "░",
    border: "│",
    levels: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    line: "─",
    cut: "…",
    none: "–",
    times: "×",
    degree: "°C",
    branch: "├",
    last_branch: "└",
    down: "▼",
    up: "▲",
};

const ASCII: Glyphs = Glyphs {
    used: "#",
    limit: "=",
    free: ".",
    outside: "x",
    elsewhere: "o",
    border: "|",
    levels: ["_", ".", ":", "-", "=", "+", "*", "#"],
    line: "-",
    cut: "~",
    none: "-",
    times: "x",
    degree: "C",
    branch: "|",
    last_branch: "`",
    down: "v",
    up: "^",
};

/// Number of colours that the terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    None,
    Eight,
    Many,
}

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Title,
    /// Secondary text, and figures that are out of date.
    Faint,
    /// Memory and time in use.
    Used,
    /// What needs attention. The text beside it says so too.
    Alert,
    Selected,
}

/// Glyphs and colours of one terminal.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub glyphs: &'static Glyphs,
    pub colours: Colours,
}

impl Look {
    pub fn new(is_ascii: bool, colours: Colours) -> Self {
        let glyphs = if is_ascii { &ASCII } else { &UNICODE };
        Self { glyphs, colours }
    }

    /// The look for these variables of the environment: ASCII if the locale is not UTF-8, no colour with `NO_COLOR`.
    pub fn from_environment(is_ascii: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let locale = set("LC_ALL")
            .or_else(|| set("LC_CTYPE"))
            .or_else(|| set("LANG"));
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
        let term = variable("TERM").unwrap_or_default();
        let colours = match (set("NO_COLOR"), set("COLORTERM")) {
            (Some(_), _) => Colours::None,
            (None, Some(_)) => Colours::Many,
            (None, None) if term.contains("256color") => Colours::Many,
            (None, None) if ["", "dumb", "vt100", "vt220"].contains(&&*term) => Colours::None,
            (None, None) => Colours::Eight,
        };
        Self::new(is_ascii || !is_utf8, colours)
    }

    pub fn is_ascii(self) -> bool {
        self.glyphs.used == ASCII.used
    }

    pub fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        let coloured = |eight, many| match self.colours {
            Colours::None => style,
            Colours::Eight => style.fg(eight),
            Colours::Many => style.fg(Color::Indexed(many)),
        };
        match tone {
            Tone::Plain => style,
            Tone::Title => style.add_modifier(Modifier::BOLD),
            Tone::Faint => style.add_modifier(Modifier::DIM),
            // Readable on black and on white: contrasts of 4.3 and 4.9 to 1.
            Tone::Used => coloured(Color::Blue, 33),
            Tone::Alert => coloured(Color::Yellow, 166).add_modifier(Modifier::BOLD),
            Tone::Selected => style.add_modifier(Modifier::REVERSED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> (bool, Colours) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let look = Look::from_environment(false, variable);
        (look.is_ascii(), look.colours)
    }

    #[test]
    fn the_environment_chooses_glyphs_and_colours() {
        let utf8 = ("LANG", "de_DE.UTF-8");
        for (variables, expected) in [
            (
                &[utf8, ("TERM", "xterm-256color")][..],
                (false, Colours::Many),
            ),
            (&[utf8, ("TERM", "linux")], (false, Colours::Eight)),
            (
                &[utf8, ("TERM", "xterm"), ("COLORTERM", "truecolor")],
                (false, Colours::Many),
            ),
            (
                &[utf8, ("TERM", "xterm-256color"), ("NO_COLOR", "1")],
                (false, Colours::None),
            ),
            (
                &[utf8, ("TERM", "xterm-256color"), ("NO_COLOR", "")],
                (false, Colours::Many),
            ),
            (
                &[("LC_ALL", "C"), utf8, ("TERM", "vt100")],
                (true, Colours::None),
            ),
            (
                &[("LC_CTYPE", "C.utf8"), ("LANG", "C")],
                (false, Colours::None),
            ),
            (&[], (true, Colours::None)),
        ] {
            assert_eq!(look(variables), expected, "{variables:?}");
        }
    }

    #[test]
    fn without_colour_no_style_has_one() {
        let look = Look::new(false, Colours::None);
        for tone in [
            Tone::Plain,
            Tone::Title,
            Tone::Faint,
            Tone::Used,
            Tone::Alert,
            Tone::Selected,
        ] {
            assert_eq!(look.style(tone).fg, None);
            assert_eq!(look.style(tone).bg, None);
        }
    }

    #[test]
    fn ascii_glyphs_are_ascii() {
        let shown = format!("{ASCII:?}");
        assert!(shown.is_ascii(), "{shown}");
    }
}
