//! Streaming verbs: `logs --follow` and `events --follow`.
//!
//! Both know their position (a byte, a sequence number), so a restart of the daemon loses nothing.

use std::process::ExitCode;

use divvy_api::client::{Client, LogStart};
use divvy_api::v1::{Error, ErrorCode, Event, EventQuery, JobState};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::array_logs::{self, Lines};
use super::files;
use super::reconnect::Reconnect;
use crate::args::{Events, Format, Logs};
use crate::ask::filters::moment;
use crate::call::{Outcome, client, in_order, reference};
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
            if follow {
                Log::from(start).follow(&client, &job).await?
            } else {
                Log::from(start).copy_all(&client, &job).await?
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
            let ended = match self.copy(client, job, true).await {
                Ok(true) => has_ended(client, job).await.map_err(Stop::from),
                copied => copied,
            };
            match ended {
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
        let mut log = if self.start == LogStart::default() {
            client.log(job, self.offset, follow).await?
        } else {
            let log = client.log_from(job, self.start, follow).await?;
            (self.offset, self.start) = (log.from(), LogStart::default());
            log
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

/// Whether the job's end ended its log. Daemons up to 0.1.0 ended each answer in order when they stopped.
async fn has_ended(client: &Client, job: &str) -> Result<bool, Error> {
    match client.job(job).await {
        Ok(job) => Ok(job.state == JobState::Ended),
        Err(error) if error.code == ErrorCode::NotFound => Ok(true),
        Err(error) => Err(error),
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
    if query.tail.is_some() {
        print_tail(&client, &mut query, format).await?;
    }
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
    /// The bound of the API for one call, so that the fewest calls read a long history.
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

/// Prints the last events of a query, and moves the query behind them. A tail counts from now, so a stream that begins
/// again after a restart of the daemon would leave out the events of the meantime.
async fn print_tail(client: &Client, query: &mut EventQuery, format: Format) -> Result<(), Stop> {
    let newest = EventQuery {
        tail: Some(1),
        ..EventQuery::default()
    };
    let newest = client.events_of(&newest).await?;
    let tail = all_events(client, query.clone()).await?;
    for event in &tail {
        print(one_event(event, format)?)?;
    }
    let last = newest.iter().chain(&tail).map(|event| event.seq).max();
    query.after = query.after.max(last.unwrap_or(0));
    (query.since, query.tail) = (None, None);
    Ok(())
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
        Format::Json | Format::Ndjson | Format::Csv => serde_json::to_string(event)? + "\n",
        Format::Name => event.name() + "\n",
    })
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::{Job, List};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::super::stop_reasons::tests::ended;
    use super::*;

    /// An answer of a daemon that stops after it.
    fn answer(body: &str) -> String {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked";
        format!("{head}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    }

    fn about(state: JobState) -> String {
        let job = Job {
            state,
            ..ended("completed")
        };
        answer(&serde_json::to_string(&List::new("JobList", vec![job])).unwrap())
    }

    #[tokio::test]
    async fn a_log_that_an_earlier_daemon_ended_in_order_while_the_job_runs_is_followed_further() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("divvy.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let serve = async {
            for (call, answer) in [
                ("/log?offset=0&follow=true", answer("one\n")),
                ("", about(JobState::Running)),
                ("/log?offset=4&follow=true", answer("two\n")),
                ("", about(JobState::Ended)),
            ] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]);
                let expected = format!("GET /v1/jobs/12{call} HTTP/1.1\r\n");
                assert!(request.starts_with(&expected), "{call}: {request}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let client = Client::new(&socket);
        let followed = Log::from_start().follow(&client, "12");
        let ((), followed) = tokio::join!(serve, followed);
        followed.unwrap();
    }
}
