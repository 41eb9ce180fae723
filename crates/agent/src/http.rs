//! The API over the unix socket: routes, who may call them, what failures look like.
//!
//! A handler turns a request into one message to the cycle and its answer into a body; it decides nothing. When a client
//! goes away its handler is dropped, and the cycle answers nobody.

mod arrays;
mod body;
mod claims;
mod crowd;
mod deadline;
mod events;
mod exec;
mod gate;
mod health;
mod listing;
mod log;
mod metrics;
mod server;
mod share;
pub mod socket;
pub mod token;
mod upload;
mod usage;
mod veil;
mod waiting;

use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post, put};
use divvy_api::home::Home;
use divvy_api::v1::{self, Error, ErrorCode, List};
use serde::Deserialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, broadcast};

use crate::access::{Caller, Rules, Verb};
use crate::account::Account;
use crate::advice::{self, Runs};
use crate::cycle::reference::Meant;
use crate::gpu::Observer;
use crate::intake::bounds;
use crate::mailbox::{ArrayAct, Mailbox, Message, Milestone, ProjectAct, Reply};
use crate::store;
use crate::supervise::chain;
use crate::terms::check_priority;
use arrays::{Asks, meant};
use body::{Body, Failure, Path, Query};
use crowd::Stranger;
pub use metrics::{Books, Page};
use server::Server;
use socket::Socket;
use token::Token;
use upload::{LARGE, Uploads};
use veil::Sight;

/// Longest long poll. Clients ask again.
const POLL_LIMIT: Duration = Duration::from_secs(300);

/// So many answers that take seconds are worked out at once: the machine is its jobs'.
static HEAVY: Semaphore = Semaphore::const_new(2);

/// One answer of advice at a time, since each reads all ended jobs that its caller sees. Advice has turns of its own,
/// so that many calls for it do not hold up `why`.
static ADVICE: Semaphore = Semaphore::const_new(1);

/// What handlers share.
#[derive(Clone)]
pub struct Api {
    pub mailbox: Mailbox,
    pub events: broadcast::Sender<v1::Event>,
    pub home: Arc<Home>,
    pub observer: Arc<Observer>,
    pub rules: Arc<Rules>,
    /// The daemon's own user.
    pub me: Account,
    /// Whose bearer may call over TCP.
    pub token: Option<Token>,
}

/// Serves until the future is dropped.
pub async fn serve(
    api: Api,
    (socket, listener): (Socket, StdListener),
    tcp: Option<TcpListener>,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/v1/node", get(node))
        .route("/v1/gpus", get(gpus))
        .route("/v1/gpus/{gpu}", patch(change_gpu))
        .route("/v1/gpus/{gpu}/placements", get(claims::placements))
        .route("/v1/claims", get(claims::claims))
        .route(
            "/v1/claims/{uid}",
            put(claims::hold).delete(claims::release),
        )
        .route("/v1/mig", get(mig))
        .route("/v1/mig/plan", post(mig_plan))
        .route("/v1/mig/gc", post(mig_gc))
        .route("/v1/queues", get(queues))
        .route("/v1/projects", get(projects))
        .route("/v1/usage", get(usage::usages))
        .route(
            "/v1/projects/{project}",
            post(add_project).patch(set_project).delete(remove_project),
        )
        .route("/v1/jobs", get(listing::jobs).post(submit))
        .route("/v1/jobs/{job}", get(job))
        .route("/v1/jobs/{job}/why", get(why))
        .route("/v1/jobs/{job}/wait", get(wait))
        .route("/v1/jobs/{job}/log", get(log::log))
        .route("/v1/jobs/{job}/cancel", post(cancel))
        .route("/v1/jobs/{job}/confirm", post(confirm))
        .route("/v1/jobs/{job}/requeue", post(requeue))
        .route("/v1/jobs/{job}/suspend", post(suspend))
        .route("/v1/jobs/{job}/resume", post(resume))
        .route("/v1/jobs/{job}/resize", post(resize))
        .route("/v1/jobs/{job}/change", post(waiting::change))
        .route("/v1/jobs/{job}/hold", post(waiting::hold))
        .route("/v1/jobs/{job}/release", post(waiting::release))
        .route("/v1/jobs/{job}/exec", post(exec::exec))
        .route("/v1/jobs/{job}/signal", post(exec::signal))
        .route("/v1/jobs/{job}/docker", get(docker))
        .route("/v1/jobs/{job}/oom", get(oom))
        .route("/v1/advice", get(advice))
        .route("/v1/events", get(events::events))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(LARGE))
        .with_state(api.clone());
    let me = api.me.uid;
    // Outside of the routes, so that it decides also what a path means.
    let gate = middleware::from_fn_with_state((api, Uploads::new(me)), gate::gate);
    let server = Server::new(Router::new().fallback_service(routes).layer(gate));
    let listener = UnixListener::from_std(listener)?;
    let is_counted = move |uid| uid != 0 && uid != me;
    let local = server.clone().local(listener, socket, is_counted);
    match tcp {
        None => match local.await {},
        Some(tcp) => tokio::select! {
            never = local => match never {},
            never = server.remote(tcp) => match never {},
        },
    }
}

