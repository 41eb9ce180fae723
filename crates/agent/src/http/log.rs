//! The log route: a job's output file, and with `follow` new output until the job has ended.
//!
//! Only the job's end ends a followed answer in order. A daemon that stops breaks it off, so that the client asks again.
//!
//! An offset is a byte's place in all that the job has ever said. Where the beginning is not kept any more
//! ([`crate::host::log_trim`]) the answer starts with the first whole line that is, and a header says where that is.
//! One that falls behind what is given back meanwhile is cut off, and asks again.

use crate::controller::request::Milestone;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use divvy_api::last_lines::last_lines;
use divvy_api::v1::{Error, ErrorCode, Job, JobState, Runner};
use http_body_util::channel::{Channel, Sender};
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::body::{ApiError, Path, Query};
use super::job_list::value;
use super::{Api, Budget, internal};
use crate::controller::mailbox::Message;
use crate::host::clock::now;
use crate::host::{log_times, log_trim};
use crate::job_dir::{JobDir, SAFE_OPEN_FLAGS};
use crate::model::validate::usage;

/// The place of the answer's first byte in all that the job has said.
const LOG_FROM: HeaderName = HeaderName::from_static(divvy_api::route::LOG_FROM);

/// Bytes read at a time. As large as a pipe of Linux (pipe(7)), so that one read is one write.
const PIECE: usize = 64 << 10;

/// Interval of checking a followed file. A line is seen as soon as a reader notices; a shorter pause would cost a call
/// of the kernel for each follower.
const LOOK: Duration = Duration::from_millis(50);

/// A job that ran no longer has no time marks: the interval of marks, and two checks.
const LONGEST_WITHOUT_MARKS: SignedDuration = SignedDuration::from_secs(12);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    from: From,
    /// Only the last lines that are there now.
    #[serde(default)]
    tail: Option<String>,
    /// Only output since this time.
    #[serde(default)]
    since: Option<String>,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum From {
    #[default]
    Offset,
    /// With what comes next.
    End,
}

pub async fn log(
    api: Api,
    Path(reference): Path<String>,
    Query(which): Query<LogQuery>,
) -> Result<Response, ApiError> {
    let lines = value("tail", which.tail, "use a number of lines")?;
    let since = value("since", which.since, "use RFC 3339: 2026-11-21T16:00:00Z")?;
    let job = api
        .mailbox
        .query(move |queries| queries.job(&reference))
        .await?;
    if job.runner == Runner::Client {
        let why = format!(
            "job {} has no log: its output goes to the terminal of its client",
            job.id
        );
        return Err(Error::new(ErrorCode::NotFound, why)
            .hint("to get a log, start the job with `divvy submit`")
            .into());
    }
    if job.runner == Runner::Claim {
        let why = format!(
            "job {} has no log: it is a claim of another scheduler, and its output is in the logs of its pods",
            job.id
        );
        return Err(Error::new(ErrorCode::NotFound, why)
            .hint("kubectl logs POD")
            .into());
    }
    let mut tail = Tail {
        path: JobDir::new(&job.directory).log(),
        file: None,
        offset: which.offset,
        budget: api.budget.clone(),
    };
    match which.from {
        From::Offset => tail.skip().await,
        From::End => tail.skip_all().await,
    }
    .map_err(|error| internal(&error))?;
    if let Some(since) = since {
        tail.skip_to(since, &job).await?;
    }
    if let Some(lines) = lines {
        tail.skip_to_last(lines)
            .await
            .map_err(|error| internal(&error))?;
    }
    let from = tail.offset;
    let follow = which.follow && job.state != JobState::Ended;
    let (sender, body) = Channel::<Bytes, io::Error>::new(4);
    // A log that cannot be read at all is a failure of the call, not of the stream.
    let first = tail.piece().await.map_err(|error| internal(&error))?;
    if tail.file.is_none() && job.state == JobState::Ended && job.started_at.is_some() {
        let why = format!("the log of job {} was deleted", job.id);
        return Err(Error::new(ErrorCode::Gone, why)
            .hint("the daemon's key retention.max-log-bytes limits the size of each user's logs")
            .into());
    }
    tokio::spawn(async move {
        // The client has hung up.
        let _ = send(api, job.reference(), tail, first, follow, sender).await;
    });
    Ok((
        [
            (
                CONTENT_TYPE,
                HeaderValue::from_static("application/octet-stream"),
            ),
            (LOG_FROM, from.into()),
        ],
        Body::new(body),
    )
        .into_response())
}

