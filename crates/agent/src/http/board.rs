//! `GET /v1/board`: one rendering for all viewers, and the stream of its changes.
//!
//! The controller collects a board at most twice a second, and only when a viewer asks. A board holds nothing that
//! redaction removes, so its bytes serve every role. One task renders for all followers; a follower that reads slowly
//! skips to the newest board.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use divvy_api::sync::lock;
use divvy_api::v1::{Board, BoardChange, List};
use divvy_core::JobId;
use http_body_util::channel::{Channel, SendError, Sender};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::body::{ApiError, Query};
use super::{Api, HEAVY, internal};
use crate::host::clock::Instant;

/// A board serves all requests for so long.
const FRESH: Duration = Duration::from_millis(500);

/// Interval of the stream. As fast as a reader follows; half would double the work for each follower.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often a quiet stream shows that it is alive. Half of the 30 s after which proxies and clients take a connection
/// as dead.
const ALIVE: Duration = Duration::from_secs(15);

/// Shortest time between two estimates of the starts of waiting jobs. An estimate may take a second of a thread, so it
/// takes a tenth of it at most.
const ESTIMATED: Duration = Duration::from_secs(10);

/// Longest time of one estimate. Jobs that do not get their turn keep no start. So a tenth of [`ESTIMATED`].
const LONGEST_ESTIMATE: Duration = Duration::from_secs(1);

/// The daemon spends at most one part in so many of its time on estimates.
const ESTIMATE_PART: u32 = 20;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BoardQuery {
    follow: bool,
}

/// The rendered board and its followers.
#[derive(Default)]
pub struct Boards {
    /// Held while a board is rendered, so that all requests wait for the same one.
    newest: tokio::sync::Mutex<Option<(Instant, Arc<Rendered>)>>,
    starts: Mutex<Starts>,
    feed: Feed,
}

/// A board as it is sent.
struct Rendered {
    /// Each board has a higher number than the one before.
    number: u64,
    board: Board,
    /// Hash of the board without the time of its change.
    tag: u64,
    /// The list with the board.
    body: Bytes,
    /// The tag of the board before, and the message that turns that one into this.
    change: Option<(u64, Bytes)>,
}

/// The boards for followers. `None` as the value: the daemon is stopping, or no board was rendered yet.
struct Feed {
    sender: watch::Sender<Option<Arc<Rendered>>>,
    state: Mutex<FeedState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FeedState {
    Idle,
    /// A task renders boards.
    Running,
    /// The daemon is stopping.
    Ended,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            sender: watch::Sender::new(None),
            state: Mutex::new(FeedState::Idle),
        }
    }
}

impl Boards {
    /// Ends every stream.
    pub fn end(&self) {
        *lock(&self.feed.state) = FeedState::Ended;
        self.feed.sender.send_replace(None);
    }
}

/// Estimated starts of waiting jobs.
#[derive(Default)]
struct Starts {
    of: BTreeMap<String, Start>,
    next: Option<Instant>,
    is_running: bool,
}

/// The expected and the latest start of a job.
type Start = (Option<Timestamp>, Option<Timestamp>);

pub async fn board(
    api: Api,
    headers: HeaderMap,
    Query(query): Query<BoardQuery>,
) -> Result<Response, ApiError> {
    if query.follow {
        return follow(api).await;
    }
    let rendered = newest(&api).await?;
    let tag = format!("\"{:016x}\"", rendered.tag);
    let is_known = is_known(&headers, &tag);
    let about = [(ETAG, tag.as_str()), (CACHE_CONTROL, "no-cache")];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, about).into_response());
    }
    let kind = [(CONTENT_TYPE, "application/json")];
    Ok((about, kind, rendered.body.clone()).into_response())
}

/// Whether the client has the board with this tag (RFC 9110, section 13.1.2).
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let given = headers.get_all(IF_NONE_MATCH).iter();
    let mut given = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    given.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// The newest board. Requests within half a second get the same one.
async fn newest(api: &Api) -> Result<Arc<Rendered>, ApiError> {
    let mut newest = api.boards.newest.lock().await;
    if let Some((at, rendered)) = &*newest
        && at.elapsed() < FRESH
    {
        return Ok(Arc::clone(rendered));
    }
    // It serves all users.
    let read = api.mailbox.own();
    let mut board = read.query(|queries| Ok(queries.board())).await?;
    add_starts(api, &mut board);
    let before = newest.as_ref().map(|(_, before)| Arc::clone(before));
    let rendered = render_after(board, before).map_err(|error| internal(&error))?;
    *newest = Some((Instant::now(), Arc::clone(&rendered)));
    Ok(rendered)
}

