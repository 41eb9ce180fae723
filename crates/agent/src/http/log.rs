//! A job's output: the file as it is, and with `follow` what comes until the job has ended.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{Error, ErrorCode, JobState, Runner};
use http_body_util::channel::{Channel, Sender};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::body::{Failure, Path, Query};
use super::{Api, internal};
use crate::mailbox::{Message, Milestone};
use crate::records::{JobDir, UNMOVED};

/// Bytes read at a time.
const PIECE: usize = 64 << 10;

/// How often a followed file is looked at.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    follow: bool,
}

pub async fn log(
    State(api): State<Api>,
    Path(reference): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, Failure> {
    let job = api.mailbox.read(move |cycle| cycle.job(&reference)).await?;
    if job.runner == Runner::Client {
        let why = format!(
            "job {} runs on its client's terminal, so its output is there and not in a log",
            job.id
        );
        return Err(Error::new(ErrorCode::NotFound, why)
            .hint("`divvy submit` keeps a log")
            .into());
    }
    let mut tail = Tail {
        path: JobDir::new(&job.directory).log(),
        file: None,
        offset: which.offset,
    };
    let follow = which.follow && job.state != JobState::Ended;
    let (sender, body) = Channel::<Bytes, io::Error>::new(4);
    // A log that cannot be read at all is a failure of the call, not of the stream.
    let first = tail.piece().await.map_err(|error| internal(&error))?;
    tokio::spawn(async move {
        // Who hung up wants no more.
        let _ = send(api, job.id, tail, first, follow, sender).await;
    });
    Ok((
        [(CONTENT_TYPE, "application/octet-stream")],
        Body::new(body),
    )
        .into_response())
}

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
    tail.drain(&mut sender).await?;
    if follow {
        let ended = api.mailbox.ask(|reply| Message::Wait {
            reference: job,
            milestone: Milestone::Ended,
            reply,
        });
        tokio::pin!(ended);
        loop {
            let over = tokio::select! {
                _ = &mut ended => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            // All was written before the job was seen to end.
            tail.drain(&mut sender).await?;
            if over {
                break;
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
}

impl Tail {
    async fn drain(
        &mut self,
        sender: &mut Sender<Bytes, io::Error>,
    ) -> Result<(), http_body_util::channel::SendError> {
        while let Ok(Some(piece)) = self.piece().await {
            sender.send_data(piece).await?;
        }
        Ok(())
    }

    /// The next bytes, `None` when there are none now. Read on a thread that may wait, as the file is the job's user's.
    async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        let (path, file, offset) = (self.path.clone(), self.file.take(), self.offset);
        let read = move || -> io::Result<Option<(File, Vec<u8>)>> {
            let Some(file) = file.map_or_else(|| open(&path), |file| Ok(Some(file)))? else {
                return Ok(None);
            };
            let mut piece = vec![0; PIECE];
            let length = file.read_at(&mut piece, offset)?;
            piece.truncate(length);
            Ok(Some((file, piece)))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let Some((file, piece)) = read.map_err(io::Error::other)?? else {
            return Ok(None);
        };
        self.file = Some(file);
        self.offset += piece.len() as u64;
        Ok((!piece.is_empty()).then(|| piece.into()))
    }
}

/// A log, if it is there yet.
fn open(path: &std::path::Path) -> io::Result<Option<File>> {
    match rustix::fs::open(path, OFlags::RDONLY | UNMOVED, Mode::empty()) {
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
    use std::io::{BufRead, BufReader};

    use super::*;

    #[tokio::test]
    async fn a_log_is_read_piece_by_piece_as_it_grows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail {
            path: path.clone(),
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
