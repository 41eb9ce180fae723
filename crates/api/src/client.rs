//! HTTP client of the agent over its unix socket: typed calls, streams, a pool of idle connections.
//!
//! ```text
//! Client ── idle connections ──► hyper (HTTP/1.1) ──► HOME/divvy.sock
//! ```
//! Many tasks may share one `Client`: a call takes an idle connection or opens one, and returns it to the pool after
//! the whole answer. The client never starts a daemon; a caller that does so looks for [`ErrorCode::NoDaemon`].
//!
//! If an answer is late, the client probes the daemon. If the probe gets no answer for 10 s, a call fails with
//! [`ErrorCode::Unresponsive`]. Long polls ([`Client::wait`], logs, events, frames of [`Client::exec`]) go on waiting.

mod exec;
mod forward;
mod liveness;
mod selection;
mod stream;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::frame::PROTOCOL;
use crate::home::system;
use crate::route::LOG_FROM;
use crate::v1::brief::Lines;
use crate::v1::job_query::{ITEMS, NEXT, TOTAL};
use crate::v1::{
    Advice, Board, Brief, CancelJob, Claim, ConfigReload, ConfigValue, Confirm, DockerArgs, Drain,
    Error, ErrorBody, ErrorCode, Event, EventQuery, Exec, Gpu, GpuChange, GpuChanged, HeldClaim,
    History, Job, JobPage, JobQuery, JobState, List, MigGc, MigInstance, MigPlacement, MigPlanned,
    MigWanted, Node, Oom, Project, ProjectChange, Queue, Resize, Signal, SignalJob, Submit,
    Suspend, Undrain, Usage, Why,
};
use crate::version;

pub use exec::{ExecInput, ExecOutput};
use liveness::{Liveness, Patience};
pub use selection::{Act, JobSelection};
pub use stream::{BoardStream, EventStream, LogStream};

/// What [`Client::wait`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The job holds its slice (or has ended): a client that runs it itself may start it.
    Starting,
    Ended,
}

impl WaitFor {
    fn query(self, timeout: Duration) -> String {
        let state = match self {
            Self::Starting => "starting",
            Self::Ended => "ended",
        };
        format!("/wait?state={state}&timeout_s={}", timeout.as_secs())
    }
}

/// Where [`Client::log_from`] begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStart {
    /// With so many last lines of the output that there is now.
    pub tail: Option<u64>,
    /// With the output since this time.
    pub since: Option<Timestamp>,
}

/// Which runs [`Client::advice`] is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runs {
    All,
    /// Runs of what this job runs.
    Like(String),
    /// Jobs with names that match; `*` stands for any text.
    Named(String),
    /// Runs of this program, as `divvy_core::command::program` says it.
    Of(String),
}

/// Calls the agent behind one socket.
#[derive(Debug)]
pub struct Client {
    liveness: Liveness,
    deadline: Option<Duration>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    /// The only process that may answer.
    process: Option<i32>,
}

/// Room is made at once for so many bytes of an answer, and for what is beyond as it comes.
const FORESEEN: usize = 64 << 20;

/// Pause between two tries to reach a daemon with a full connection queue. A round of the daemon lasts 50 ms at most
/// and empties the queue (048). Half would wake hundreds of clients too early; a second would be seen.
const QUEUE_PAUSE: Duration = Duration::from_millis(50);

/// Between two checks of the process behind a socket's path. The front end polls a queue every five seconds, so it sees
/// another daemon's jobs at most once.
const IDENTITY_CHECK: Duration = Duration::from_secs(2);

/// A successful answer, with the connection it came over.
struct Answer {
    response: Response<Incoming>,
    sender: SendRequest<Full<Bytes>>,
    patience: Patience,
}

