//! `usage`: the accounting of GPU hours.

use std::process::ExitCode;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};

use super::{Outcome, client};
use crate::args::{Format, Usage};
use crate::error_output::{Result, usage};
use crate::output::{is_utf8, print, say, view};
use crate::render::{self, Marks};

pub async fn usages(args: Usage) -> Outcome {
    let now = Timestamp::now();
    let until = match &args.until {
        None => now,
        Some(text) => when("--until", text, now)?,
    };
    let since = when("--since", &args.since, until)?;
    let by = match args.by.as_str() {
        "none" => "",
        by => by,
    };
    let format = args.read.output;
    let marks = match args.ascii || !is_utf8() {
        true => Marks::Ascii,
        false => Marks::Blocks,
    };
    let client = client()?;
    let is_daily = by.split(',').any(|word| word == "day");
    let zone = is_daily.then(|| zone_name(&TimeZone::system(), now));
    let rows = client.usage(by, since, until, zone.as_deref()).await?;
    if !matches!(format, Format::Table | Format::Wide) {
        print(render::list(&rows, format, view(), |_, _| String::new())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let others: Vec<&str> = by.split(',').filter(|word| *word != "day").collect();
    let (totals, legend) = match is_daily && others.iter().any(|word| !word.is_empty()) {
        false => {
            print(render::list(&rows, format, view(), |rows, view| {
                render::usages(rows, view, marks)
            })?)?;
            (rows, None)
        }
        // A job may hold a GPU on many days, so days do not say how many jobs there were.
        true => {
            let totals = client.usage(&others.join(","), since, until, None).await?;
            let days = days(since, until.min(now));
            print(render::list(&totals, format, view(), |totals, view| {
                render::daily_usages(totals, &rows, &days, view, marks)
            })?)?;
            let legend = render::days_legend(&totals, &rows, &days);
            (totals, legend)
        }
    };
    let is_empty = totals.iter().all(|row| row.jobs == 0);
    say(&match is_empty {
        true => format!(
            "no job held a GPU from {} until {}",
            crate::text::time(since, TimeZone::system()),
            crate::text::time(until, TimeZone::system())
        ),
        false => render::usage_total(&totals, since, until, TimeZone::system),
    });
    if let Some(legend) = legend {
        say(&legend);
    }
    Ok(ExitCode::SUCCESS)
}

/// The zone as the daemon reads it: its name, or else its present offset.
fn zone_name(zone: &TimeZone, now: Timestamp) -> String {
    match zone.iana_name() {
        _ if zone.is_unknown() => "UTC".to_owned(),
        Some(name) => name.to_owned(),
        None => now.to_zoned(zone.clone()).strftime("%:z").to_string(),
    }
}

/// Days of this machine's calendar. The daemon has refused more days than a report may have.
fn days(since: Timestamp, until: Timestamp) -> Vec<String> {
    let date = |time: Timestamp| time.to_zoned(TimeZone::system()).date();
    // The last moment belongs to the period, its end does not.
    let end = until
        .checked_sub(Span::new().microseconds(1))
        .unwrap_or(until);
    let days = date(since).series(Span::new().days(1));
    let days = days.take_while(|day| *day <= date(end));
    days.map(|day| day.to_string()).collect()
}

/// A moment: so long before `end`, the beginning of a day here, or a time.
fn when(flag: &str, text: &str, end: Timestamp) -> Result<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    // A time of day would be cut off.
    if text.len() == "2026-11-01".len()
        && let Ok(day) = text.parse::<Date>()
        && let Ok(day) = day.to_zoned(TimeZone::system())
    {
        return Ok(day.timestamp());
    }
    let length = text.parse::<Span>().ok();
    let length = length.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    length
        .filter(|length| !length.is_negative())
        .and_then(|length| end.checked_sub(length).ok())
        .ok_or_else(|| {
            usage(
                format!("{flag} {text}: not a time"),
                "use 30d, 12h, 2026-11-01 or 2026-11-01T09:00:00Z",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_length_of_time_a_day_or_a_time() {
        let end: Timestamp = "2026-11-21T16:00:00Z".parse().unwrap();
        let of = |text| when("--since", text, end).unwrap();
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(of("30d"), time("2026-10-22T16:00:00Z"));
        assert_eq!(of("1w"), time("2026-11-14T16:00:00Z"));
        assert_eq!(of("90m"), time("2026-11-21T14:30:00Z"));
        assert_eq!(
            of("2026-11-01T09:00:00+01:00"),
            time("2026-11-01T08:00:00Z")
        );
        let day = of("2026-11-01").to_zoned(TimeZone::system());
        assert_eq!(day.strftime("%F %T").to_string(), "2026-11-01 00:00:00");
        for wrong in [
            "",
            "yesterday",
            "-3d",
            "30",
            "2026-13-01",
            "99999999d",
            "2026-11-01 09:00",
        ] {
            let error = when("--since", wrong, end).unwrap_err();
            assert!(
                error.message.contains("--since") && error.hint.is_some(),
                "{wrong}"
            );
        }
    }
}
