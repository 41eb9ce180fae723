//! Verbs that may go on: a job's output, events as they happen.
//!
//! Both know where they are (a byte, a sequence number), so a daemon that restarts in between costs nothing.

use std::process::ExitCode;

use divvy_api::client::Client;
use divvy_api::v1::Event;
use jiff::tz::TimeZone;

use super::away::Away;
use super::{Outcome, client, reference};
use crate::args::{Events, Format, Logs};
use crate::failure::usage;
use crate::output::{Stop, print, view};
use crate::render::{self, Item as _};

pub async fn logs(args: Logs) -> Outcome {
    let client = client()?;
    // `last` may be another job by the time of the second call.
    let job = client.job(reference(&args.job)).await?.id;
    let (mut offset, mut away) = (0, Away::default());
    while let Err(stop) = copy_log(&client, &job, &mut offset, args.follow, &mut away).await {
        match stop {
            Stop::Failed(error) if args.follow => away.forgive(error).await?,
            stop => return Err(stop),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the log from byte `offset` on, and moves `offset` along.
pub(super) async fn copy_log(
    client: &Client,
    job: &str,
    offset: &mut u64,
    follow: bool,
    away: &mut Away,
) -> Result<(), Stop> {
    let mut log = client.log(job, *offset, follow).await?;
    away.back();
    while let Some(bytes) = log.next().await? {
        print(&bytes)?;
        *offset += bytes.len() as u64;
    }
    Ok(())
}

pub async fn events(args: Events) -> Outcome {
    let client = client()?;
    let format = args.read.output;
    if !args.follow {
        let events = client.events(args.after).await?;
        print(render::list(&events, format, view(), render::events)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if format == Format::Json {
        return Err(usage(
            "-o json is one document, and -f has no end",
            "use -o ndjson: one event a line",
        )
        .into());
    }
    let (mut after, mut away) = (args.after, Away::default());
    client.node().await?;
    loop {
        let error = match copy_events(&client, &mut after, format, &mut away).await {
            // The agent ends the stream when it stops; the next call finds out whether it is back.
            Ok(()) => client.node().await.err(),
            Err(Stop::Failed(error)) => Some(error),
            Err(stop) => return Err(stop),
        };
        if let Some(error) = error {
            away.forgive(error).await?;
        }
    }
}

/// Copies events after sequence number `after`, and moves `after` along.
async fn copy_events(
    client: &Client,
    after: &mut u64,
    format: Format,
    away: &mut Away,
) -> Result<(), Stop> {
    let mut events = client.follow_events(*after).await?;
    away.back();
    while let Some(event) = events.next().await? {
        print(one_event(&event, format)?)?;
        *after = event.seq;
    }
    Ok(())
}

fn one_event(event: &Event, format: Format) -> serde_json::Result<String> {
    Ok(match format {
        Format::Table | Format::Wide => render::event_line(event, &TimeZone::system()),
        Format::Json | Format::Ndjson => serde_json::to_string(event)? + "\n",
        Format::Name => event.name() + "\n",
    })
}