/// Who is at the other end of a connection, by the kernel's word.
#[derive(Clone)]
enum Peer {
    Local {
        uid: u32,
        gid: u32,
    },
    /// It came over TCP, and has to say it with a token.
    Token(Stranger),
    Unknown,
}

async fn missing(request: Request) -> Failure {
    Error::new(
        ErrorCode::NotFound,
        format!("unknown path {}", request.uri().path()),
    )
    .into()
}

async fn wrong_method(request: Request) -> Failure {
    let why = format!(
        "{} does not support the method {}",
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
    api.observer.fresh().await;
    list("GpuList", api.mailbox.read(|cycle| Ok(cycle.gpus())).await?)
}

async fn change_gpu(
    State(api): State<Api>,
    Path(gpu): Path<String>,
    Body(change): Body<v1::GpuChange>,
) -> Answer<v1::GpuChanged> {
    // Who uses the GPU now decides whether it can be done.
    api.observer.fresh().await;
    let changed = api
        .mailbox
        .ask(|reply| Message::GpuMode { gpu, change, reply });
    list("GpuChange", vec![changed.await?])
}

async fn mig(State(api): State<Api>) -> Answer<v1::MigInstance> {
    api.observer.fresh().await;
    list(
        "MigInstanceList",
        api.mailbox.read(|cycle| Ok(cycle.mig_instances())).await?,
    )
}

async fn mig_plan(
    State(api): State<Api>,
    Body(wanted): Body<v1::MigWanted>,
) -> Answer<v1::MigPlanned> {
    api.observer.fresh().await;
    list(
        "MigPlan",
        api.mailbox
            .read(move |cycle| cycle.mig_plan(&wanted))
            .await?,
    )
}

async fn mig_gc(State(api): State<Api>, Body(gc): Body<v1::MigGc>) -> Answer<v1::MigInstance> {
    list(
        "MigInstanceList",
        api.mailbox
            .ask(|reply| Message::MigGc { gc, reply })
            .await?,
    )
}

async fn queues(State(api): State<Api>) -> Answer<v1::Queue> {
    list(
        "QueueList",
        api.mailbox.read(|cycle| Ok(cycle.queues_shown())).await?,
    )
}

async fn projects(State(api): State<Api>) -> Answer<v1::Project> {
    list(
        "ProjectList",
        api.mailbox.read(|cycle| Ok(cycle.projects_shown())).await?,
    )
}

async fn tend(api: &Api, name: String, act: ProjectAct) -> Answer<v1::Project> {
    let tended = api
        .mailbox
        .ask(|reply| Message::Project { name, act, reply });
    list("ProjectList", vec![tended.await?])
}

async fn add_project(
    State(api): State<Api>,
    Path(name): Path<String>,
    Body(change): Body<v1::ProjectChange>,
) -> Answer<v1::Project> {
    tend(&api, name, ProjectAct::Add(change)).await
}

async fn set_project(
    State(api): State<Api>,
    Path(name): Path<String>,
    Body(change): Body<v1::ProjectChange>,
) -> Answer<v1::Project> {
    tend(&api, name, ProjectAct::Set(change)).await
}

async fn remove_project(State(api): State<Api>, Path(name): Path<String>) -> Answer<v1::Project> {
    tend(&api, name, ProjectAct::Remove).await
}

async fn job(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    match meant(&api, &reference).await? {
        Meant::Array(array) => asks.jobs(array).await,
        job => {
            let job = foreseen(&api, job.to_string()).await?;
            Ok(list("JobList", vec![job])?.into_response())
        }
    }
}

/// A job, and when it starts if it waits.
async fn foreseen(api: &Api, reference: String) -> Result<v1::Job, Failure> {
    let read = api
        .mailbox
        .read(move |cycle| cycle.job_foreseen(&reference));
    let (mut job, foresight) = read.await?;
    let Some(foresight) = foresight else {
        return Ok(job);
    };
    in_turn(move || {
        foresight.tell(&mut job);
        job
    })
    .await
}

/// Does what takes longer than anybody else should wait for.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| internal(&error))
}

