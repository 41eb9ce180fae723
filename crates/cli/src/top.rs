//! `divvy top`: the live view of GPUs, jobs and pending jobs in a terminal.
//!
//! ```text
//! terminal ──► Input ──► update(state) ──► Call ──► client ──► daemon
//!    ▲                       │                        │
//!    └──── draw(&state) ◄────┘◄───────── Input ◄──────┘
//! ```
//! [`update`] and [`draw`] are pure: state, input and size decide the calls and every cell. `live` is the loop around
//! them, `terminal` takes and restores the terminal, `fetch` calls the daemon. All figures come from the API; the view
//! asks neither the driver nor `/proc`.

mod call;
mod draw;
mod fetch;
mod filter;
mod keys;
mod layout;
mod live;
mod look;
mod once;
mod plain;
mod rows;
mod sample;
mod state;
mod terminal;
mod update;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode};
use jiff::SignedDuration;
use jiff::tz::TimeZone;
use tokio::time::sleep;

use crate::args::{Format, Top};
use crate::error_output::usage;
use crate::output::{self, Stop, print};
use look::Look;
use state::{INTERVALS, Options};

/// The text of a filter before the first key, and the jobs that it leaves.
fn options(args: &Top) -> Result<Options, Error> {
    let typed = args.interval.as_str();
    let interval = typed.parse::<SignedDuration>().ok();
    let shortest = SignedDuration::from_millis(INTERVALS[0]);
    let longest = SignedDuration::from_millis(INTERVALS[INTERVALS.len() - 1]);
    let interval = interval.filter(|interval| (shortest..=longest).contains(interval));
    let Some(interval) = interval else {
        let why = format!("invalid interval {typed:?}: it is between 500ms and 10s");
        return Err(usage(why, "use --interval 2s"));
    };
    Ok(Options {
        is_readonly: args.readonly,
        interval,
        look: Look::from_environment(args.ascii, |name| std::env::var(name).ok()),
        zone: TimeZone::system,
        is_once: false,
    })
}

/// Whether a terminal can show the view: stdin for keys, stdout for cells.
fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

fn is_dumb() -> bool {
    std::env::var("TERM").is_ok_and(|term| term == "dumb")
}

/// Shows the view in the form that the flags and the terminal ask for.
///
/// # Errors
/// Those of the first board: without a daemon there is no view.
pub async fn top(client: Client, args: Top) -> Result<ExitCode, Stop> {
    let options = options(&args)?;
    let filter = args.filter.as_deref().unwrap_or_default();
    match args.output {
        Some(format) => return documents(&client, &options, &args, format).await,
        None if args.once => return draw_once(&client, options, filter).await,
        None if args.plain => return lines(&client, &options, &args).await,
        None => {}
    }
    if !has_terminal() {
        return draw_once(&client, options, filter).await;
    }
    if is_dumb() {
        return lines(&client, &options, &args).await;
    }
    let board = client.board().await?;
    live::show(client, options, filter, board).await
}

async fn draw_once(client: &Client, options: Options, filter: &str) -> Result<ExitCode, Stop> {
    print(once::once(client, options, filter, output::view().width).await?)?;
    Ok(ExitCode::SUCCESS)
}

/// A document a tick.
async fn documents(
    client: &Client,
    options: &Options,
    args: &Top,
    format: Format,
) -> Result<ExitCode, Stop> {
    let is_line = match format {
        Format::Json => false,
        Format::Ndjson => true,
        _ => {
            return Err(usage(
                "top cannot use this --output: its formats are json and ndjson",
                "use -o ndjson, or -1 for one drawing as text",
            )
            .into());
        }
    };
    let mut is_first = true;
    loop {
        if let Some(board) = renewed(client, &mut is_first).await? {
            print(once::document(&board, is_line)?)?;
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(pause(options)).await;
    }
}

fn pause(options: &Options) -> Duration {
    Duration::try_from(options.interval).unwrap_or(Duration::from_secs(1))
}

/// A board. After the first one a daemon may be away; `None` while it is.
async fn renewed(
    client: &Client,
    is_first: &mut bool,
) -> Result<Option<divvy_api::v1::Board>, Error> {
    match client.board().await {
        Ok(board) => {
            *is_first = false;
            Ok(Some(board))
        }
        Err(error) if !*is_first && is_away(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_away(error: &Error) -> bool {
    matches!(error.code, ErrorCode::NoDaemon | ErrorCode::Unresponsive)
}

/// Lines that changed, and events as they come.
async fn lines(client: &Client, options: &Options, args: &Top) -> Result<ExitCode, Stop> {
    let mut plain = plain::Plain::default();
    let filter = filter::Filter::parse(args.filter.as_deref().unwrap_or_default());
    let (mut is_first, mut was_away) = (true, false);
    let mut seen = None;
    loop {
        let mut changed = Vec::new();
        match renewed(client, &mut is_first).await? {
            Some(board) => {
                if std::mem::take(&mut was_away) {
                    changed.push("the daemon answers again".to_owned());
                }
                changed.extend(plain.changes(&board, &filter));
                let after = seen.unwrap_or(board.last_event).min(board.last_event);
                seen = Some(board.last_event);
                let mut rings = false;
                if board.last_event > after {
                    let most = u64::try_from(state::MOST_EVENTS).unwrap_or(u64::MAX);
                    let after = after.max(board.last_event.saturating_sub(most));
                    match client.events(after).await {
                        Ok(events) => {
                            seen = events.last().map(|event| event.seq).or(seen);
                            rings = !events.is_empty();
                            changed.extend(
                                events
                                    .iter()
                                    .map(|event| plain::event_words(event, (options.zone)())),
                            );
                        }
                        // The next board says that it is away.
                        Err(error) if is_away(&error) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                if rings && args.bell {
                    print("\x07")?;
                }
            }
            None if !was_away => {
                was_away = true;
                changed.push("the daemon does not answer".to_owned());
            }
            None => {}
        }
        if !changed.is_empty() {
            print(changed.join("\n") + "\n")?;
        }
        sleep(pause(options)).await;
    }
}
