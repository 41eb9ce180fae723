//! Calendar days and months of a usage report, in the caller's time zone. Pure.

use divvy_api::v1::Error;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone};

use crate::model::validate::usage;

/// Most days of one report: the days for which usage is kept by default, and two partial ones. So more would find
/// nothing.
pub const MAX_DAYS: usize = 402;

/// A stretch of time of a report: one day or month, or the whole window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// The day, or one of the month.
    pub day: Option<Date>,
    /// Microseconds since 1970.
    pub from: i64,
    pub to: i64,
}

/// Parses a time zone: an IANA name (`Europe/Berlin`), an offset (`+02:00`), or a POSIX rule (`CET-1CEST,M3.5.0,M10.5.0`).
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) with the text.
pub fn time_zone(text: &str) -> Result<TimeZone, Error> {
    let offset = |text: &str| {
        let time = format!("1970-01-01T00:00:00{text}");
        let pieces = jiff::fmt::temporal::DateTimeParser::new().parse_pieces(&time);
        let offset = pieces.ok()?.to_numeric_offset()?;
        // An offset of a day or more is no zone of any place.
        (offset.seconds().abs() < 24 * 3600).then(|| Offset::to_time_zone(offset))
    };
    TimeZone::get(text)
        .ok()
        .or_else(|| offset(text))
        .or_else(|| TimeZone::posix(text).ok())
        .ok_or_else(|| {
            usage(format!("zone={text} is not a time zone that the daemon knows")).hint(
                "use a name of the IANA database on the daemon's machine (Europe/Berlin), an offset (+02:00) or UTC",
            )
        })
}

/// The days from `since` until `until`; the first and the last are partial unless they begin or end at midnight. A day
/// on which clocks change has 23 or 25 hours.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) for more than [`MAX_DAYS`].
pub fn days(since: Timestamp, until: Timestamp, zone: &TimeZone) -> Result<Vec<Period>, Error> {
    periods((since, until), zone, "day", Date::tomorrow)
}

/// The months likewise, at most as many.
///
/// # Errors
/// As [`days`].
pub fn months(since: Timestamp, until: Timestamp, zone: &TimeZone) -> Result<Vec<Period>, Error> {
    periods((since, until), zone, "month", |day| {
        day.last_of_month().tomorrow()
    })
}

