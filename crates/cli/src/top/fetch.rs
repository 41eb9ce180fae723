//! The questions of the live view as calls of the API, each within a bound.

use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode, EventQuery, Job, Resize};
use jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use super::call::{Action, Data, LogPiece, NewSize, Question};
use super::state::MOST_LOG;
use crate::ask;

/// Longest time for an answer. The client gives up earlier when the daemon does not respond. Twice the client's own
/// limit of silence, so it ends only a call that neither answers nor fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Events of a job's page: more than a job has that was requeued often, and so enough. `divvy events` has the others.
const MOST_JOB_EVENTS: u32 = 200;

/// Answers a question.
///
/// # Errors
/// Those of the call; [`ErrorCode::TimedOut`] after 20 s.
pub async fn answer(client: &Client, question: &Question, now: Timestamp) -> Result<Data, Error> {
    within(ask_daemon(client, question, now)).await
}

async fn within<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = || {
        Error::new(
            ErrorCode::TimedOut,
            format!("no answer within {} s", PATIENCE.as_secs()),
        )
    };
    timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(late()))
}

async fn ask_daemon(client: &Client, question: &Question, now: Timestamp) -> Result<Data, Error> {
    Ok(match question {
        Question::Node => Data::Node(Box::new(client.node().await?)),
        Question::Board => Data::Board(Box::new(client.board().await?)),
        Question::Projects => Data::Projects(client.projects().await?),
        Question::Trend(gpu) => {
            let since = now - SignedDuration::from_secs(60);
            let history = client.history(&format!("gpu:{gpu}"), since, 1).await?;
            Data::History(Box::new(history))
        }
        Question::Events { after } => Data::Events(client.events(*after).await?),
        Question::Waiting { query, .. } => Data::Page(Box::new(client.job_page(query).await?)),
        Question::Job(job) => Data::Job(Box::new(client.job(job).await?)),
        Question::Why(job) => Data::Why(Box::new(client.why(job).await?)),
        Question::Oom(job) => Data::Oom(Box::new(client.oom(job).await?)),
        Question::JobEvents(job) => {
            let query = EventQuery {
                job: Some(job.clone()),
                tail: Some(MOST_JOB_EVENTS),
                ..EventQuery::default()
            };
            Data::Events(client.events_of(&query).await?)
        }
        Question::Curve { job, span } => {
            let since = now - SignedDuration::from_secs(span.seconds());
            let of = format!("job:{job}");
            Data::History(Box::new(client.history(&of, since, span.step()).await?))
        }
        Question::Log { job, from } => Data::Log(log(client, job, *from).await?),
    })
}

/// The output after `from`, or the end of it where more than the view keeps is missing.
async fn log(client: &Client, job: &str, from: u64) -> Result<LogPiece, Error> {
    let end = client.log_end(job).await?;
    let most = MOST_LOG as u64;
    let is_again = end < from;
    let start = if is_again {
        end.saturating_sub(most)
    } else {
        from.max(end.saturating_sub(most))
    };
    if start == end && !is_again {
        return Ok(LogPiece {
            from,
            end,
            ..LogPiece::default()
        });
    }
    let mut stream = client.log(job, start, false).await?;
    let mut piece = LogPiece {
        from: stream.from().max(start),
        ..LogPiece::default()
    };
    piece.end = piece.from;
    // A job that writes faster than it is read is cut off here; the next question goes on.
    while piece.bytes.len() < 2 * MOST_LOG {
        let Some(bytes) = stream.next().await? else {
            break;
        };
        piece.end += bytes.len() as u64;
        piece.bytes.extend(bytes);
    }
    Ok(piece)
}

/// Changes a job.
///
/// # Errors
/// The daemon's refusal; [`ErrorCode::TimedOut`] after 20 s.
pub async fn act(client: &Client, action: &Action) -> Result<Box<Job>, Error> {
    let job = action.job();
    let done = async {
        match action {
            Action::Cancel(_) => client.cancel(job).await,
            Action::Suspend(_) => client.suspend(job).await,
            Action::Resume(_) => client.resume(job).await,
            Action::Resize(_, size) => client.resize(job, &resize(size)?).await,
        }
    };
    within(done).await.map(Box::new)
}

fn resize(size: &NewSize) -> Result<Resize, Error> {
    let (amount, compute) = match size {
        NewSize::Gpu(typed) => (ask::amount(Some(typed), None)?, None),
        NewSize::Memory(typed) => (ask::amount(None, Some(typed))?, None),
        NewSize::Compute(typed) => (None, Some(ask::compute(typed)?)),
    };
    Ok(Resize {
        amount: amount.map(Into::into),
        compute,
    })
}
