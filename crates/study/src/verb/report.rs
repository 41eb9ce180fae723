//! The result of a study: on standard output in the format of `-o`, and as a chart in the file of `--svg`.

use std::process::ExitCode;

use divvy_cli::Outcome;

use super::chart;
use divvy_cli::args::{self, Format, StudyFormat};
use divvy_cli::error_output::{Result, usage};
use divvy_cli::output::{print, say, view};
use divvy_cli::render::{self, Item, View};

/// Refuses a chart of a study that draws none.
///
/// # Errors
/// `-o svg`, or `--svg`.
pub fn refuse_chart(args: &args::Simulate, study: &str) -> Result<()> {
    let flag = match (args.output, &args.svg) {
        (StudyFormat::Svg, _) => "-o svg",
        (_, Some(_)) => "--svg",
        (StudyFormat::Items(_), None) => return Ok(()),
    };
    Err(usage(
        format!("{study} does not use {flag}: it draws no chart"),
        "omit it; --mode fill, departures and waits draw charts",
    ))
}

/// What a study prints.
pub struct Report<'a, T> {
    pub items: &'a [T],
    pub table: fn(&[T], View) -> String,
    /// Lines on standard error above a table.
    pub notes: Vec<String>,
}

impl<T: Item> Report<'_, T> {
    /// Prints the result; `draw` makes the chart, where one is wanted.
    ///
    /// # Errors
    /// The file of `--svg` or standard output cannot be written.
    pub fn print(self, args: &args::Simulate, draw: impl FnOnce() -> String) -> Outcome {
        let is_chart = args.output == StudyFormat::Svg;
        let svg = (is_chart || args.svg.is_some()).then(draw);
        if let (Some(file), Some(svg)) = (&args.svg, &svg) {
            chart::write(file, svg)?;
        }
        match (args.output, svg) {
            (StudyFormat::Svg, svg) => print(svg.unwrap_or_default())?,
            (StudyFormat::Items(format), _) => {
                if matches!(format, Format::Table | Format::Wide) {
                    self.notes.iter().for_each(|note| say(note));
                }
                print(render::list(self.items, format, view(), self.table)?)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
