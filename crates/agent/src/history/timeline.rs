//! The timeline: which values held in each second. A value lasts until the next sample, but no longer than its sample
//! says; after that nothing is known. Pure.

use super::figures::Series;

/// The last sample, and how far it has been used.
#[derive(Default)]
pub struct Timeline {
    last: Option<Held>,
}

struct Held {
    series: Series,
    /// First second that was not given on.
    next: i64,
    /// Second from which on it no longer holds.
    until: i64,
}

impl Timeline {
    /// Gives seconds to `add` that the values before this sample lasted. The sample holds from second `at` on. A clock
    /// that was set back makes a sample that is earlier than the one before; both are given on.
    pub fn take(
        &mut self,
        at: i64,
        lasts: i64,
        series: Series,
        mut add: impl FnMut(i64, i64, &Series),
    ) {
        self.advance(at, &mut add);
        let next = match &self.last {
            // Its second has another value already, of an earlier sample in it.
            Some(held) if held.next == at.saturating_add(1) => held.next,
            _ => at,
        };
        let until = at.saturating_add(lasts.max(1));
        self.last = Some(Held {
            series,
            next,
            until,
        });
    }

    /// Gives on the seconds before `to`.
    pub fn advance(&mut self, to: i64, mut add: impl FnMut(i64, i64, &Series)) {
        let Some(held) = &mut self.last else { return };
        let seconds = to.min(held.until).saturating_sub(held.next);
        if seconds > 0 {
            add(held.next, seconds, &held.series);
            held.next += seconds;
        }
    }

    /// The last known second.
    pub fn now(&self) -> i64 {
        self.last.as_ref().map_or(0, |held| held.next)
    }
}
