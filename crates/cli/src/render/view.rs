//! The view: how a table is drawn.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::colour::Palette;
use crate::table::Fit;

/// What shares compute between the slices of a GPU. Said wherever a view speaks of compute.
pub const COMPUTE: &str = "time slices by share";

/// How a table is drawn.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Every column.
    pub wide: bool,
    /// Columns of the terminal; `None` where there is none, and nothing is cut.
    pub width: Option<usize>,
    /// Current time, for relative times.
    pub now: Timestamp,
    /// The zone of times of day.
    pub zone: fn() -> TimeZone,
    pub palette: Palette,
}

impl View {
    /// What tables have to fit. A wide one may be wider than the terminal, but not because of one cell.
    pub fn fit(self) -> Fit {
        match self.width {
            None => Fit::Uncut,
            Some(width) if self.wide => Fit::Cells(width),
            Some(width) => Fit::Table(width),
        }
    }
}
