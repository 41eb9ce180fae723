//! `usage`: the accounting of GPU hours.

use std::process::ExitCode;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};

use super::{Outcome, client};
use crate::args::{Format, Usage};
use crate::error_output::{Result, usage};
use crate::output::{print, say, view};
use crate::render;

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
    let rows = client()?.usage(by, since, until).await?;
    let format = args.read.output;
    print(render::list(&rows, format, view(), render::usages)?)?;
    if matches!(format, Format::Table | Format::Wide) {
        say(&match rows.is_empty() {
            true => format!(
                "no job held a GPU from {} until {}",
                crate::text::time(since, TimeZone::system()),
                crate::text::time(until, TimeZone::system())
            ),
            false => render::usage_total(&rows, since, until, TimeZone::system),
        });
    }
    Ok(ExitCode::SUCCESS)
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
