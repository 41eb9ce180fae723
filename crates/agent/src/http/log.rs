//! A job's output: the file as it is, and with `follow` what comes until the job has ended.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{Error, ErrorCode, JobState, Runner};
use http_body_util::channel::{Channel, Sender};
use serde::Deserialize;

use super::body::{Failure, Path, Query};
use super::{Api, internal};
use crate::mailbox::{Message, Milestone};
use crate::records::JobDir;

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
    let first = tail.piece().map_err(|error| internal(&error))?;
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
        while let Ok(Some(piece)) = self.piece() {
            sender.send_data(piece).await?;
        }
        Ok(())
    }

    /// The next bytes, `None` when there are none now. Read here and not on another thread: it comes from memory.
    fn piece(&mut self) -> io::Result<Option<Bytes>> {
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => Some(file?),
            };
        }
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut piece = vec![0; PIECE];
        let length = file.read(&mut piece)?;
        piece.truncate(length);
        self.offset += length as u64;
        Ok((length > 0).then(|| piece.into()))
    }
}
