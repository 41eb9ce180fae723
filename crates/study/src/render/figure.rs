//! Parts of a whole, with their intervals.

use serde::{Serialize, Serializer};

use crate::engine::estimate::Estimate;

/// A part of 1 with its 95 % confidence interval, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub ratio: Ratio,
    /// Half the interval's width.
    pub ci95: Option<Ratio>,
}

/// A part of 1; in JSON with six decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio(pub f64);

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A difference that rounds to nothing has no sign.
        serializer.serialize_f64((self.0 * 1e6).round() / 1e6 + 0.0)
    }
}

impl From<Estimate> for Figure {
    fn from(estimate: Estimate) -> Self {
        Self {
            ratio: Ratio(estimate.mean),
            ci95: estimate.within.map(Ratio),
        }
    }
}

pub(super) fn percent(figure: &Figure) -> String {
    match figure.ci95 {
        Some(within) => format!("{:.2} ±{:.2}", figure.ratio.0 * 100.0, within.0 * 100.0),
        None => format!("{:.2}", figure.ratio.0 * 100.0),
    }
}

/// With its sign, also where it is above 0.
pub(super) fn signed(figure: Figure) -> String {
    let text = percent(&figure);
    if figure.ratio.0 < 0.0 || text.starts_with("0.00") {
        text
    } else {
        format!("+{text}")
    }
}
