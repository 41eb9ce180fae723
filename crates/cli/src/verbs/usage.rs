//! `usage`: the accounting of GPU hours.

use divvy_api::client::Client;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::args::{Format, Usage};
use crate::ask::filters::moment;
use crate::call::{Outcome, client};
use crate::output::{Stop, is_utf8, view};
use crate::render::{self, Marks};
use crate::text;
use crate::watch::{self, Shown};

pub async fn usages(args: Usage) -> Outcome {
    let client = client()?;
    let format = args.look.read.output;
    let draw = async || shown(&client, &args).await;
    watch::show(args.look.watch, format, draw).await
}

/// The report until now.
async fn shown(client: &Client, args: &Usage) -> Result<Shown, Stop> {
    let now = Timestamp::now();
    let until = match &args.until {
        None => now,
        Some(text) => moment("--until", text, now)?,
    };
    let since = moment("--since", &args.since, until)?;
    let by = match args.by.as_str() {
        "none" => "",
        by => by,
    };
    let format = args.look.read.output;
    let marks = if args.ascii || !is_utf8() {
        Marks::Ascii
    } else {
        Marks::Blocks
    };
    let has = |name: &str| by.split(',').any(|word| word == name);
    let is_daily = has("day");
    let zone = (is_daily || has("month")).then(|| zone_name(&TimeZone::system(), now));
    let rows = client.usage(by, since, until, zone.as_deref()).await?;
    if !matches!(format, Format::Table | Format::Wide) {
        let text = render::list(&rows, format, view(), |_, _| String::new())?;
        return Ok(Shown::list(text));
    }
    let (idle, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.idle);
    let energy = render::energy_total(&rows, &idle);
    let others: Vec<&str> = by.split(',').filter(|word| *word != "day").collect();
    let (text, totals, legend) = if is_daily && others.iter().any(|word| !word.is_empty()) {
        // A job may hold a GPU on many days, so days do not say how many jobs there were.

        let mut totals = client.usage(&others.join(","), since, until, None).await?;
        totals.retain(|row| !row.idle);
        let days = days(since, until.min(now));
        let text = render::list(&totals, format, view(), |totals, view| {
            render::daily_usages(totals, &rows, &days, view, marks)
        })?;
        let legend = render::days_legend(&totals, &rows, &days);
        (text, totals, legend)
    } else {
        let text = render::list(&rows, format, view(), |rows, view| {
            render::usages(rows, view, marks)
        })?;
        (text, rows, None)
    };
    let is_empty = totals.iter().all(|row| row.jobs == 0);
    let total = if is_empty {
        format!(
            "no job held a GPU from {} until {}",
            text::time(since, TimeZone::system()),
            text::time(until, TimeZone::system())
        )
    } else {
        render::usage_total(&totals, since, until, TimeZone::system)
    };
    Ok(Shown {
        text,
        remarks: [Some(total), energy, legend]
            .into_iter()
            .flatten()
            .collect(),
    })
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
