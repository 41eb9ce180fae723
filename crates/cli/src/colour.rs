//! Colours of tables and messages, on terminals only.
//!
//! A colour repeats what a word says, and is never the only sign. Normal text keeps the terminal's own colours. With
//! 256 colours, good is a blue and bad is an orange that are legible on black and on white; with 8 colours, bad is red.

use std::io::IsTerminal;

use anstyle::{Ansi256Color, AnsiColor, Color, Style};

/// The colours of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Palette {
    /// None: no terminal, or not wanted.
    #[default]
    Off,
    Eight,
    Many,
}

/// What a text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A heading.
    Title,
    /// Something runs.
    Good,
    /// A failure, a refusal, a problem.
    Bad,
    /// Something that is over or absent.
    Faint,
}

impl Palette {
    pub fn of_stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    pub fn of_stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    /// `NO_COLOR` turns colours off, and `CLICOLOR_FORCE` turns them on where there is no terminal. `CLICOLOR=0` and
    /// `TERM=dumb` turn them off, too (<https://no-color.org>, <https://bixense.com/clicolors>).
    fn of(output: &impl IsTerminal) -> Self {
        let term = std::env::var("TERM").unwrap_or_default();
        let is_rich = term.contains("256color") || anstyle_query::truecolor();
        let wanted = Wanted {
            refused: anstyle_query::no_color(),
            forced: anstyle_query::clicolor_force(),
            off: anstyle_query::clicolor() == Some(false) || !anstyle_query::term_supports_color(),
            is_terminal: output.is_terminal(),
        };
        match (wanted.any(), is_rich) {
            (false, _) => Self::Off,
            (true, false) => Self::Eight,
            (true, true) => Self::Many,
        }
    }

    /// The text in a tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let style = self.style(tone);
        if text.is_empty() {
            String::new()
        } else {
            format!("{style}{text}{style:#}")
        }
    }

    fn style(self, tone: Tone) -> Style {
        let colour = |many: u8, eight: AnsiColor| match self {
            Self::Many => Style::new().fg_color(Some(Color::Ansi256(Ansi256Color(many)))),
            _ => Style::new().bold().fg_color(Some(Color::Ansi(eight))),
        };
        match (self, tone) {
            (Self::Off, _) => Style::new(),
            (_, Tone::Title) => Style::new().bold(),
            (_, Tone::Faint) => Style::new().dimmed(),
            (_, Tone::Good) => colour(33, AnsiColor::Blue),
            (_, Tone::Bad) => colour(166, AnsiColor::Red),
        }
    }
}

/// What the environment says of colours.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    refused: bool,
    forced: bool,
    off: bool,
    is_terminal: bool,
}

impl Wanted {
    fn any(self) -> bool {
        !self.refused && (self.forced || (self.is_terminal && !self.off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_wins_and_force_needs_no_terminal() {
        let terminal = Wanted {
            is_terminal: true,
            ..Wanted::default()
        };
        for (wanted, expected) in [
            (terminal, true),
            (Wanted::default(), false),
            (
                Wanted {
                    off: true,
                    ..terminal
                },
                false,
            ),
            (
                Wanted {
                    refused: true,
                    ..terminal
                },
                false,
            ),
            (
                Wanted {
                    forced: true,
                    ..Wanted::default()
                },
                true,
            ),
            (
                Wanted {
                    forced: true,
                    off: true,
                    ..terminal
                },
                true,
            ),
            (
                Wanted {
                    forced: true,
                    refused: true,
                    ..terminal
                },
                false,
            ),
        ] {
            assert_eq!(wanted.any(), expected, "{wanted:?}");
        }
    }

    #[test]
    fn a_tone_is_closed_and_without_a_palette_nothing_is_added() {
        assert_eq!(Palette::Off.paint(Tone::Bad, "failed"), "failed");
        assert_eq!(Palette::Many.paint(Tone::Good, ""), "");
        assert_eq!(
            Palette::Many.paint(Tone::Bad, "failed"),
            "\u{1b}[38;5;166mfailed\u{1b}[0m"
        );
        assert_eq!(
            Palette::Eight.paint(Tone::Good, "running"),
            "\u{1b}[1m\u{1b}[34mrunning\u{1b}[0m"
        );
    }
}
