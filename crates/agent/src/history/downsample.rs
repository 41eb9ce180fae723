//! Downsampling: the mean of each step. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::figures::{Series, Sums};

/// The means of one step, by subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Time of the step: seconds since 1970, a multiple of its length.
    pub at: i64,
    /// Length of the step in seconds.
    pub step: i64,
    pub series: Series,
}

/// Collects the seconds of one step.
pub struct Downsampler {
    step: i64,
    open: Option<(i64, BTreeMap<Arc<str>, Sums>)>,
}

impl Downsampler {
    pub fn new(step: i64) -> Self {
        Self { step, open: None }
    }

    /// Adds values that lasted some seconds; `row` gets every step that is over. A step ends with its last second, or with
    /// a second of another step.
    pub fn add(&mut self, from: i64, seconds: i64, series: &Series, mut row: impl FnMut(&Row)) {
        let (mut from, end) = (from, from.saturating_add(seconds));
        while from < end {
            let at = from.div_euclid(self.step) * self.step;
            if self.open.as_ref().is_some_and(|(open, _)| *open != at)
                && let Some(done) = self.finish()
            {
                row(&done);
            }
            let until = end.min(at + self.step);
            let (_, sums) = self.open.get_or_insert_with(|| (at, BTreeMap::new()));
            let lasted = u32::try_from(until - from).unwrap_or(0);
            for (subject, values) in series {
                match sums.get_mut(subject) {
                    Some(sums) => sums.add(values, lasted),
                    None => {
                        let mut new = Sums::default();
                        new.add(values, lasted);
                        sums.insert(Arc::clone(subject), new);
                    }
                }
            }
            if until == at + self.step
                && let Some(done) = self.finish()
            {
                row(&done);
            }
            from = until;
        }
    }

    /// The step that has begun, if it is over by then.
    pub fn finish_before(&mut self, now: i64) -> Option<Row> {
        let (at, _) = self.open.as_ref()?;
        match at + self.step <= now {
            true => self.finish(),
            false => None,
        }
    }

    /// The step that has begun.
    pub fn finish(&mut self) -> Option<Row> {
        let (at, sums) = self.open.take()?;
        Some(Row {
            at,
            step: self.step,
            series: sums
                .into_iter()
                .map(|(subject, sums)| (subject, sums.means()))
                .collect(),
        })
    }
}