impl Client {
    /// A client of the agent that listens on `socket`; connects with the first call.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            liveness: Liveness::new(socket.into()),
            deadline: None,
            idle: Mutex::new(Vec::new()),
            process: None,
        }
    }

    /// Takes answers of this process alone. A socket's path may be another daemon's by now, whose jobs are others.
    #[must_use]
    pub fn of_process(mut self, pid: u32) -> Self {
        self.process = Some(pid.cast_signed());
        self
    }

    /// Returns once another process answers at the socket's path than the one that this client is for. Where no process
    /// answers, the client tries again: the daemon may start to listen later.
    pub async fn replaced(&self) -> Error {
        loop {
            if let Ok(stream) = UnixStream::connect(self.socket()).await
                && let Ok(peer) = stream.peer_cred()
                && let Some(error) = self.other_process(peer.pid())
            {
                return error;
            }
            sleep(IDENTITY_CHECK).await;
        }
    }

    /// The refusal of a process that is not the one that this client is for.
    fn other_process(&self, peer: Option<i32>) -> Option<Error> {
        let only = self.process?;
        let peer = peer.filter(|peer| *peer != only)?;
        let why = format!(
            "the socket {} belongs to the daemon with process {peer}, not to this one (process {only})",
            self.socket().display()
        );
        Some(Error::new(ErrorCode::NoDaemon, why).hint(
            "give each daemon a DIVVY_HOME of its own, and never remove it while the daemon runs",
        ))
    }

    /// Fails a call if its answer does not begin within `deadline`. Calls that wait, such as [`Client::wait`], need a
    /// shorter wait than that.
    #[must_use]
    pub fn answered_within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Has `say` told in one line that the daemon does not respond, after 2 s, and that it responds again.
    #[must_use]
    pub fn telling(mut self, say: fn(&str)) -> Self {
        self.liveness = self.liveness.telling(say);
        self
    }

    pub fn socket(&self) -> &Path {
        self.liveness.socket()
    }

    /// The node and its agent.
    ///
    /// # Errors
    /// [`ErrorCode::NoDaemon`] when nothing answers, else what the agent said; so for every call here.
    pub async fn node(&self) -> Result<Node, Error> {
        self.one("/v1/node").await
    }

    pub async fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        self.list("/v1/gpus").await
    }

    /// Changes how a GPU may be used; `gpu` is an index or a UUID.
    pub async fn change_gpu(&self, gpu: &str, change: &GpuChange) -> Result<GpuChanged, Error> {
        let path = format!("/v1/gpus/{}", encoded(gpu));
        only(self.send(Method::PATCH, &path, change).await?)
    }

    /// Takes GPUs out of service; answers these GPUs.
    pub async fn drain(&self, drain: &Drain) -> Result<Vec<Gpu>, Error> {
        self.send(Method::POST, "/v1/gpus/drain", drain).await
    }

    /// Returns GPUs to service; answers these GPUs.
    pub async fn undrain(&self, undrain: &Undrain) -> Result<Vec<Gpu>, Error> {
        self.send(Method::POST, "/v1/gpus/undrain", undrain).await
    }

    /// Every MIG instance, by GPU and place.
    pub async fn mig_instances(&self) -> Result<Vec<MigInstance>, Error> {
        self.list("/v1/mig").await
    }

    /// Returns placements for instances of all these profiles together.
    pub async fn mig_plan(&self, wanted: &MigWanted) -> Result<Vec<MigPlanned>, Error> {
        self.send(Method::POST, "/v1/mig/plan", wanted).await
    }

    /// Removes idle instances; answers those.
    pub async fn mig_gc(&self, gc: &MigGc) -> Result<Vec<MigInstance>, Error> {
        self.send(Method::POST, "/v1/mig/gc", gc).await
    }

    /// Where MIG instances may lie on a GPU (an index or a UUID) in MIG mode, whatever lies there now; those first that
    /// are taken first. None for other GPUs.
    pub async fn placements(&self, gpu: &str) -> Result<Vec<MigPlacement>, Error> {
        self.list(&format!("/v1/gpus/{}/placements", encoded(gpu)))
            .await
    }

    /// Claims that are held, oldest first.
    pub async fn claims(&self) -> Result<Vec<HeldClaim>, Error> {
        self.list("/v1/claims").await
    }

    /// Has exactly these devices held; answers once they can be used. The same again changes nothing.
    pub async fn put_claim(&self, uid: &str, claim: &Claim) -> Result<HeldClaim, Error> {
        only(self.send(Method::PUT, &claim_path(uid), claim).await?)
    }

    /// Gives a claim back; `None` for one that is not held. While something of it is left its state is `stopping`.
    pub async fn delete_claim(&self, uid: &str) -> Result<Option<HeldClaim>, Error> {
        let answer = self
            .call(Method::DELETE, &claim_path(uid), Bytes::new())
            .await?;
        Ok(self.items(answer).await?.pop())
    }

    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        self.list("/v1/queues").await
    }

    /// Projects, by name.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        self.list("/v1/projects").await
    }

    /// Allocated and used GPU time, grouped by `day`, `user`, `project`, `queue`, `gpu`, `job`, `namespace` (with commas between, or
    /// nothing). `zone`: the time zone of days, UTC if absent.
    pub async fn usage(
        &self,
        by: &str,
        since: Timestamp,
        until: Timestamp,
        zone: Option<&str>,
    ) -> Result<Vec<Usage>, Error> {
        let zone = zone.map_or_else(String::new, |zone| format!("&zone={}", encoded(zone)));
        self.list(&format!(
            "/v1/usage?by={}&since={since}&until={until}{zone}",
            encoded(by)
        ))
        .await
    }

    /// The metrics in Prometheus's text format, version 0.0.4.
    pub async fn metrics(&self) -> Result<String, Error> {
        let answer = self.get("/metrics").await?;
        let page = self.text(answer).await?;
        String::from_utf8(page)
            .map_err(|error| internal(format!("the daemon's metrics are not UTF-8: {error}")))
    }

    /// Values of the configuration in force.
    pub async fn config(&self) -> Result<Vec<ConfigValue>, Error> {
        self.list("/v1/config").await
    }

    /// Has the daemon read its configuration file again.
    pub async fn reload_config(&self) -> Result<ConfigReload, Error> {
        let answer = self
            .call(Method::POST, "/v1/config/reload", Bytes::new())
            .await?;
        only(self.items(answer).await?)
    }

    /// Makes a project.
    pub async fn add_project(&self, name: &str, with: &ProjectChange) -> Result<Project, Error> {
        self.post(&project_path(name), with).await
    }

    /// Changes a project: what is said of it and nothing else.
    pub async fn set_project(&self, name: &str, change: &ProjectChange) -> Result<Project, Error> {
        only(
            self.send(Method::PATCH, &project_path(name), change)
                .await?,
        )
    }

    /// Removes a project that no job belongs to; answers it as it was.
    pub async fn remove_project(&self, name: &str) -> Result<Project, Error> {
        let answer = self
            .call(Method::DELETE, &project_path(name), Bytes::new())
            .await?;
        only(self.items(answer).await?)
    }

    /// Jobs that have not ended, or all of them, oldest first.
    pub async fn jobs(&self, all: bool) -> Result<Vec<Job>, Error> {
        self.list(if all { "/v1/jobs?all=true" } else { "/v1/jobs" })
            .await
    }

    /// As [`Client::jobs`], one job at a time, each with the columns of a table only.
    pub async fn jobs_briefly(&self, all: bool, take: impl FnMut(Brief<'_>)) -> Result<(), Error> {
        let path = if all {
            "/v1/jobs?brief=true&all=true"
        } else {
            "/v1/jobs?brief=true"
        };
        self.briefly(path, take).await
    }

    /// The newest jobs in a state, at most `limit`, oldest first.
    pub async fn newest_briefly(
        &self,
        state: JobState,
        limit: usize,
        take: impl FnMut(Brief<'_>),
    ) -> Result<(), Error> {
        let state = serde_json::to_value(state).map_err(|error| unexpected(&error, None))?;
        let state = state.as_str().unwrap_or_default();
        let path = format!("/v1/jobs?brief=true&state={state}&limit={limit}");
        self.briefly(&path, take).await
    }

    /// One page of the jobs that match a query. A daemon of an earlier version refuses the parameters that it does not
    /// know.
    pub async fn job_page(&self, query: &JobQuery) -> Result<JobPage, Error> {
        let answer = self.get(&job_list_path(query)).await?;
        let header = |name| text_of(&answer.response, name);
        let (total, items, next) = (header(TOTAL), header(ITEMS), header(NEXT));
        let jobs: Vec<Job> = self.items(answer).await?;
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        let total = number(total).unwrap_or(jobs.len() as u64);
        Ok(JobPage {
            total,
            items: number(items).unwrap_or(total),
            next,
            jobs,
        })
    }

    /// As [`Client::job_page`], one job at a time, each with the columns of a table only.
    pub async fn page_briefly(
        &self,
        query: &JobQuery,
        take: impl FnMut(Brief<'_>),
    ) -> Result<(), Error> {
        let query = JobQuery {
            brief: true,
            ..query.clone()
        };
        self.briefly(&job_list_path(&query), take).await
    }

    /// One small picture of the node.
    pub async fn board(&self) -> Result<Board, Error> {
        only(self.list("/v1/board").await?)
    }

    /// The board, and then each board that differs from the one before.
    pub async fn follow_board(&self) -> Result<BoardStream, Error> {
        let path = "/v1/board?follow=true";
        let answer = self.get_in(Patience::Endless, path).await?;
        Ok(BoardStream::new(LogStream::new(
            (answer.response.into_body(), answer.patience),
            self.liveness.clone(),
            0,
        )))
    }

    /// What `of` held and used since a time: `node`, `gpu:0`, `job:7`, `queue:default`, `user:ana`, `project:vision`.
    /// `step`: 1, 10 or 60 seconds.
    pub async fn history(&self, of: &str, since: Timestamp, step: u32) -> Result<History, Error> {
        let of = encoded(of);
        let path = format!("/v1/history?of={of}&since={since}&step={step}");
        only(self.list(&path).await?)
    }

    async fn briefly(&self, path: &str, mut take: impl FnMut(Brief<'_>)) -> Result<(), Error> {
        let answer = self.get(path).await?;
        let said = answer.response.headers().get(CONTENT_TYPE);
        if said.is_none_or(|said| said != Lines::CONTENT_TYPE) {
            // A daemon that knows of no lines.
            let jobs: Vec<Job> = self.items(answer).await?;
            jobs.iter().for_each(|job| take(Brief::from(job)));
            return Ok(());
        }
        let Answer {
            response,
            sender,
            patience,
        } = answer;
        let version = version_of(&response);
        let mut body = response.into_body();
        let mut lines = Lines::default();
        while let Some(frame) = self.liveness.attend(patience, body.frame()).await? {
            let frame = frame.map_err(|error| self.lost(&error))?;
            let piece = frame.data_ref().map_or(&[][..], |data| data);
            let taken = lines.take(piece, &mut take);
            taken.map_err(|error| unexpected(&error, version.as_deref()))?;
        }
        self.put_back(sender);
        if lines.is_whole() {
            Ok(())
        } else {
            Err(internal(
                "the daemon's list of jobs is incomplete".to_owned(),
            ))
        }
    }

    /// The job that `reference` means: an id, a unique name, or `last`.
    pub async fn job(&self, reference: &str) -> Result<Job, Error> {
        self.one(&job_path(reference, "")).await
    }

    /// Why a job waits, and what would start it sooner.
    pub async fn why(&self, reference: &str) -> Result<Why, Error> {
        self.one(&job_path(reference, "/why")).await
    }

    /// Returns a job's out-of-memory report.
    pub async fn oom(&self, reference: &str) -> Result<Oom, Error> {
        self.one(&job_path(reference, "/oom")).await
    }

    /// Returns the options that bring a container into a job's slice.
    pub async fn docker_args(&self, reference: &str) -> Result<DockerArgs, Error> {
        self.one(&job_path(reference, "/docker")).await
    }

    /// Recommends amounts, from earlier runs of these jobs.
    pub async fn advice(&self, runs: &Runs) -> Result<Vec<Advice>, Error> {
        let query = match runs {
            Runs::All => String::new(),
            Runs::Like(job) => format!("?job={}", encoded(job)),
            Runs::Named(pattern) => format!("?name={}", encoded(pattern)),
            Runs::Of(program) => format!("?program={}", encoded(program)),
        };
        self.list(&format!("/v1/advice{query}")).await
    }

    /// Gives a job more or less; answers the job as it is then, perhaps with what it is to hold once it uses less.
    pub async fn resize(&self, reference: &str, resize: &Resize) -> Result<Job, Error> {
        self.post(&job_path(reference, "/resize"), resize).await
    }

    /// Submits; what it answers is on disk.
    pub async fn submit(&self, submit: &Submit) -> Result<Job, Error> {
        self.post("/v1/jobs", submit).await
    }

    /// Starts a job that waits for its confirmation; what it answers is on disk. The same again changes nothing.
    pub async fn confirm(&self, reference: &str, confirm: &Confirm) -> Result<Job, Error> {
        self.post(&job_path(reference, "/confirm"), confirm).await
    }

    /// Stops every process of a job that runs; it keeps its memory.
    pub async fn suspend(&self, reference: &str) -> Result<Job, Error> {
        self.post(&job_path(reference, "/suspend"), &serde_json::json!({}))
            .await
    }

    /// The same, and has its GPU memory put into the host's memory; answers once that is done or given up.
    pub async fn release(&self, reference: &str) -> Result<Job, Error> {
        let suspend = Suspend {
            release_memory: true,
        };
        self.post(&job_path(reference, "/suspend"), &suspend).await
    }

    /// Lets a suspended job go on.
    pub async fn resume(&self, reference: &str) -> Result<Job, Error> {
        self.post(&job_path(reference, "/resume"), &serde_json::json!({}))
            .await
    }

    /// Offloads the GPU memory of a job that runs on; answers once that is done.
    ///
    /// # Errors
    /// [`ErrorCode::Conflict`](crate::v1::ErrorCode::Conflict) if it cannot be, with the reason.
    pub async fn park(&self, reference: &str) -> Result<Job, Error> {
        self.post(&job_path(reference, "/park"), &serde_json::json!({}))
            .await
    }

    /// Has a parked job get its GPU memory back, as soon as its GPUs have room.
    pub async fn wake(&self, reference: &str) -> Result<Job, Error> {
        self.post(&job_path(reference, "/wake"), &serde_json::json!({}))
            .await
    }

    /// Stops a job and puts it back into its queue.
    pub async fn requeue(&self, reference: &str) -> Result<Job, Error> {
        self.post(&job_path(reference, "/requeue"), &serde_json::json!({}))
            .await
    }

    /// Cancels; answers the job as it is right after, perhaps still `stopping`.
    pub async fn cancel(&self, reference: &str) -> Result<Job, Error> {
        self.cancel_as(reference, &CancelJob::default()).await
    }

    /// The same, of a front end that says why the job ends.
    pub async fn cancel_as(&self, reference: &str, how: &CancelJob) -> Result<Job, Error> {
        self.post(&job_path(reference, "/cancel"), how).await
    }

    /// Answers the job once it is where `what` says, or as it is after `timeout`: look at its state.
    pub async fn wait(
        &self,
        reference: &str,
        what: WaitFor,
        timeout: Duration,
    ) -> Result<Job, Error> {
        let path = job_path(reference, &what.query(timeout));
        let answer = self.get_in(Patience::Endless, &path).await?;
        only(self.items(answer).await?)
    }

    /// Sends a signal to a running job's program.
    pub async fn signal(&self, reference: &str, signal: Signal) -> Result<Job, Error> {
        self.post(&job_path(reference, "/signal"), &SignalJob { signal })
            .await
    }

    /// Runs another program inside of a running job, and gives the connection to it.
    pub async fn exec(
        &self,
        reference: &str,
        exec: &Exec,
    ) -> Result<(ExecOutput, ExecInput), Error> {
        let body = serde_json::to_vec(exec)
            .map_err(|error| internal(format!("cannot write the request: {error}")))?;
        let path = job_path(reference, "/exec");
        // A connection of its own: it is never an idle one again.
        let mut sender = self
            .liveness
            .attend(Patience::Bounded, self.connect())
            .await??;
        let request = Request::builder()
            .method(Method::POST)
            .uri(&path)
            .header(HOST, "divvy")
            .header(CONTENT_TYPE, "application/json")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, PROTOCOL)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| internal(format!("cannot make a request for {path}: {error}")))?;
        let sent = sender.send_request(request);
        let response = self.liveness.attend(Patience::Bounded, sent).await?;
        let response = response.map_err(|error| self.lost(&error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.failure(response, sender).await);
        }
        let connection = hyper::upgrade::on(response).await;
        connection
            .map(|connection| exec::split(connection, &self.liveness))
            .map_err(|error| self.lost(&error))
    }

    /// The job's output from byte `offset`; with `follow` the stream ends when the job has ended and all was sent.
    pub async fn log(
        &self,
        reference: &str,
        offset: u64,
        follow: bool,
    ) -> Result<LogStream, Error> {
        let patience = if follow {
            Patience::Endless
        } else {
            Patience::Bounded
        };
        let rest = format!("/log?offset={offset}&follow={follow}");
        self.read_log(reference, &rest, patience).await
    }

    /// A job's log from this place on.
    pub async fn log_from(
        &self,
        reference: &str,
        start: LogStart,
        follow: bool,
    ) -> Result<LogStream, Error> {
        let patience = if follow {
            Patience::Endless
        } else {
            Patience::Bounded
        };
        let tail = start.tail.map(|lines| format!("&tail={lines}"));
        let since = start.since.map(|since| format!("&since={since}"));
        let (tail, since) = (tail.unwrap_or_default(), since.unwrap_or_default());
        let rest = format!("/log?follow={follow}{tail}{since}");
        self.read_log(reference, &rest, patience).await
    }

    /// How much the job has said by now, in bytes: from where its output can be followed.
    pub async fn log_end(&self, reference: &str) -> Result<u64, Error> {
        let end = self.read_log(reference, "/log?from=end", Patience::Bounded);
        Ok(end.await?.from())
    }

    async fn read_log(
        &self,
        reference: &str,
        rest: &str,
        patience: Patience,
    ) -> Result<LogStream, Error> {
        let answer = self.get_in(patience, &job_path(reference, rest)).await?;
        let headers = answer.response.headers();
        let from = headers
            .get(LOG_FROM)
            .and_then(|from| from.to_str().ok()?.parse().ok());
        Ok(LogStream::new(
            (answer.response.into_body(), answer.patience),
            self.liveness.clone(),
            from.unwrap_or(0),
        ))
    }

    /// Events after sequence number `after`, as many as the agent has.
    pub async fn events(&self, after: u64) -> Result<Vec<Event>, Error> {
        self.list(&format!("/v1/events?after={after}")).await
    }

    /// The first events that match a query, as many as the daemon puts into one answer.
    pub async fn events_of(&self, query: &EventQuery) -> Result<Vec<Event>, Error> {
        self.list(&events_path(query, false)).await
    }

    /// Events after `after` and then each new one as it happens.
    pub async fn follow_events(&self, after: u64) -> Result<EventStream, Error> {
        let query = EventQuery {
            after,
            ..EventQuery::default()
        };
        self.follow_events_of(&query).await
    }

    /// Events that match a query, and then each new one as it happens.
    pub async fn follow_events_of(&self, query: &EventQuery) -> Result<EventStream, Error> {
        let path = events_path(query, true);
        let answer = self.get_in(Patience::Endless, &path).await?;
        Ok(EventStream::new(LogStream::new(
            (answer.response.into_body(), answer.patience),
            self.liveness.clone(),
            0,
        )))
    }

    async fn one<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        only(self.list(path).await?)
    }

    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Error> {
        let answer = self.get(path).await?;
        self.items(answer).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        only(self.send(Method::POST, path, body).await?)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Vec<T>, Error> {
        let body = serde_json::to_vec(body)
            .map_err(|error| internal(format!("cannot write the request: {error}")))?;
        let answer = self.call(method, path, Bytes::from(body)).await?;
        self.items(answer).await
    }

    async fn get(&self, path: &str) -> Result<Answer, Error> {
        self.get_in(Patience::Bounded, path).await
    }

    async fn get_in(&self, patience: Patience, path: &str) -> Result<Answer, Error> {
        let answer = self.call_in(patience, (Method::GET, path), Bytes::new());
        answer.await
    }

    async fn items<T: DeserializeOwned>(&self, answer: Answer) -> Result<Vec<T>, Error> {
        let version = version_of(&answer.response);
        let text = self.text(answer).await?;
        let list: List<T> = serde_json::from_slice(&text)
            .map_err(|error| unexpected(&error, version.as_deref()))?;
        Ok(list.items)
    }

    async fn text(&self, answer: Answer) -> Result<Vec<u8>, Error> {
        let Answer {
            response,
            sender,
            patience,
        } = answer;
        let mut body = response.into_body();
        let length = usize::try_from(body.size_hint().lower()).unwrap_or(0);
        let mut text = Vec::with_capacity(length.min(FORESEEN));
        while let Some(frame) = self.liveness.attend(patience, body.frame()).await? {
            let frame = frame.map_err(|error| self.lost(&error))?;
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
        self.put_back(sender);
        Ok(text)
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, Error> {
        self.call_in(Patience::Bounded, (method, path), body).await
    }

    async fn call_in(
        &self,
        patience: Patience,
        (method, path): (Method, &str),
        body: Bytes,
    ) -> Result<Answer, Error> {
        let asked = async {
            let answer = self
                .liveness
                .attend(patience, self.ask(&method, path, &body))
                .await??;
            Ok(Answer { patience, ..answer })
        };
        let Some(deadline) = self.deadline else {
            return asked.await;
        };
        let answer = tokio::time::timeout(deadline, asked);
        answer.await.unwrap_or_else(|_| {
            let late = format!("{method} {path} had no answer within {deadline:?}");
            Err(Error::new(ErrorCode::NoDaemon, late))
        })
    }

    async fn ask(&self, method: &Method, path: &str, body: &Bytes) -> Result<Answer, Error> {
        loop {
            let (mut sender, used_before) = match self.take_idle() {
                Some(sender) => (sender, true),
                None => (self.connect().await?, false),
            };
            let request = Request::builder()
                .method(method.clone())
                .uri(path)
                .header(HOST, "divvy")
                .header(ACCEPT, "application/json")
                .header(CONTENT_TYPE, "application/json")
                .body(Full::new(body.clone()))
                .map_err(|error| internal(format!("cannot make a request for {path}: {error}")))?;
            match sender.send_request(request).await {
                Ok(response) if response.status().is_success() => {
                    return Ok(Answer {
                        response,
                        sender,
                        patience: Patience::Bounded,
                    });
                }
                Ok(response) => return Err(self.failure(response, sender).await),
                // The agent closed an idle connection before it saw the request, so asking again is no repetition.
                Err(error) if used_before && error.is_canceled() => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    async fn failure(
        &self,
        response: Response<Incoming>,
        sender: SendRequest<Full<Bytes>>,
    ) -> Error {
        let status = response.status();
        let version = version_of(&response);
        let difference = version::difference(version.as_deref());
        let body = response.into_body().collect();
        match body.await {
            Ok(body) => {
                let body = body.to_bytes();
                self.put_back(sender);
                match (serde_json::from_slice::<ErrorBody>(&body), difference) {
                    (Ok(body), Some(difference)) if is_unknown(&body.error) => {
                        restart(body.error, &difference)
                    }
                    (Ok(body), _) => body.error,
                    (Err(_), difference) => {
                        let body = String::from_utf8_lossy(&body);
                        let error = internal(format!("the daemon answered {status}: {body}"));
                        match difference {
                            Some(difference) => restart(error, &difference),
                            None => error,
                        }
                    }
                }
            }
            Err(error) => self.lost(&error),
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let stream = loop {
            match UnixStream::connect(self.socket()).await {
                // As many wait as the kernel queues for a daemon that takes no connection.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_PAUSE).await,
                stream => break stream.map_err(|error| self.unreachable(&error))?,
            }
        };
        self.liveness.note_peer(&stream);
        let peer = stream
            .peer_cred()
            .map_err(|error| self.unreachable(&error))?;
        check_peer(
            peer.uid(),
            rustix::process::geteuid().as_raw(),
            self.socket(),
        )?;
        if let Some(error) = self.other_process(peer.pid()) {
            return Err(error);
        }
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.lost(&error))?;
        // Ends when the sender is dropped or the agent hangs up; what went wrong is seen by the call in flight.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = lock(&self.idle);
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn put_back(&self, sender: SendRequest<Full<Bytes>>) {
        if !sender.is_closed() {
            lock(&self.idle).push(sender);
        }
    }

    fn unreachable(&self, error: &io::Error) -> Error {
        let socket = self.socket().display();
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Error::new(
                ErrorCode::NotAllowed,
                format!("this user may not use the socket {socket}"),
            );
        }
        let missing = format!("no daemon answers on {socket}: {error}");
        Error::new(ErrorCode::NoDaemon, missing).hint(self.who_starts_it())
    }

    /// How to start the daemon that is missing.
    fn who_starts_it(&self) -> String {
        if system::is_socket(self.socket()) {
            return "systemctl status divvy".to_owned();
        }
        let me = rustix::process::geteuid().as_raw();
        let folder = self
            .socket()
            .parent()
            .and_then(|folder| fs::metadata(folder).ok());
        match folder.map(|folder| folder.uid()).filter(|owner| *owner != me) {
            Some(owner) => format!("uid {owner} starts it: its home is not uid {me}'s"),
            None => "start one with `divvy daemon`, or with `divvy daemon --sim a100-80gb:3` where there is no GPU".to_owned(),
        }
    }

    fn lost(&self, error: &hyper::Error) -> Error {
        lost(self.socket(), error)
    }
}

/// A client sends environments and secrets, so only the daemon of its user or of root may answer. Root may call any
/// daemon.
fn check_peer(peer: u32, me: u32, socket: &Path) -> Result<(), Error> {
    if me == 0 || peer == me || peer == 0 {
        return Ok(());
    }
    let why = format!(
        "the process that answers on {} belongs to uid {peer}, not to uid {me} or root",
        socket.display()
    );
    Err(Error::new(ErrorCode::NotAllowed, why)
        .hint("set DIVVY_HOME to a folder of your own, or unset it"))
}

fn lost(socket: &Path, error: &hyper::Error) -> Error {
    let message = format!(
        "the daemon on {} closed the connection during the call: {error}",
        socket.display()
    );
    Error::new(ErrorCode::NoDaemon, message).hint(if system::is_socket(socket) {
        "jobs keep running; check the daemon: systemctl status divvy"
    } else {
        "jobs keep running; start the daemon again: divvy daemon"
    })
}

/// The error of an answer that does not match the API; `version`: that of the daemon, if the answer named it.
fn unexpected(error: &serde_json::Error, version: Option<&str>) -> Error {
    let error = internal(format!(
        "the daemon's answer does not match version {} of the API: {error}",
        version::API
    ));
    match version::difference(version) {
        Some(difference) => restart(error, &difference),
        None => error,
    }
}

fn version_of(response: &Response<Incoming>) -> Option<String> {
    let version = response.headers().get(version::HEADER)?;
    version.to_str().ok().map(str::to_owned)
}

/// Whether a daemon of another version may have refused the request only because it does not know a part of it.
fn is_unknown(error: &Error) -> bool {
    error.code == ErrorCode::Usage || error.message.starts_with("unknown path")
}

/// The error with both versions, and how to make them one.
fn restart(error: Error, difference: &str) -> Error {
    let hint = match error.hint {
        Some(hint) => format!("{hint}; "),
        None => String::new(),
    };
    let why = format!("{difference}: {}", error.message);
    Error::new(error.code, why).hint(format!(
        "{hint}restart the daemon to make both one version (systemctl restart divvy, or divvy daemon --stop); jobs keep running"
    ))
}

fn internal(message: String) -> Error {
    Error::new(ErrorCode::Internal, message)
}

fn only<T>(items: Vec<T>) -> Result<T, Error> {
    items.into_iter().next().ok_or_else(empty)
}

fn empty() -> Error {
    internal("the daemon answered an empty list instead of one item".into())
}

/// `/v1/jobs/REFERENCE` + `rest`, the reference percent-encoded as one path segment.
fn job_list_path(query: &JobQuery) -> String {
    format!("/v1/jobs?{}", joined(query.pairs()))
}

fn events_path(query: &EventQuery, follow: bool) -> String {
    let mut pairs = query.pairs();
    pairs.extend(follow.then(|| ("follow", "true".to_owned())));
    format!("/v1/events?{}", joined(pairs))
}

fn joined(pairs: Vec<(&'static str, String)>) -> String {
    let pairs = pairs.into_iter();
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}={}", encoded(&value)))
        .collect();
    pairs.join("&")
}

/// A header of an answer.
fn text_of(response: &Response<Incoming>, name: &str) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

fn job_path(reference: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", encoded(reference))
}

/// Percent-encoded as one path segment or the value of a query.
fn claim_path(uid: &str) -> String {
    format!("/v1/claims/{}", encoded(uid))
}

fn project_path(name: &str) -> String {
    format!("/v1/projects/{}", encoded(name))
}

fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut path = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that gives this answer once, and what the client makes of it.
    async fn answered(head: &str, body: &str) -> Error {
        use std::io::{Read as _, Write as _};
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("divvy.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let answer = format!(
            "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let daemon = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let _ = peer.read(&mut [0; 4096]).unwrap();
            peer.write_all(answer.as_bytes()).unwrap();
        });
        let error = Client::new(socket).node().await.unwrap_err();
        daemon.join().unwrap();
        error
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_error_of_a_daemon_of_another_version_names_both() {
        let other = "divvy-version: 9.9.9 (protocol 2)";
        let both = format!(
            "this divvy is {}, the daemon is 9.9.9 (protocol 2): ",
            version::described()
        );
        let unread = "{\"schema\":\"divvy/v2\",\"kind\":\"Node\",\"items\":[{}]}";
        let unknown = "{\"error\":{\"code\":\"not_found\",\"message\":\"unknown path /v1/node\"}}";
        let field = "{\"error\":{\"code\":\"usage\",\"message\":\"unknown field `x`\",\"hint\":\"leave it out\"}}";
        for (status, body) in [
            ("200 OK", unread),
            ("404 Not Found", unknown),
            ("400 Bad Request", field),
            (
                "409 Conflict",
                "{\"error\":{\"code\":\"of_later\",\"message\":\"x\"}}",
            ),
        ] {
            let error = answered(&format!("{status}\r\n{other}"), body).await;
            assert!(error.message.starts_with(&both), "{}", error.message);
            let hint = error.hint.unwrap();
            assert!(hint.contains("restart the daemon"), "{hint}");
            let same = format!("divvy-version: {}", version::described());
            let error = answered(&format!("{status}\r\n{same}"), body).await;
            assert!(
                !error.message.contains("this divvy is"),
                "{}",
                error.message
            );
        }
        // A daemon from before the header.
        let error = answered("200 OK\r\nx: y", unread).await;
        assert!(
            error.message.contains("an earlier build"),
            "{}",
            error.message
        );
        // What another version cannot have caused stays as it is.
        let missing = "{\"error\":{\"code\":\"not_found\",\"message\":\"there is no job 7\"}}";
        let error = answered(&format!("404 Not Found\r\n{other}"), missing).await;
        assert_eq!(error.message, "there is no job 7");
    }

    #[test]
    fn a_job_reference_stays_one_path_segment() {
        assert_eq!(job_path("last", "/why"), "/v1/jobs/last/why");
        assert_eq!(job_path("a b/../c?x", ""), "/v1/jobs/a%20b%2F..%2Fc%3Fx");
        assert_eq!(job_path("ö", ""), "/v1/jobs/%C3%B6");
    }

    #[test]
    fn a_client_talks_to_no_daemon_but_its_own_users_and_roots() {
        let socket = Path::new("/tmp/divvy-1000/divvy.sock");
        for (peer, me) in [(1000, 1000), (0, 1000), (1000, 0), (0, 0)] {
            assert!(check_peer(peer, me, socket).is_ok(), "{peer} {me}");
        }
        let error = check_peer(1001, 1000, socket).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotAllowed);
        assert!(
            error.message.contains("belongs to uid 1001"),
            "{}",
            error.message
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_missing_daemon_is_said_with_the_socket_and_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let error = Client::new(dir.path().join("divvy.sock"))
            .node()
            .await
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::NoDaemon);
        assert!(error.message.contains("divvy.sock"), "{}", error.message);
        assert!(error.hint.unwrap().contains("divvy daemon"));
    }
}
