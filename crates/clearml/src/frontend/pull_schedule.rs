//! The pull schedule: whether tasks of a queue are pulled now, by its tags first, then by the daemon's active hours.
//! Pure.

use jiff::civil::DateTime;

use crate::config::{Hours, WindowError};

const ON: &str = "force_workers:on";
const OFF: &str = "force_workers:off";

/// The daemon's hours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    #[default]
    Always,
    /// Only in these.
    Uptime(Vec<Hours>),
    /// Not in these.
    Downtime(Vec<Hours>),
}

impl Gate {
    /// From what was written; with both, neither counts, as in the stock agent, and `true` comes with it.
    ///
    /// # Errors
    /// A text that is no window of hours and days.
    pub fn of(uptime: &[String], downtime: &[String]) -> Result<(Self, bool), WindowError> {
        let read = |texts: &[String]| {
            texts
                .iter()
                .map(|text| text.parse())
                .collect::<Result<Vec<Hours>, _>>()
        };
        let (uptime, downtime) = (read(uptime)?, read(downtime)?);
        Ok(match (uptime.is_empty(), downtime.is_empty()) {
            (true, true) => (Self::Always, false),
            (false, true) => (Self::Uptime(uptime), false),
            (true, false) => (Self::Downtime(downtime), false),
            (false, false) => (Self::Always, true),
        })
    }

    /// Whether tasks of a queue with these tags are pulled at this moment of local time.
    pub fn is_open(&self, tags: &[String], now: DateTime) -> bool {
        let tagged = |tag: &str| tags.iter().any(|other| other == tag);
        if tagged(OFF) {
            return false;
        }
        match self {
            _ if tagged(ON) => true,
            Self::Always => true,
            Self::Uptime(hours) => hours.iter().any(|hours| hours.hold(now)),
            Self::Downtime(hours) => !hours.iter().any(|hours| hours.hold(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_go_before_hours_and_off_before_on() {
        let monday = jiff::civil::date(2026, 1, 5).at(12, 0, 0, 0);
        let texts = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        let (day, _) = Gate::of(&texts(&["8-17 MON-FRI"]), &[]).unwrap();
        let (night, _) = Gate::of(&[], &texts(&["8-17 MON-FRI"])).unwrap();
        let (always, ignored) = Gate::of(&texts(&["8-17 MON"]), &texts(&["8-17 MON"])).unwrap();
        assert!(ignored);
        for (tags, by_day, by_night, at_all) in [
            (&[][..], true, false, true),
            (&["force_workers:on"][..], true, true, true),
            (&["force_workers:off"][..], false, false, false),
            (
                &["force_workers:on", "force_workers:off"][..],
                false,
                false,
                false,
            ),
            (&["other"][..], true, false, true),
        ] {
            let tags = texts(tags);
            assert_eq!(
                [&day, &night, &always].map(|gate| gate.is_open(&tags, monday)),
                [by_day, by_night, at_all],
                "{tags:?}"
            );
        }
        assert!(Gate::of(&texts(&["always"]), &[]).is_err());
    }
}