fn periods(
    (since, until): (Timestamp, Timestamp),
    zone: &TimeZone,
    unit: &str,
    next_of: impl Fn(Date) -> Result<Date, jiff::Error>,
) -> Result<Vec<Period>, Error> {
    let too_many = || {
        usage(format!(
            "usage by {unit} from {since} until {until}: more than {MAX_DAYS} {unit}s"
        ))
        .hint(format!(
            "ask for a shorter time with `since` and `until`, or leave out `{unit}`"
        ))
    };
    let end = until.as_microsecond();
    let mut from = since.as_microsecond();
    let mut date = since.to_zoned(zone.clone()).date();
    let mut days = Vec::new();
    while from < end {
        let next = next_of(date).ok();
        let midnight = next.and_then(|next| next.to_zoned(zone.clone()).ok());
        let to = midnight.map_or(end, |midnight| {
            midnight.timestamp().as_microsecond().min(end)
        });
        // A zone that moved across the date line left out a whole day.
        if to > from {
            if days.len() == MAX_DAYS {
                return Err(too_many());
            }
            days.push(Period {
                day: Some(date),
                from,
                to,
            });
            from = to;
        }
        match next {
            Some(next) => date = next,
            None => break,
        }
    }
    Ok(days)
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_api::v1::ErrorCode;

    fn hours(since: &str, until: &str, zone: &str) -> Vec<(String, i64)> {
        let zone = time_zone(zone).unwrap();
        let days = days(since.parse().unwrap(), until.parse().unwrap(), &zone).unwrap();
        let shown = |day: &Period| {
            let length = (day.to - day.from) / 3_600_000_000;
            (day.day.unwrap().to_string(), length)
        };
        days.iter().map(shown).collect()
    }

    #[test]
    fn days_on_which_clocks_change_have_23_or_25_hours() {
        let spring = hours(
            "2026-03-27T23:00:00Z",
            "2026-03-30T22:00:00Z",
            "Europe/Berlin",
        );
        let expected = [("2026-03-28", 24), ("2026-03-29", 23), ("2026-03-30", 24)];
        assert_eq!(
            spring,
            expected.map(|(day, length)| (day.to_owned(), length))
        );
        let autumn = hours(
            "2026-10-23T22:00:00Z",
            "2026-10-26T23:00:00Z",
            "Europe/Berlin",
        );
        let expected = [("2026-10-24", 24), ("2026-10-25", 25), ("2026-10-26", 24)];
        assert_eq!(
            autumn,
            expected.map(|(day, length)| (day.to_owned(), length))
        );
        // The clocks of São Paulo changed at midnight: the day began at one o'clock.
        let late = hours(
            "2018-11-03T03:00:00Z",
            "2018-11-05T02:00:00Z",
            "America/Sao_Paulo",
        );
        let expected = [("2018-11-03", 24), ("2018-11-04", 23)];
        assert_eq!(late, expected.map(|(day, length)| (day.to_owned(), length)));
        // Samoa left out 30 December 2011.
        let samoa = hours(
            "2011-12-29T10:00:00Z",
            "2012-01-01T10:00:00Z",
            "Pacific/Apia",
        );
        let expected = [("2011-12-29", 24), ("2011-12-31", 24), ("2012-01-01", 24)];
        assert_eq!(
            samoa,
            expected.map(|(day, length)| (day.to_owned(), length))
        );
    }

    #[test]
    fn the_first_and_the_last_day_are_partial() {
        let days = hours("2026-11-25T18:00:00Z", "2026-11-27T03:30:00Z", "UTC");
        let expected = [("2026-11-25", 6), ("2026-11-26", 24), ("2026-11-27", 3)];
        assert_eq!(days, expected.map(|(day, length)| (day.to_owned(), length)));
        assert!(hours("2026-11-25T18:00:00Z", "2026-11-25T18:00:00Z", "UTC").is_empty());
    }

    #[test]
    fn months_begin_at_midnight_of_their_first_day_and_have_the_same_bound() {
        let zone = time_zone("Europe/Berlin").unwrap();
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let found = months(
            time("2026-01-15T00:00:00Z"),
            time("2026-04-01T00:00:00Z"),
            &zone,
        );
        let shown = |month: &Period| {
            let begin = Timestamp::from_microsecond(month.from).unwrap();
            (
                month.day.unwrap().strftime("%Y-%m").to_string(),
                begin.to_string(),
            )
        };
        let expected = [
            ("2026-01", "2026-01-15T00:00:00Z"),
            ("2026-02", "2026-01-31T23:00:00Z"),
            ("2026-03", "2026-02-28T23:00:00Z"),
            ("2026-04", "2026-03-31T22:00:00Z"),
        ];
        let found: Vec<_> = found.unwrap().iter().map(shown).collect();
        assert_eq!(
            found,
            expected.map(|(month, begin)| (month.to_owned(), begin.to_owned()))
        );
        let error = months(Timestamp::UNIX_EPOCH, time("2026-01-01T00:00:00Z"), &zone);
        assert_eq!(error.unwrap_err().code, ErrorCode::Usage);
    }

    #[test]
    fn a_zone_is_a_name_an_offset_or_a_rule() {
        let at: Timestamp = "2026-07-01T12:00:00Z".parse().unwrap();
        for (text, hour) in [
            ("UTC", 12),
            ("Europe/Berlin", 14),
            ("+05:30", 17),
            ("-08:00", 4),
            ("CET-1CEST,M3.5.0,M10.5.0/3", 14),
        ] {
            let there = at.to_zoned(time_zone(text).unwrap());
            assert_eq!(there.hour(), hour, "{text}");
        }
        for wrong in [
            "",
            "Europe/Atlantis",
            "2h",
            "+30:00",
            "../../etc/passwd",
            "\0",
            "Z\n",
        ] {
            let error = time_zone(wrong).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{wrong:?}");
            assert!(
                error.hint.is_some() && error.message.contains("zone="),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_report_has_a_bounded_number_of_days() {
        let since: Timestamp = "2025-01-01T12:00:00Z".parse().unwrap();
        let until = |days: i64| since + jiff::SignedDuration::from_hours(24 * days);
        let most = i64::try_from(MAX_DAYS).unwrap() - 1;
        assert_eq!(
            days(since, until(most), &TimeZone::UTC).unwrap().len(),
            MAX_DAYS
        );
        let error = days(since, until(most + 1), &TimeZone::UTC).unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage);
        assert!(days(Timestamp::MIN, Timestamp::MAX, &TimeZone::UTC).is_err());
        let last = days(until(0), Timestamp::MAX, &TimeZone::UTC);
        assert!(last.is_err(), "{last:?}");
    }
}
