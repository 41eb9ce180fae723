//! The daemon's active hours: hours of the week in which tasks are pulled, such as `8-17 MON-FRI`.

use std::str::FromStr;

use jiff::civil::{DateTime, Weekday};

const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Hours of days, as `--uptime` takes them: `17-20 TUE`, `13-0 SUN,SAT`. Hours are `START-END` without the last, 0 at the end
/// means 24, and an hour alone means from then to midnight; days are names or ranges of them, from SUN to SAT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours {
    hours: Vec<(i8, i8)>,
    days: Vec<usize>,
}

impl Hours {
    /// Whether they hold this moment of local time.
    pub fn hold(&self, now: DateTime) -> bool {
        let hour = now.hour();
        let day = usize::from(now.weekday().since(Weekday::Sunday).unsigned_abs());
        self.days.contains(&day)
            && self
                .hours
                .iter()
                .any(|(from, to)| (*from..*to).contains(&hour))
    }
}

/// The text is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a time window such as \"8-17 MON-FRI\"")]
pub struct WindowError(pub String);

impl FromStr for Hours {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        read(text).ok_or_else(|| WindowError(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Hours> {
    let (hours, days) = text.trim().split_once(' ')?;
    let hour = |text: &str| {
        text.parse::<i8>()
            .ok()
            .filter(|hour| (0..=24).contains(hour))
    };
    let span = |text: &str| match text.split_once('-') {
        None => Some((hour(text)?, 24)),
        Some((from, to)) => match (hour(from)?, hour(to)?) {
            (from, 0) => Some((from, 24)),
            (from, to) => (from < to).then_some((from, to)),
        },
    };
    let day = |text: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(text));
    let range = |text: &str| {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let (from, to) = (day(from)?, day(to)?);
        // Round the week, where the stock agent's SAT-MON is no day at all.
        let end = if from <= to { to } else { to + DAYS.len() };
        Some((from..=end).map(|day| day % DAYS.len()).collect::<Vec<_>>())
    };
    let hours: Option<Vec<_>> = hours.split(',').map(span).collect();
    let days: Option<Vec<_>> = days.trim().split(',').map(range).collect();
    Some(Hours {
        hours: hours?,
        days: days?.concat(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i8, hour: i8) -> DateTime {
        // 4 January 2026 was a Sunday.
        jiff::civil::date(2026, 1, 4 + day).at(hour, 30, 0, 0)
    }

    #[test]
    fn hours_and_days_are_read_as_the_stock_agent_reads_them() {
        let office: Hours = "8-17 MON-FRI".parse().unwrap();
        assert!(office.hold(at(1, 8)) && office.hold(at(5, 16)));
        assert!(!office.hold(at(1, 7)) && !office.hold(at(1, 17)) && !office.hold(at(6, 12)));
        let evenings: Hours = "17-20,22 tue,SUN".parse().unwrap();
        assert!(evenings.hold(at(2, 19)) && evenings.hold(at(0, 23)) && !evenings.hold(at(2, 21)));
        let to_midnight: Hours = "13-0 SAT".parse().unwrap();
        assert!(to_midnight.hold(at(6, 23)) && !to_midnight.hold(at(6, 12)));
        let weekend: Hours = "0-24 SAT-SUN".parse().unwrap();
        assert!(weekend.hold(at(6, 0)) && weekend.hold(at(0, 5)) && !weekend.hold(at(3, 5)));
    }

    #[test]
    fn what_is_no_window_is_refused_with_what_was_written() {
        for text in ["", "8-17", "17-8 MON", "8-25 MON", "8-17 MOO", "x MON"] {
            assert_eq!(text.parse::<Hours>(), Err(WindowError(text.to_owned())));
        }
    }
}
