//! The API over the unix socket: routes, who may call them, what failures look like.
//!
//! A handler turns a request into one message to the cycle and its answer into a body; it decides nothing. When a client
//! goes away its handler is dropped, and the cycle answers nobody.

mod body;
mod events;
mod log;
mod metrics;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use divvy_api::home::Home;
use divvy_api::v1::{self, Error, ErrorCode, List};
use serde::Deserialize;
use tokio::net::UnixListener;
use tokio::sync::broadcast;

use crate::advice::{self, Runs};
use crate::gpu::Observer;
use crate::mailbox::{Mailbox, Message, Milestone};
use crate::store;
use crate::supervise::chain;
use body::{Body, Failure, Path, Query};
pub use metrics::Page;

/// A command line and an environment fit into this; Linux takes 2 MiB of them by default.
const BODY_LIMIT: usize = 8 << 20;

/// Longest long poll. Clients ask again.
const POLL_LIMIT: Duration = Duration::from_secs(300);

/// What handlers share.
#[derive(Clone)]
pub struct Api {
    pub mailbox: Mailbox,
    pub events: broadcast::Sender<v1::Event>,
    pub home: Arc<Home>,
    pub observer: Arc<Observer>,
}

/// Serves until the future is dropped.
pub async fn serve(api: Api, listener: UnixListener) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/v1/node", get(node))
        .route("/v1/gpus", get(gpus))
        .route("/v1/queues", get(queues))
        .route("/v1/jobs", get(jobs).post(submit))
        .route("/v1/jobs/{job}", get(job))
        .route("/v1/jobs/{job}/why", get(why))
        .route("/v1/jobs/{job}/wait", get(wait))
        .route("/v1/jobs/{job}/log", get(log::log))
        .route("/v1/jobs/{job}/cancel", post(cancel))
        .route("/v1/jobs/{job}/resize", post(resize))
        .route("/v1/jobs/{job}/oom", get(oom))
        .route("/v1/advice", get(advice))
        .route("/v1/events", get(events::events))
        .route("/metrics", get(metrics::metrics))
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn(only_us))
        .with_state(api);
    axum::serve(
        listener,
        routes.into_make_service_with_connect_info::<Peer>(),
    )
    .await
}

/// Who is at the other end of a connection, by the kernel's word.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self {
            uid: stream.io().peer_cred().ok().map(|peer| peer.uid()),
        }
    }
}

/// The folder's mode keeps others out already; this holds where a folder is shared by mistake.
async fn only_us(
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let me = rustix::process::geteuid().as_raw();
    match peer.uid {
        Some(uid) if uid == me || uid == 0 => Ok(next.run(request).await),
        Some(uid) => {
            let why = format!("this daemon serves uid {me}, and you are uid {uid}");
            Err(Error::new(ErrorCode::NotAllowed, why)
                .hint("start one of your own with `divvy daemon`")
                .into())
        }
        None => Err(Error::new(
            ErrorCode::NotAllowed,
            "the kernel does not say who is calling",
        )
        .into()),
    }
}

async fn missing(request: Request) -> Failure {
    Error::new(
        ErrorCode::NotFound,
        format!("there is no {}", request.uri().path()),
    )
    .into()
}

async fn wrong_method(request: Request) -> Failure {
    let why = format!(
        "{} does not take {}",
        request.uri().path(),
        request.method()
    );
    Error::new(ErrorCode::Usage, why).into()
}

type Answer<T> = Result<Body<List<T>>, Failure>;

fn list<T>(kind: &str, items: Vec<T>) -> Answer<T> {
    Ok(Body(List::new(kind, items)))
}

async fn node(State(api): State<Api>) -> Answer<v1::Node> {
    list(
        "Node",
        vec![api.mailbox.read(|cycle| Ok(cycle.node())).await?],
    )
}

async fn gpus(State(api): State<Api>) -> Answer<v1::Gpu> {
    look(&api).await;
    list("GpuList", api.mailbox.read(|cycle| Ok(cycle.gpus())).await?)
}

/// A fresh look, so that what was allocated before the question is in the answer.
async fn look(api: &Api) {
    let (observer, mailbox) = (Arc::clone(&api.observer), api.mailbox.clone());
    // It panics only if the looking does.
    let _ = tokio::task::spawn_blocking(move || observer.tell(&mailbox)).await;
}

async fn queues(State(api): State<Api>) -> Answer<v1::Queue> {
    list(
        "QueueList",
        api.mailbox.read(|cycle| Ok(cycle.queues_shown())).await?,
    )
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Also jobs that have ended.
    #[serde(default)]
    all: bool,
}