/// Renders a board, unless it is the same as the one before.
fn render_after(board: Board, before: Option<Arc<Rendered>>) -> serde_json::Result<Arc<Rendered>> {
    let Some(before) = before else {
        return Ok(Arc::new(render(board, None)?));
    };
    match board.change_since(&before.board) {
        None => Ok(before),
        Some(change) => Ok(Arc::new(render(board, Some((&before, change)))?)),
    }
}

/// Renders a board; `after`: the board before, and the change from that one.
fn render(
    mut board: Board,
    after: Option<(&Rendered, BoardChange)>,
) -> serde_json::Result<Rendered> {
    let changed_at = std::mem::replace(&mut board.changed_at, Timestamp::UNIX_EPOCH);
    let mut hasher = DefaultHasher::new();
    hasher.write(&serde_json::to_vec(&board)?);
    board.changed_at = changed_at;
    let number = after.as_ref().map_or(0, |(before, _)| before.number + 1);
    let change = after
        .map(|(before, change)| {
            Ok::<_, serde_json::Error>((before.tag, message("change", &change)?))
        })
        .transpose()?;
    Ok(Rendered {
        number,
        tag: hasher.finish(),
        body: serde_json::to_vec(&List::new("Board", vec![&board]))?.into(),
        board,
        change,
    })
}

/// A server-sent event.
fn message(kind: &str, what: &impl Serialize) -> serde_json::Result<Bytes> {
    let data = serde_json::to_string(what)?;
    Ok(format!("event: {kind}\ndata: {data}\n\n").into())
}

async fn follow(api: Api) -> Result<Response, ApiError> {
    let news = api.boards.feed.sender.subscribe();
    let first = newest(&api).await?;
    start_feed(&api);
    let (sender, body) = Channel::<Bytes, Infallible>::new(1);
    let begin = message("board", &first.board).map_err(|error| internal(&error))?;
    tokio::spawn(async move {
        // The client has hung up.
        let _ = send_changes((begin, first), news, sender).await;
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, HttpBody::new(body)).into_response())
}

/// Sends a board and then each change. While the client does not read, the task waits with one message, and goes on with
/// the newest board.
async fn send_changes(
    (begin, mut seen): (Bytes, Arc<Rendered>),
    mut news: watch::Receiver<Option<Arc<Rendered>>>,
    mut sender: Sender<Bytes, Infallible>,
) -> Result<(), SendError> {
    sender.send_data(begin).await?;
    loop {
        match tokio::time::timeout(ALIVE, news.changed()).await {
            Err(_) => sender.send_data(Bytes::from_static(b": alive\n\n")).await?,
            Ok(changed) => {
                if changed.is_err() {
                    return Ok(());
                }
                let Some(newest) = news.borrow_and_update().clone() else {
                    // The daemon is stopping.
                    return Ok(());
                };
                // The stream's first board may be newer than the feed's.
                if newest.number > seen.number {
                    if let Some(change) = change_between(&seen, &newest) {
                        sender.send_data(change).await?;
                    }
                    seen = newest;
                }
            }
        }
    }
}

/// The message that turns one board into another; `None` if they are the same.
fn change_between(seen: &Rendered, newest: &Rendered) -> Option<Bytes> {
    if let Some((before, change)) = &newest.change
        && *before == seen.tag
    {
        return Some(change.clone());
    }
    let change = newest.board.change_since(&seen.board)?;
    message("change", &change).ok()
}

/// Has a task render boards while a client follows them.
fn start_feed(api: &Api) {
    let mut state = lock(&api.boards.feed.state);
    if *state == FeedState::Idle {
        *state = FeedState::Running;
        tokio::spawn(feed(api.clone()));
    }
}