/// The same for what is heavy.
async fn in_turn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    in_turn_of(&HEAVY, work).await
}

/// Waits for a turn of these. It lasts until the work is done, whether or not anybody still waits for that.
async fn in_turn_of<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let turn = turns.acquire().await;
    aside(move || {
        let _turn = turn;
        work()
    })
    .await
}

async fn why(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Answer<v1::Why> {
    let inquiry = api.mailbox.read(move |cycle| cycle.why(&reference)).await?;
    let (mut why, tries) = in_turn(move || inquiry.answer(|owner| sight.sees(owner))).await?;
    if !tries.is_empty() {
        // What the daemon would refuse from this caller is no advice.
        let commands = api
            .mailbox
            .read(move |cycle| Ok(cycle.commands(&tries, &caller)));
        why.suggested_changes = waiting::with_commands(&why.suggestions, commands.await?);
    }
    list("Why", vec![why])
}

async fn submit(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(submit): Body<v1::Submit>,
) -> Answer<v1::Job> {
    check_priority(submit.priority, &caller)?;
    // Without jobs looks are seldom, and the first one must not be placed by what strangers held two seconds ago.
    if !api.observer.is_busy() {
        api.observer.fresh().await;
    }
    let (submit, by) = (Box::new(submit), Box::new(caller));
    list(
        "JobList",
        vec![
            api.mailbox
                .ask(|reply| Message::Submit { submit, by, reply })
                .await?,
        ],
    )
}

async fn cancel(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    let by = Box::new(caller.clone());
    acts(asks, &reference, ArrayAct::Cancel, |reference, reply| {
        Message::Cancel {
            reference,
            by,
            reply,
        }
    })
    .await
}

/// Does something to one job, or to every job of an array that it can be done to.
async fn acts(
    asks: Asks<'_>,
    reference: &str,
    act: ArrayAct,
    one: impl FnOnce(String, Reply<v1::Job>) -> Message,
) -> Result<Response, Failure> {
    match meant(asks.api, reference).await? {
        Meant::Array(array) => asks.act(array, act).await,
        job => {
            let ask = asks.api.mailbox.ask(|reply| one(job.to_string(), reply));
            Ok(list("JobList", vec![ask.await?])?.into_response())
        }
    }
}

async fn confirm(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Body(confirm): Body<v1::Confirm>,
) -> Answer<v1::Job> {
    let (confirm, by) = (Box::new(confirm), Box::new(caller));
    let confirm = api.mailbox.ask(|reply| Message::Confirm {
        reference,
        confirm,
        by,
        reply,
    });
    list("JobList", vec![confirm.await?])
}

/// Whoever sends nothing wants nothing besides.
async fn suspend(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    how: Option<Body<v1::Suspend>>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    let how = how.map(|Body(how)| how).unwrap_or_default();
    if !how.release_memory {
        return pause(asks, &reference, true).await;
    }
    match meant(&api, &reference).await? {
        Meant::Array(array) => asks.release(array).await,
        job => {
            let reference = job.to_string();
            let release = api
                .mailbox
                .ask(|reply| Message::Release { reference, reply });
            Ok(list("JobList", vec![release.await?])?.into_response())
        }
    }
}

async fn resume(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    pause(asks, &reference, false).await
}

async fn pause(asks: Asks<'_>, reference: &str, suspend: bool) -> Result<Response, Failure> {
    let act = match suspend {
        true => ArrayAct::Suspend,
        false => ArrayAct::Resume,
    };
    acts(asks, reference, act, |reference, reply| Message::Pause {
        reference,
        suspend,
        reply,
    })
    .await
}

async fn requeue(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    let by = Box::new(caller.clone());
    acts(asks, &reference, ArrayAct::Requeue, |reference, reply| {
        Message::Requeue {
            reference,
            by,
            reply,
        }
    })
    .await
}

async fn resize(
    State(api): State<Api>,
    Path(reference): Path<String>,
    Body(resize): Body<v1::Resize>,
) -> Answer<v1::Job> {
    // What others hold now decides whether there is room.
    api.observer.fresh().await;
    let resize = api.mailbox.ask(|reply| Message::Resize {
        reference,
        resize,
        reply,
    });
    list("JobList", vec![resize.await?])
}

async fn docker(State(api): State<Api>, Path(reference): Path<String>) -> Answer<v1::DockerArgs> {
    let added = api.mailbox.read(move |cycle| cycle.docker_args(&reference));
    list("DockerArgs", vec![added.await?])
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

async fn advice(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<WhichRuns>,
) -> Answer<v1::Advice> {
    let runs = match which {
        WhichRuns {
            job: Some(reference),
            name: None,
            program: None,
        } => {
            let by = caller.account.uid;
            let read = api.mailbox.read(move |cycle| {
                let (meant, owner) = cycle.job_of(&reference, by)?;
                Ok((owner, cycle.program(meant)?))
            });
            let (owner, program) = read.await?;
            if !caller.sees(owner) {
                caller.may(Verb::Read, caller.whose(owner))?;
            }
            Runs::Of(program)
        }
        WhichRuns {
            job: None,
            name: Some(pattern),
            program: None,
        } => {
            bounds::pattern(&pattern)?;
            Runs::Named(pattern)
        }
        WhichRuns {
            job: None,
            name: None,
            program: Some(program),
        } => {
            bounds::program(&program)?;
            Runs::Of(program)
        }
        WhichRuns {
            job: None,
            name: None,
            program: None,
        } => Runs::All,
        _ => {
            let error = Error::new(ErrorCode::Usage, "job, name and program exclude each other");
            return Err(error.hint("give at most one of them").into());
        }
    };
    let gpus = api.mailbox.read(|cycle| Ok(cycle.served())).await?;
    let database = api.home.database();
    // Advice names programs, so it looks only at jobs that show their commands to the caller.
    let uid = (!caller.sees_everybody()).then_some(caller.account.uid);
    let advised = in_turn_of(&ADVICE, move || {
        let jobs = store::ended_of(&database, uid)?;
        let sufficient = store::sufficient(&database)?;
        Ok::<_, store::StoreError>(advice::advice(&runs, jobs, &sufficient, &gpus))
    });
    let advised = advised.await?;
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
) -> Result<Response, Failure> {
    let milestone = match until.state {
        WaitState::Starting => Milestone::Starting,
        WaitState::Ended => Milestone::Ended,
    };
    let patience = Duration::from_secs(until.timeout_s).min(POLL_LIMIT);
    let reference = match meant(&api, &reference).await? {
        Meant::Array(array) => return arrays::wait(&api, array, milestone, patience).await,
        job => job.to_string(),
    };
    let wanted = reference.clone();
    let wait = api.mailbox.ask(|reply| Message::Wait {
        reference: wanted,
        milestone,
        reply,
    });
    let job = match tokio::time::timeout(patience, wait).await {
        Ok(job) => job?,
        Err(_) => foreseen(&api, reference).await?,
    };
    Ok(list("JobList", vec![job])?.into_response())
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Error::new(ErrorCode::Internal, chain(error)).into()
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn calls_for_advice_take_turns_and_hold_up_nothing_else() {
        let (end, ended) = oneshot::channel::<()>();
        let first = tokio::spawn(in_turn_of(&ADVICE, move || ended.blocking_recv().unwrap()));
        divvy_test_support::until_async("the first has the turn", async || {
            (ADVICE.available_permits() == 0).then_some(())
        })
        .await;
        let second = tokio::spawn(in_turn_of(&ADVICE, || ()));
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        in_turn(|| ()).await.unwrap();
        end.send(()).unwrap();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn heavy_work_keeps_its_turn_when_whoever_asked_for_it_is_gone() {
        let turns = HEAVY.available_permits();
        let (begin, begun) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let asks = tokio::spawn(in_turn(move || {
            begin.send(()).unwrap();
            ended.blocking_recv().unwrap();
        }));
        begun.await.unwrap();
        asks.abort();
        assert!(asks.await.unwrap_err().is_cancelled());
        assert_eq!(HEAVY.available_permits(), turns - 1);
        end.send(()).unwrap();
        let all = u32::try_from(turns).unwrap();
        drop(HEAVY.acquire_many(all).await.unwrap());
    }
}