async fn jobs(State(api): State<Api>, Query(which): Query<Which>) -> Answer<v1::Job> {
    let (living, known) = api
        .mailbox
        .read(|cycle| Ok((cycle.living_jobs(), cycle.living_ids())))
        .await?;
    if !which.all {
        return list("JobList", living);
    }
    let database = api.home.database();
    let ended = tokio::task::spawn_blocking(move || store::all_but(&database, &known)).await;
    let ended = ended
        .map_err(|error| internal(&error))?
        .map_err(|error| internal(&error))?;
    let ended = api
        .mailbox
        .read(move |cycle| {
            Ok(ended
                .iter()
                .map(|job| cycle.show(job, None, None))
                .collect())
        })
        .await?;
    let mut all: Vec<v1::Job> = ended;
    all.extend(living);
    all.sort_by_key(|job| job.id.parse::<u64>().unwrap_or(u64::MAX));
    list("JobList", all)
}

async fn job(State(api): State<Api>, Path(reference): Path<String>) -> Answer<v1::Job> {
    list(
        "JobList",
        vec![api.mailbox.read(move |cycle| cycle.job(&reference)).await?],
    )
}

async fn why(State(api): State<Api>, Path(reference): Path<String>) -> Answer<v1::Why> {
    list(
        "Why",
        vec![api.mailbox.read(move |cycle| cycle.why(&reference)).await?],
    )
}

async fn submit(State(api): State<Api>, Body(submit): Body<v1::Submit>) -> Answer<v1::Job> {
    // Without jobs looks are seldom, and the first one must not be placed by what strangers held two seconds ago.
    if !api.observer.is_busy() {
        look(&api).await;
    }
    let submit = Box::new(submit);
    list(
        "JobList",
        vec![
            api.mailbox
                .ask(|reply| Message::Submit { submit, reply })
                .await?,
        ],
    )
}

async fn cancel(State(api): State<Api>, Path(reference): Path<String>) -> Answer<v1::Job> {
    list(
        "JobList",
        vec![
            api.mailbox
                .ask(|reply| Message::Cancel { reference, reply })
                .await?,
        ],
    )
}

async fn resize(
    State(api): State<Api>,
    Path(reference): Path<String>,
    Body(resize): Body<v1::Resize>,
) -> Answer<v1::Job> {
    // What others hold now decides whether there is room.
    look(&api).await;
    let resize = api.mailbox.ask(|reply| Message::Resize {
        reference,
        resize,
        reply,
    });
    list("JobList", vec![resize.await?])
}

async fn oom(State(api): State<Api>, Path(reference): Path<String>) -> Answer<v1::Oom> {
    list(
        "Oom",
        vec![api.mailbox.read(move |cycle| cycle.oom(&reference)).await?],
    )
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhichRuns {
    job: Option<String>,
    name: Option<String>,
    program: Option<String>,
}

async fn advice(State(api): State<Api>, Query(which): Query<WhichRuns>) -> Answer<v1::Advice> {
    let runs = match which {
        WhichRuns {
            job: Some(reference),
            name: None,
            program: None,
        } => Runs::Of(
            api.mailbox
                .read(move |cycle| cycle.program(&reference))
                .await?,
        ),
        WhichRuns {
            job: None,
            name: Some(pattern),
            program: None,
        } => Runs::Named(pattern),
        WhichRuns {
            job: None,
            name: None,
            program: Some(program),
        } => Runs::Of(program),
        WhichRuns {
            job: None,
            name: None,
            program: None,
        } => Runs::All,
        _ => {
            let error = Error::new(
                ErrorCode::Usage,
                "several of job, name and program are given",
            );
            return Err(error.hint("give one of them, or none for all").into());
        }
    };
    let gpus = api.mailbox.read(|cycle| Ok(cycle.served())).await?;
    let database = api.home.database();
    let advised = tokio::task::spawn_blocking(move || {
        let jobs = store::all_but(&database, &BTreeSet::new())?;
        let sufficient = store::sufficient(&database)?;
        Ok::<_, store::StoreError>(advice::advice(&runs, jobs, &sufficient, &gpus))
    });
    let advised = advised.await.map_err(|error| internal(&error))?;
    list("AdviceList", advised.map_err(|error| internal(&error))?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Until {
    #[serde(default = "Until::ended")]
    state: WaitState,
    #[serde(default = "Until::seconds")]
    timeout_s: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WaitState {
    Starting,
    Ended,
}

impl Until {
    fn ended() -> WaitState {
        WaitState::Ended
    }

    fn seconds() -> u64 {
        30
    }
}

async fn wait(
    State(api): State<Api>,
    Path(reference): Path<String>,
    Query(until): Query<Until>,
) -> Answer<v1::Job> {
    let milestone = match until.state {
        WaitState::Starting => Milestone::Starting,
        WaitState::Ended => Milestone::Ended,
    };
    let patience = Duration::from_secs(until.timeout_s).min(POLL_LIMIT);
    let wanted = reference.clone();
    let wait = api.mailbox.ask(|reply| Message::Wait {
        reference: wanted,
        milestone,
        reply,
    });
    let job = match tokio::time::timeout(patience, wait).await {
        Ok(job) => job?,
        Err(_) => api.mailbox.read(move |cycle| cycle.job(&reference)).await?,
    };
    list("JobList", vec![job])
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Error::new(ErrorCode::Internal, chain(error)).into()
}