/// Sends it, and breaks the answer off where what comes next has been given back, or where the daemon stops.
async fn send(
    api: Api,
    job: String,
    mut tail: Tail,
    first: Option<Bytes>,
    follow: bool,
    mut sender: Sender<Bytes, io::Error>,
) -> Result<(), http_body_util::channel::SendError> {
    if let Some(first) = first {
        sender.send_data(first).await?;
    }
    if let Some(error) = tail.drain(&mut sender).await? {
        sender.abort(error);
        return Ok(());
    }
    if follow {
        let ended = api.mailbox.request(|reply| Message::Wait {
            reference: job,
            milestone: Milestone::Ended,
            reply,
        });
        tokio::pin!(ended);
        loop {
            let over = tokio::select! {
                ended = &mut ended => Some(ended),
                () = tokio::time::sleep(LOOK) => None,
            };
            // All was written before the job was seen to end.
            if let Some(error) = tail.drain(&mut sender).await? {
                sender.abort(error);
                return Ok(());
            }
            match over {
                None => {}
                Some(Ok(_)) => break,
                // The daemon stops, and the job goes on: an orderly end of the answer would say that the job has ended.
                Some(Err(error)) => {
                    sender.abort(io::Error::other(error));
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// A place in a file that may not be there yet and may grow.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    budget: Budget,
}

impl Tail {
    /// Sends all that is there now. Returns the failure of the file, if it cannot be read.
    async fn drain(
        &mut self,
        sender: &mut Sender<Bytes, io::Error>,
    ) -> Result<Option<io::Error>, http_body_util::channel::SendError> {
        loop {
            match self.piece().await {
                Ok(Some(piece)) => sender.send_data(piece).await?,
                Ok(None) => return Ok(None),
                Err(error) => return Ok(Some(error)),
            }
        }
    }

    /// Goes on to what is still there: the first whole line, where a beginning is missing.
    async fn skip(&mut self) -> io::Result<()> {
        let offset = self.offset;
        let found = self.ask(move |file| {
            let Some(begin) =
                log_trim::first_kept_offset(file, offset)?.filter(|begin| *begin > offset)
            else {
                return Ok(offset);
            };
            let mut piece = vec![0; PIECE];
            let length = file.read_at(&mut piece, begin)?;
            let line = piece[..length].iter().position(|byte| *byte == b'\n');
            Ok(begin + line.map_or(0, |at| at as u64 + 1))
        });
        self.offset = found.await?.unwrap_or(offset);
        Ok(())
    }

    /// Goes on to the last lines of what is there from here on.
    async fn skip_to_last(&mut self, lines: u64) -> io::Result<()> {
        let begin = self.offset;
        let found = self.ask(move |file| {
            let end = file.metadata()?.len();
            last_lines(|piece, from| file.read_at(piece, from), (begin, end), lines)
        });
        self.offset = found.await?.unwrap_or(begin).max(begin);
        // More may have been given back meanwhile.
        self.skip().await
    }

    /// Goes on to the output since a time, beginning at a time mark of the log.
    async fn skip_to(&mut self, since: Timestamp, job: &Job) -> Result<(), ApiError> {
        let times = JobDir::new(&job.directory).log_times();
        let read = move || match open(&times)? {
            Some(file) => log_times::read_marks(&file),
            None => Ok(String::new()),
        };
        let marks = self
            .budget
            .run(read)
            .await?
            .map_err(|error| internal(&error))?;
        let written = self.ask(|file| Ok((file.metadata()?.len(), file.metadata()?.modified()?)));
        let written = written.await.map_err(|error| internal(&error))?;
        let Some((end, written)) = written else {
            return Ok(());
        };
        let run = RunTimes {
            submitted: job.submitted_at,
            began: job.started_at.filter(|_| job.runs_before == 0),
            ended: job.ended_at.unwrap_or_else(now),
            written: Timestamp::try_from(written).ok(),
        };
        let marked = log_times::length_at(&marks, since.as_millisecond());
        let Some(offset) = run.offset_since(since, marked, end) else {
            let job = job.reference();
            let why = format!(
                "the log of job {job} has no time marks, so its output since {since} cannot be found"
            );
            let hint = format!("for the last 100 lines: divvy logs -n 100 {job}");
            return Err(usage(why).hint(hint).into());
        };
        self.offset = self.offset.max(offset);
        self.skip().await.map_err(|error| internal(&error))
    }

    async fn skip_all(&mut self) -> io::Result<()> {
        let size = self.ask(|file| Ok(file.metadata()?.len())).await?;
        self.offset = size.unwrap_or(0);
        Ok(())
    }

    /// The next bytes, `None` when there are none now.
    async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        let offset = self.offset;
        let read = self.ask(move |file| {
            let mut piece = vec![0; PIECE];
            let length = file.read_at(&mut piece, offset)?;
            piece.truncate(length);
            // What is given back is given back from the beginning: what begins here now was whole when it was read.
            if length > 0 && log_trim::first_kept_offset(file, offset)? != Some(offset) {
                return Err(io::Error::other("the next part of the log was deleted"));
            }
            Ok(piece)
        });
        let piece = read.await?.unwrap_or_default();
        self.offset += piece.len() as u64;
        Ok((!piece.is_empty()).then(|| piece.into()))
    }

    /// Asks the file, once it is there. On a thread that may wait, as the file is the job's user's.
    async fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (path, file) = (self.path.clone(), self.file.take());
        let ask = move || -> io::Result<Option<(File, T)>> {
            let Some(file) = file.map_or_else(|| open(&path), |file| Ok(Some(file)))? else {
                return Ok(None);
            };
            let answer = question(&file)?;
            Ok(Some((file, answer)))
        };
        let asked = self.budget.run_whenever(ask).await;
        let asked = asked.map_err(|_| io::Error::other("cannot read the log"))?;
        Ok(asked?.map(|(file, answer)| {
            self.file = Some(file);
            answer
        }))
    }
}

/// What is known of the times of a log besides its marks.
struct RunTimes {
    submitted: Timestamp,
    /// The start of the job's only run.
    began: Option<Timestamp>,
    /// The end, or now.
    ended: Timestamp,
    /// The last output.
    written: Option<Timestamp>,
}

impl RunTimes {
    /// Where the output since a time begins, in a log that ends at `end`, with this length at the last mark before that
    /// time. `None` if it cannot be known.
    fn offset_since(&self, since: Timestamp, marked: Option<u64>, end: u64) -> Option<u64> {
        let is_before = |begin: Timestamp| since <= begin;
        if is_before(self.submitted) || self.began.is_some_and(is_before) {
            return Some(0);
        }
        if self.written.is_some_and(|written| written < since) {
            return Some(end);
        }
        let is_short = |began: Timestamp| self.ended.duration_since(began) <= LONGEST_WITHOUT_MARKS;
        let short = self.began.is_some_and(is_short).then_some(0);
        marked.map(|length| length.min(end)).or(short)
    }
}

/// A log, if it is there yet.
fn open(path: &std::path::Path) -> io::Result<Option<File>> {
    match rustix::fs::open(path, OFlags::RDONLY | SAFE_OPEN_FLAGS, Mode::empty()) {
        Ok(log) => Ok(Some(log.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            format!("a process holds a lease on {}", path.display()),
        )),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::io::{BufRead, BufReader};

    use super::*;

    #[tokio::test]
    async fn a_log_is_read_piece_by_piece_as_it_grows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail {
            path: path.clone(),
            budget: Budget::of(&Arc::default(), 1),
            file: None,
            offset: 1,
        };
        assert_eq!(tail.piece().await.unwrap(), None, "not there yet");
        std::fs::write(&path, "one").unwrap();
        assert_eq!(tail.piece().await.unwrap().unwrap(), "ne");
        assert_eq!(tail.piece().await.unwrap(), None);
        std::fs::write(&path, "one two").unwrap();
        assert_eq!(tail.piece().await.unwrap().unwrap(), " two");
    }

    #[test]
    fn output_since_a_time_begins_at_a_mark_or_where_it_is_known_and_else_nowhere() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let run = |began: Option<i64>, ended, written| RunTimes {
            submitted: at(100),
            began: began.map(at),
            ended: at(ended),
            written: Some(at(written)),
        };
        let long = || run(Some(200), 1000, 900);
        for (what, run, since, marked, offset) in [
            ("before the submission", long(), 50, None, Some(0)),
            ("before the run", long(), 200, None, Some(0)),
            ("after the last output", long(), 901, None, Some(5000)),
            ("with a mark", long(), 500, Some(70), Some(70)),
            (
                "a mark of a longer log",
                long(),
                500,
                Some(9999),
                Some(5000),
            ),
            ("without marks", long(), 500, None, None),
            ("a short run", run(Some(200), 212, 212), 205, None, Some(0)),
            ("a second run", run(None, 1000, 900), 500, None, None),
            (
                "a second run with marks",
                run(None, 1000, 900),
                500,
                Some(9),
                Some(9),
            ),
        ] {
            assert_eq!(run.offset_since(at(since), marked, 5000), offset, "{what}");
        }
    }

    #[tokio::test]
    async fn the_last_lines_are_those_of_what_is_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let lines: String = (0..300_000)
            .map(|number| format!("{number:014}\n"))
            .collect();
        std::fs::write(&path, &lines).unwrap();
        let tail = || Tail {
            path: path.clone(),
            budget: Budget::of(&Arc::default(), 1),
            file: None,
            offset: 0,
        };
        let mut last = tail();
        last.skip_to_last(2).await.unwrap();
        assert_eq!(
            last.piece().await.unwrap().unwrap(),
            lines[lines.len() - 30..]
        );
        if log_trim::can_punch_holes(dir.path()).is_err() {
            eprintln!("SKIPPED: no holes on this file system");
            return;
        }
        let file = File::options().write(true).open(&path).unwrap();
        log_trim::LogTrimmer::new(1 << 20).trim(&file);
        let mut all = tail();
        all.skip().await.unwrap();
        let kept = all.offset;
        all.skip_to_last(1_000_000).await.unwrap();
        assert_eq!(all.offset, kept, "no further than what is there");
        let mut none = tail();
        none.path = dir.path().join("none");
        none.skip_to_last(5).await.unwrap();
        assert_eq!(none.offset, 0, "not there yet");
    }

    #[tokio::test]
    async fn what_is_not_kept_is_skipped_to_the_next_line_and_never_read_as_zeros() {
        let dir = tempfile::tempdir().unwrap();
        if log_trim::can_punch_holes(dir.path()).is_err() {
            eprintln!("SKIPPED: no holes on this file system");
            return;
        }
        let path = dir.path().join("log");
        let lines: String = (0..300_000)
            .map(|number| format!("{number:014}\n"))
            .collect();
        std::fs::write(&path, &lines).unwrap();
        let tail = |offset| Tail {
            path: path.clone(),
            budget: Budget::of(&Arc::default(), 1),
            file: None,
            offset,
        };
        let mut behind = tail(0);
        behind.skip().await.unwrap();
        assert_eq!(behind.offset, 0, "all is there");
        assert!(behind.piece().await.unwrap().is_some());
        let file = File::options().write(true).open(&path).unwrap();
        log_trim::LogTrimmer::new(1 << 20).trim(&file);

        assert!(behind.piece().await.is_err(), "it has fallen behind");
        for start in [0, 20, behind.offset] {
            let mut again = tail(start);
            again.skip().await.unwrap();
            assert_eq!(again.offset % 15, 0, "a whole line");
            let piece = again.piece().await.unwrap().unwrap();
            let at = again.offset - piece.len() as u64;
            assert_eq!(
                piece[..15],
                lines.as_bytes()[usize::try_from(at).unwrap()..][..15]
            );
        }
        let mut end = tail(0);
        end.skip_all().await.unwrap();
        assert_eq!(
            (end.offset, end.piece().await.unwrap()),
            (lines.len() as u64, None)
        );
    }

    #[test]
    fn a_log_under_a_lease_or_behind_a_link_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "text").unwrap();
        let leased = std::process::Command::new("python3")
            .args(["-c", LEASE])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        match leased {
            Ok(mut holder) => {
                let mut said = String::new();
                let out = holder.stdout.take().unwrap();
                BufReader::new(out).read_line(&mut said).unwrap();
                let opened = open(&path);
                drop(holder.stdin.take());
                holder.wait().unwrap();
                match said.trim() {
                    "held" => {
                        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::WouldBlock);
                    }
                    _ => eprintln!("SKIPPED: this file system has no leases"),
                }
            }
            Err(error) => eprintln!("SKIPPED: no python3 to hold a lease: {error}"),
        }
        assert!(open(&path).unwrap().is_some());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open(&link).is_err());
    }

    /// Holds a write lease until its input ends; SIGIO, which asks for it back, is ignored.
    const LEASE: &str = "
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print('held', flush=True)
except OSError as error:
    print(error, flush=True)
sys.stdin.read()
";
}