async fn feed(api: Api) {
    let feed = &api.boards.feed;
    loop {
        let Ok(newest) = newest(&api).await else {
            // The controller has stopped.
            api.boards.end();
            return;
        };
        {
            let mut state = lock(&feed.state);
            if *state == FeedState::Ended {
                return;
            }
            if feed.sender.receiver_count() == 0 {
                *state = FeedState::Idle;
                return;
            }
            feed.sender.send_if_modified(|last| {
                let is_new = (last.as_ref()).is_none_or(|last| !Arc::ptr_eq(last, &newest));
                if is_new {
                    *last = Some(newest);
                }
                is_new
            });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Adds the starts that are known, and has them estimated again if they are old.
fn add_starts(api: &Api, board: &mut Board) {
    let first = &mut board.waiting.first;
    let mut starts = lock(&api.boards.starts);
    for job in &mut *first {
        if let Some(start) = starts.of.get(&job.id) {
            (job.expected_start, job.latest_start) = *start;
        }
    }
    let is_due = starts.next.is_none_or(|next| next <= Instant::now());
    if first.is_empty() || starts.is_running || !is_due {
        return;
    }
    starts.is_running = true;
    let jobs: Vec<String> = first.iter().map(|job| job.id.clone()).collect();
    let api = api.clone();
    tokio::spawn(async move {
        let (of, spent) = estimate(&api, jobs).await;
        let rest = ESTIMATED.max(spent * ESTIMATE_PART);
        *lock(&api.boards.starts) = Starts {
            of,
            next: Some(Instant::now() + rest),
            is_running: false,
        };
    });
}

/// Estimates the starts of these jobs, in their order, for as long as it may take; and how long that took.
async fn estimate(api: &Api, jobs: Vec<String>) -> (BTreeMap<String, Start>, Duration) {
    let mut starts = BTreeMap::new();
    let budget = api.budget.for_user(api.me.uid);
    let mailbox = api.mailbox.own();
    let read = mailbox.query(|queries| Ok(queries.estimates())).await;
    let Ok(input) = read else {
        return (starts, Duration::ZERO);
    };
    let mut spent = Duration::ZERO;
    for job in jobs {
        let Ok(id) = job.parse::<JobId>() else {
            continue;
        };
        if spent >= LONGEST_ESTIMATE {
            break;
        }
        let input = Arc::clone(&input);
        let work = move || {
            let begun = Instant::now();
            (input.starts_of(id), begun.elapsed())
        };
        // Each job waits for its turn among the answers that take long.
        let Ok((start, took)) = budget.run_in_turn(&HEAVY, work).await else {
            break;
        };
        spent += took;
        starts.insert(job, start);
    }
    (starts, spent)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use http_body_util::BodyExt as _;
    use serde_json::json;

    use super::*;

    fn board(used: u64) -> Board {
        serde_json::from_value(json!({
            "hostname": "lab", "version": "1", "changed_at": "2026-01-02T03:04:05Z", "last_event": 7,
            "gpus": [{ "index": 0, "model": "A", "mode": "shared", "usable_bytes": 9, "used_bytes": used,
                "allocated_bytes": 2, "share": 0 }],
            "jobs": [], "waiting": { "count": 0 }, "queues": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_tag_is_of_the_content_without_its_time() {
        let first = render(board(1), None).unwrap();
        let later = Board {
            changed_at: Timestamp::now(),
            ..board(1)
        };
        assert!(later.change_since(&first.board).is_none());
        assert_eq!(render(later, None).unwrap().tag, first.tag);
        assert!(board(2).change_since(&first.board).is_some());
        assert_ne!(render(board(2), None).unwrap().tag, first.tag);
    }

    #[test]
    fn a_known_tag_is_one_of_those_that_the_client_names() {
        for (given, known) in [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\", \"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("a", false),
        ] {
            let headers = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static(given))]);
            assert_eq!(is_known(&headers, "\"a\""), known, "{given}");
        }
        assert!(!is_known(&HeaderMap::new(), "\"a\""));
    }

    #[tokio::test]
    async fn a_follower_that_does_not_read_holds_one_message_and_goes_on_with_the_newest_board() {
        let rendered = |used, before: Option<&Arc<Rendered>>| {
            render_after(board(used), before.cloned()).unwrap()
        };
        let first = rendered(0, None);
        let feed = watch::Sender::new(None);
        let (sender, body) = Channel::<Bytes, Infallible>::new(1);
        let begin = message("board", &first.board).unwrap();
        let begin = (begin, Arc::clone(&first));
        let task = tokio::spawn(send_changes(begin, feed.subscribe(), sender));
        let mut last = first;
        for used in 1..=100 {
            last = rendered(used, Some(&last));
            feed.send(Some(Arc::clone(&last))).unwrap();
            tokio::task::yield_now().await;
        }
        let mut body = std::pin::pin!(body);
        let (mut seen, mut messages): (Option<Board>, _) = (None, 0);
        while seen.as_ref() != Some(&last.board) {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            let text = String::from_utf8(frame.to_vec()).unwrap();
            let data = text.split_once("data: ").unwrap().1;
            match &mut seen {
                None => seen = serde_json::from_str(data).unwrap(),
                Some(seen) => seen.apply(serde_json::from_str(data).unwrap()),
            }
            messages += 1;
        }
        assert!(messages <= 5, "{messages}");
        feed.send(None).unwrap();
        assert!(body.frame().await.is_none(), "the stream ends");
        task.await.unwrap().unwrap();
    }
}
