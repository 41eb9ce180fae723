//! Streaming verbs: `logs --follow` and `events --follow`.
//!
//! Both know their position (a byte, a sequence number), so a restart of the daemon loses nothing.

use std::process::ExitCode;

use divvy_api::client::{Client, LogStart};
use divvy_api::v1::{Error, Event, EventQuery};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::array_logs::{self, Lines, in_order};
use super::reconnect::Reconnect;
use super::{Outcome, client, files, reference};
use crate::args::{Events, Format, Logs};
use crate::ask::filters::moment;
use crate::error_output::usage;
use crate::output::{Stop, print, say, view};
use crate::render::{self, Item as _};
use crate::text;

pub async fn logs(args: Logs) -> Outcome {
    let start = LogStart {
        tail: args.tail,
        since: since(args.since.as_deref())?,
    };
    let client = client()?;
    // `last` may be another job by the time of the second call.
    let meant = client.jobs_of(reference(&args.job)).await?;
    let job = meant.reference();
    match (meant.array, args.follow) {
        (None, follow) => {
            for meant in &meant.jobs {
                if files::print(&client, meant, follow, start).await? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            match follow {
                true => Log::from(start).follow(&client, &job).await?,
                false => Log::from(start).copy_all(&client, &job).await?,
            }
        }
        (Some(_), true) => array_logs::follow(client, &in_order(meant.jobs), start).await?,
        (Some(_), false) => array_logs::one_by_one(&client, &in_order(meant.jobs), start).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A place in what a job says.
pub(super) struct Log {
    offset: u64,
    /// Where the first answer begins, unless at `offset`.
    start: LogStart,
    /// When the daemon last gave nothing.
    away: Reconnect,
    /// How it is printed, unless as it is.
    lines: Option<Lines>,
}

impl Log {
    pub(super) fn from_start() -> Self {
        Self {
            offset: 0,
            start: LogStart::default(),
            away: Reconnect::default(),
            lines: None,
        }
    }

    /// With this patience for a daemon that is away.
    pub(super) fn reconnecting(self, away: Reconnect) -> Self {
        Self { away, ..self }
    }

    /// From this place on.
    pub(super) fn from(start: LogStart) -> Self {
        Self {
            start,
            ..Self::from_start()
        }
    }

    /// The same in whole lines.
    pub(super) fn in_lines(start: LogStart, lines: Lines) -> Self {
        Self {
            lines: Some(lines),
            ..Self::from(start)
        }
    }

    /// With what it says next.
    pub(super) async fn from_now(client: &Client, job: &str) -> Result<Self, Stop> {
        Ok(Self {
            offset: client.log_end(job).await?,
            ..Self::from_start()
        })
    }

    /// Prints it until the job has ended.
    pub(super) async fn follow(mut self, client: &Client, job: &str) -> Result<(), Stop> {
        loop {
            match self.copy(client, job, true).await {
                Ok(true) => {
                    let rest = self.lines.as_mut().map(Lines::end);
                    return print(rest.unwrap_or_default());
                }
                Ok(false) => {}
                Err(Stop::Failed(error)) => self.away.retry_or_fail(error).await?,
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Prints what it says until now.
    pub(super) async fn copy_all(mut self, client: &Client, job: &str) -> Result<(), Stop> {
        while !self.copy(client, job, false).await? {}
        Ok(())
    }

    /// Prints what one answer has; false where it was broken off after some of it.
    async fn copy(&mut self, client: &Client, job: &str, follow: bool) -> Result<bool, Stop> {
        let mut log = match self.start == LogStart::default() {
            true => client.log(job, self.offset, follow).await?,
            false => {
                let log = client.log_from(job, self.start, follow).await?;
                (self.offset, self.start) = (log.from(), LogStart::default());
                log
            }
        };
        self.away.back();
        let gone = log.from().saturating_sub(self.offset);
        if gone > 0 {
            let gone = text::memory(gone);
            say(&format!(
                "the log of #{job} no longer has {gone} of earlier output"
            ));
            self.offset = log.from();
        }
        let before = self.offset;
        loop {
            match log.next().await {
                Ok(Some(bytes)) => {
                    match &mut self.lines {
                        None => print(&bytes)?,
                        Some(lines) => print(lines.take(&bytes))?,
                    }
                    self.offset += bytes.len() as u64;
                }
                Ok(None) => return Ok(true),
                // The daemon may have cut it off because it had fallen behind; the next answer says so, or that there
                // is no daemon.
                Err(_) if self.offset > before => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

pub async fn events(args: Events) -> Outcome {
    let since = since(args.since.as_deref())?;
    let client = client()?;
    let format = args.read.output;
    let mut query = EventQuery {
        after: args.after,
        job: args.job.as_deref().map(|job| reference(job).to_owned()),
        since,
        tail: args.tail,
    };
    if !args.follow {
        let events = all_events(&client, query).await?;
        print(render::list(&events, format, view(), render::events)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if format == Format::Json {
        return Err(usage(
            "-o json cannot be combined with -f: JSON is one document",
            "use -o ndjson: one event per line",
        )
        .into());
    }
    let mut away = Reconnect::default();
    client.node().await?;
    loop {
        let error = match copy_events(&client, &mut query, format, &mut away).await {
            // The agent ends the stream when it stops; the next call finds out whether it is back.
            Ok(()) => client.node().await.err(),
            Err(Stop::Failed(error)) => Some(error),
            Err(stop) => return Err(stop),
        };
        if let Some(error) = error {
            away.retry_or_fail(error).await?;
        }
    }
}

/// A time of a flag.
fn since(text: Option<&str>) -> Result<Option<Timestamp>, Error> {
    text.map(|text| moment("--since", text, Timestamp::now()))
        .transpose()
}

/// The events that there are now. The daemon gives so many in one answer.
async fn all_events(client: &Client, mut query: EventQuery) -> Result<Vec<Event>, Error> {
    const PAGE: usize = 10_000;
    let mut events = client.events_of(&query).await?;
    let mut last = events.len();
    while last >= PAGE {
        query.after = events.last().map_or(0, |event| event.seq);
        (query.since, query.tail) = (None, None);
        let more = client.events_of(&query).await?;
        last = more.len();
        events.extend(more);
    }
    Ok(events)
}

/// Copies the events of a query, and moves the query along.
async fn copy_events(
    client: &Client,
    query: &mut EventQuery,
    format: Format,
    away: &mut Reconnect,
) -> Result<(), Stop> {
    let mut events = client.follow_events_of(query).await?;
    away.back();
    while let Some(event) = events.next().await? {
        print(one_event(&event, format)?)?;
        query.after = event.seq;
        (query.since, query.tail) = (None, None);
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
