//! The HTTP API over the unix socket and TCP: routes, authorisation, redaction, bodies and errors.
//!
//! May use: `host`, `auth`, `history`, `model`, `gpu`, `job_dir`, `exec`, `journal`, `container`, `controller`.
//! Used by: `daemon`.
//!
//! A handler turns a request into one message to the controller and its answer into a body; it decides nothing. When a
//! client goes away its handler is dropped, and the controller's answer goes nowhere.

mod api;
mod arrays;
mod auth;
mod board;
mod body;
mod budget;
mod claims;
mod events;
mod exec;
mod health;
mod history;
mod job_list;
mod jobs_change;
mod kept_orders;
mod list_writer;
mod log;
mod metrics;
mod pending;
mod redact;
mod server;
pub mod socket;
pub mod token;
mod upload;
mod usage;
mod web;
pub mod withdraw;

use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post, put};
use axum::{Extension, Router, middleware};
use divvy_api::front_end::Withdrawn;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_api::version;
use divvy_core::GpuUuid;
use serde::Deserialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::auth::{Caller, Role, Verb};
use crate::controller::mailbox::Message;
use crate::controller::reference::JobRef;
use crate::controller::request::{Act, Cancellation, Milestone, ProjectAct, Reply};
use crate::host::account::UserAccount;
use crate::host::error::error_chain;
use crate::host::node_pods::NodePods;
use crate::journal;
use crate::model::cause::Cause;
use crate::model::policy::check_priority;
use crate::model::recommend::{self, RunFilter};
use crate::model::validate::limits;
pub use api::Api;
use api::{Answer, HEAVY, Peer, internal, list};
use arrays::{CallContext, resolve};
use body::{ApiError, Body, Path, Query};
pub use budget::Budget;
use redact::Visibility;
use server::Server;
use socket::Socket;
use upload::{LARGE, Uploads};

/// Longest long poll. Clients ask again. So an abandoned call is gone after five minutes; a shorter one would make idle
/// clients ask more.
const POLL_LIMIT: Duration = Duration::from_secs(300);

/// One answer of advice at a time, since each reads all ended jobs that its caller sees. Advice has turns of its own,
/// so that many calls for it do not hold up `why`.
static ADVICE: Semaphore = Semaphore::const_new(1);

/// Serves until the future is dropped.
pub async fn serve(
    api: Api,
    (socket, listener, pods): (Socket, StdListener, Option<NodePods>),
    tcp: Option<impl Future<Output = TcpListener>>,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/v1/node", get(node))
        .route("/v1/gpus", get(gpus))
        .route("/v1/gpus/drain", post(drain))
        .route("/v1/gpus/undrain", post(undrain))
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
        .route("/v1/board", get(board::board))
        .route("/v1/config", get(config))
        .route("/v1/config/reload", post(reload_config))
        .route("/v1/projects", get(projects))
        .route("/v1/usage", get(usage::usages))
        .route("/v1/history", get(history::history))
        .route(
            "/v1/projects/{project}",
            post(add_project).patch(set_project).delete(remove_project),
        )
        .route(
            "/v1/jobs",
            get(job_list::jobs).post(submit).patch(jobs_change::change),
        )
        .route("/v1/jobs/{job}", get(job))
        .route("/v1/jobs/{job}/why", get(why))
        .route("/v1/jobs/{job}/wait", get(wait))
        .route("/v1/jobs/{job}/log", get(log::log))
        .route("/v1/jobs/{job}/cancel", post(cancel))
        .route("/v1/jobs/{job}/confirm", post(confirm))
        .route("/v1/jobs/{job}/requeue", post(requeue))
        .route("/v1/jobs/{job}/suspend", post(suspend))
        .route("/v1/jobs/{job}/resume", post(resume))
        .route("/v1/jobs/{job}/park", post(park))
        .route("/v1/jobs/{job}/wake", post(wake))
        .route("/v1/jobs/{job}/resize", post(resize))
        .route("/v1/jobs/{job}/change", post(pending::change))
        .route("/v1/jobs/{job}/hold", post(pending::hold))
        .route("/v1/jobs/{job}/release", post(pending::release))
        .route("/v1/jobs/{job}/exec", post(exec::exec))
        .route("/v1/jobs/{job}/signal", post(exec::signal))
        .route("/v1/jobs/{job}/docker", get(docker))
        .route("/v1/jobs/{job}/oom", get(oom))
        .route("/v1/advice", get(advice))
        .route("/v1/events", get(events::events))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/web/session", get(web::session))
        .route("/web/doctor", get(web::of_command_line))
        .route("/web/selftest", post(web::of_command_line))
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(LARGE))
        .with_state(api.clone());
    let me = api.me.uid;
    let web = middleware::from_fn_with_state(Arc::clone(&api.gate), web::guard);
    // Outside of the routes, so that it decides also what a path means.
    let gate = middleware::from_fn_with_state((api, Uploads::new(me)), auth::authorize_request);
    let routes = Router::new().fallback_service(routes).layer(gate);
    let routes = routes.layer(web);
    let server = Server::new(routes.layer(middleware::map_response(name_version)));
    let listener = UnixListener::from_std(listener)?;
    let is_counted = move |uid| uid != 0 && uid != me;
    let local = server.clone().local(listener, socket, is_counted, pods);
    match tcp {
        None => match local.await {},
        Some(tcp) => tokio::select! {
            never = local => match never {},
            never = async { server.remote(tcp.await).await } => match never {},
        },
    }
}

/// Names the version of the daemon in each answer, so that a client of another version can name both.
async fn name_version(mut response: Response) -> Response {
    if let Ok(version) = HeaderValue::from_str(&version::described()) {
        response.headers_mut().insert(version::HEADER, version);
    }
    response
}

async fn missing(request: Request) -> ApiError {
    Error::new(
        ErrorCode::NotFound,
        format!("unknown path {}", request.uri().path()),
    )
    .into()
}

async fn wrong_method(request: Request) -> ApiError {
    let why = format!(
        "{} does not support the method {}",
        request.uri().path(),
        request.method()
    );
    Error::new(ErrorCode::Usage, why).into()
}

async fn node(api: Api, Extension(caller): Extension<Caller>) -> Answer<v1::Node> {
    let node = api.mailbox.query(|queries| Ok(queries.node())).await?;
    // As `GET /v1/config`: the names are those of roles, too.
    let config_warnings = match caller.role {
        Role::Admin => api.reloader.warnings(),
        _ => Vec::new(),
    };
    let caller = v1::NodeCaller {
        user: caller.account.name,
        role: caller.role.name().to_owned(),
    };
    let caller = Some(caller);
    let node = v1::Node {
        caller,
        config_warnings,
        listen_error: api.listen_error.get().as_ref().clone(),
        ..node
    };
    list("Node", vec![node])
}

async fn gpus(api: Api) -> Answer<v1::Gpu> {
    api.observer.wait_for_recent_sample().await;
    list(
        "GpuList",
        api.mailbox.query(|queries| Ok(queries.gpus())).await?,
    )
}

async fn change_gpu(
    api: Api,
    Path(gpu): Path<String>,
    Body(change): Body<v1::GpuChange>,
) -> Answer<v1::GpuChanged> {
    // The processes that use the GPU now decide whether it can be done.
    api.observer.wait_for_fresh_sample().await;
    let changed = api
        .mailbox
        .request(|reply| Message::GpuMode { gpu, change, reply });
    list("GpuChange", vec![changed.await?])
}

async fn drain(
    api: Api,
    Extension(caller): Extension<Caller>,
    Body(drain): Body<v1::Drain>,
) -> Answer<v1::Gpu> {
    let (drain, by) = (Box::new(drain), Box::new(caller));
    let drained = api
        .mailbox
        .request(|reply| Message::Drain { drain, by, reply });
    gpus_among(&api, &drained.await?).await
}

async fn undrain(
    api: Api,
    Extension(caller): Extension<Caller>,
    Body(v1::Undrain { gpus }): Body<v1::Undrain>,
) -> Answer<v1::Gpu> {
    let by = Box::new(caller);
    let returned = api
        .mailbox
        .request(|reply| Message::Undrain { gpus, by, reply });
    gpus_among(&api, &returned.await?).await
}

async fn gpus_among(api: &Api, chosen: &[GpuUuid]) -> Answer<v1::Gpu> {
    let mut gpus = api.mailbox.query(|queries| Ok(queries.gpus())).await?;
    gpus.retain(|gpu| chosen.iter().any(|chosen| chosen.as_str() == gpu.uuid));
    list("GpuList", gpus)
}

async fn mig(api: Api) -> Answer<v1::MigInstance> {
    api.observer.wait_for_recent_sample().await;
    list(
        "MigInstanceList",
        api.mailbox
            .query(|queries| Ok(queries.mig_instances()))
            .await?,
    )
}

async fn mig_plan(api: Api, Body(wanted): Body<v1::MigWanted>) -> Answer<v1::MigPlanned> {
    api.observer.wait_for_fresh_sample().await;
    list(
        "MigPlan",
        api.mailbox
            .query(move |queries| queries.preview_mig(&wanted))
            .await?,
    )
}

async fn mig_gc(api: Api, Body(gc): Body<v1::MigGc>) -> Answer<v1::MigInstance> {
    list(
        "MigInstanceList",
        api.mailbox
            .request(|reply| Message::MigGc { gc, reply })
            .await?,
    )
}

async fn queues(api: Api) -> Answer<v1::Queue> {
    list(
        "QueueList",
        api.mailbox
            .query(|queries| Ok(queries.list_queues()))
            .await?,
    )
}

async fn projects(api: Api) -> Answer<v1::Project> {
    list(
        "ProjectList",
        api.mailbox
            .query(|queries| Ok(queries.list_projects()))
            .await?,
    )
}

async fn config(api: Api) -> Answer<v1::ConfigValue> {
    let values = api.mailbox.query(|queries| Ok(queries.config()));
    list("ConfigList", values.await?)
}

async fn reload_config(api: Api) -> Answer<v1::ConfigReload> {
    list("ConfigReload", vec![api.reloader.reload().await?])
}

async fn tend(api: &Api, name: String, act: ProjectAct) -> Answer<v1::Project> {
    let tended = api
        .mailbox
        .request(|reply| Message::Project { name, act, reply });
    list("ProjectList", vec![tended.await?])
}

async fn add_project(
    api: Api,
    Path(name): Path<String>,
    Body(change): Body<v1::ProjectChange>,
) -> Answer<v1::Project> {
    tend(&api, name, ProjectAct::Add(change)).await
}

async fn set_project(
    api: Api,
    Path(name): Path<String>,
    Body(change): Body<v1::ProjectChange>,
) -> Answer<v1::Project> {
    tend(&api, name, ProjectAct::Set(change)).await
}

async fn remove_project(api: Api, Path(name): Path<String>) -> Answer<v1::Project> {
    tend(&api, name, ProjectAct::Remove).await
}

async fn job(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    match resolve(&api, &reference).await? {
        JobRef::Array(array) => asks.jobs(array).await,
        job => {
            let job = job_with_start_estimate(&api, job.to_string()).await?;
            Ok(list("JobList", vec![job])?.into_response())
        }
    }
}

/// A job, and when it starts if it waits.
async fn job_with_start_estimate(api: &Api, reference: String) -> Result<v1::Job, ApiError> {
    let read = api
        .mailbox
        .query(move |queries| queries.job_with_estimate(&reference));
    let (mut job, estimator) = read.await?;
    let Some(estimator) = estimator else {
        return Ok(job);
    };
    let estimate = move || {
        estimator.estimate_start(&mut job);
        job
    };
    api.budget.run_in_turn(&HEAVY, estimate).await
}

async fn why(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Answer<v1::Why> {
    let inquiry = api
        .mailbox
        .query(move |queries| queries.why(&reference))
        .await?;
    let answer = move || inquiry.answer(|owner| sight.can_see(owner));
    let (mut why, tries) = api.budget.run_in_turn(&HEAVY, answer).await?;
    if !tries.is_empty() {
        // What the daemon would refuse from this caller is no advice.
        let commands = api
            .mailbox
            .query(move |queries| Ok(queries.commands(&tries, &caller)));
        why.suggested_changes = pending::with_commands(&why.suggestions, commands.await?);
    }
    list("Why", vec![why])
}

async fn submit(
    api: Api,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    Body(submit): Body<v1::Submit>,
) -> Answer<v1::Job> {
    let client = match submit.with_client {
        true => peer.process()?,
        false => None,
    };
    check_priority(submit.priority, &caller)?;
    // Without jobs observations are rare. The planner must not place the first job by an observation of unmanaged
    // processes from two seconds ago.
    if !api.observer.is_busy() {
        api.observer.wait_for_fresh_sample().await;
    }
    let named = match submit
        .user
        .clone()
        .filter(|_| caller.role >= Role::Operator)
    {
        Some(user) => account_of(&api, user).await?,
        None => None,
    };
    // A dry run is answered with an estimate.
    let turn = match submit.dry_run {
        true => Some(api.budget.turn(&HEAVY).await?),
        false => None,
    };
    let (submit, by) = (Box::new(submit), Box::new(caller));
    let message = |reply| Message::Submit {
        submit,
        by,
        named,
        turn: turn.map(|turn| Box::new(turn) as Box<dyn Send>),
        client,
        reply,
    };
    list("JobList", vec![api.mailbox.request(message).await?])
}

/// The account of a user that a front end names; the user database may be on the network.
async fn account_of(api: &Api, user: String) -> Result<Option<Box<UserAccount>>, ApiError> {
    let found = api.budget.run(move || UserAccount::by_name(&user)).await?;
    let found = found.map_err(|error| {
        Error::new(ErrorCode::Internal, error_chain(&error))
            .hint("check `getent passwd` and `id`; rules for groups need the user database")
    })?;
    Ok(found.map(Box::new))
}

async fn cancel(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    how: Option<Body<v1::CancelJob>>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    let job = match resolve(&api, &reference).await? {
        JobRef::Array(array) => return asks.act(array, Act::Cancel).await,
        job => job.to_string(),
    };
    let mut how = Cancellation {
        asked: how.map(|Body(how)| how).unwrap_or_default(),
        agreed: false,
    };
    let cancelled = match cancel_one(&api, &caller, &job, &how).await {
        // The job stands for a task in a queue of the front end, which takes it from there first.
        Err(error) if error.details["front_end"] == true => {
            let Some(front_end) = &api.front_end else {
                return Err(error.into());
            };
            let because = Cause::requested_by("cancelled", &caller).words;
            let number = error.details["number"].as_str().unwrap_or(&job).to_owned();
            match withdraw::withdraw(front_end, number, because).await? {
                Withdrawn::Claimed => {
                    how.agreed = true;
                    cancel_one(&api, &caller, &job, &how).await?
                }
                Withdrawn::Done => {
                    let reference = job.clone();
                    let now = api.mailbox.query(move |queries| queries.job(&reference));
                    now.await?
                }
            }
        }
        answer => answer?,
    };
    Ok(list("JobList", vec![cancelled])?.into_response())
}

async fn cancel_one(
    api: &Api,
    caller: &Caller,
    job: &str,
    how: &Cancellation,
) -> Result<v1::Job, Error> {
    let (reference, by, how) = (
        job.to_owned(),
        Box::new(caller.clone()),
        Box::new(how.clone()),
    );
    let cancel = api.mailbox.request(|reply| Message::Cancel {
        reference,
        how,
        by,
        reply,
    });
    cancel.await
}

/// Does something to one job, or to every job of an array that it can be done to.
async fn act_on_jobs(
    asks: CallContext<'_>,
    reference: &str,
    act: Act,
    one: impl FnOnce(String, Reply<v1::Job>) -> Message,
) -> Result<Response, ApiError> {
    match resolve(asks.api, reference).await? {
        JobRef::Array(array) => asks.act(array, act).await,
        job => {
            let ask = asks
                .api
                .mailbox
                .request(|reply| one(job.to_string(), reply));
            Ok(list("JobList", vec![ask.await?])?.into_response())
        }
    }
}

async fn confirm(
    api: Api,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Body(confirm): Body<v1::Confirm>,
) -> Answer<v1::Job> {
    let (confirm, by) = (Box::new(confirm), Box::new(caller));
    let confirm = api.mailbox.request(|reply| Message::Confirm {
        reference,
        confirm,
        by,
        reply,
    });
    list("JobList", vec![confirm.await?])
}

/// A call without a body uses the defaults.
async fn suspend(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    how: Option<Body<v1::Suspend>>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    let how = how.map(|Body(how)| how).unwrap_or_default();
    if !how.release_memory {
        return pause(asks, &reference, true).await;
    }
    match resolve(&api, &reference).await? {
        JobRef::Array(array) => asks.release(array).await,
        job => {
            let reference = job.to_string();
            let release = api
                .mailbox
                .request(|reply| Message::Offload { reference, reply });
            Ok(list("JobList", vec![release.await?])?.into_response())
        }
    }
}

async fn resume(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    pause(asks, &reference, false).await
}

async fn park(api: Api, Path(reference): Path<String>) -> Result<Response, ApiError> {
    park_or_wake(&api, reference, false).await
}

async fn wake(api: Api, Path(reference): Path<String>) -> Result<Response, ApiError> {
    park_or_wake(&api, reference, true).await
}

async fn park_or_wake(api: &Api, reference: String, wake: bool) -> Result<Response, ApiError> {
    let park = api.mailbox.request(|reply| Message::Park {
        reference,
        wake,
        reply,
    });
    Ok(list("JobList", vec![park.await?])?.into_response())
}

async fn pause(
    asks: CallContext<'_>,
    reference: &str,
    suspend: bool,
) -> Result<Response, ApiError> {
    let act = match suspend {
        true => Act::Suspend,
        false => Act::Resume,
    };
    act_on_jobs(asks, reference, act, |reference, reply| Message::Pause {
        reference,
        suspend,
        reply,
    })
    .await
}

async fn requeue(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    let by = Box::new(caller.clone());
    act_on_jobs(asks, &reference, Act::Requeue, |reference, reply| {
        Message::Requeue {
            reference,
            by,
            reply,
        }
    })
    .await
}

async fn resize(
    api: Api,
    Path(reference): Path<String>,
    Body(resize): Body<v1::Resize>,
) -> Answer<v1::Job> {
    // What others hold now decides whether there is room.
    api.observer.wait_for_fresh_sample().await;
    let resize = api.mailbox.request(|reply| Message::Resize {
        reference,
        resize,
        reply,
    });
    list("JobList", vec![resize.await?])
}

async fn docker(api: Api, Path(reference): Path<String>) -> Answer<v1::DockerArgs> {
    let added = api
        .mailbox
        .query(move |queries| queries.docker_args(&reference));
    list("DockerArgs", vec![added.await?])
}

async fn oom(api: Api, Path(reference): Path<String>) -> Answer<v1::Oom> {
    list(
        "Oom",
        vec![
            api.mailbox
                .query(move |queries| queries.oom(&reference))
                .await?,
        ],
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
    api: Api,
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
            let read = api.mailbox.query(move |queries| {
                let (meant, owner) = queries.resolve_for_caller(&reference, by)?;
                Ok((owner, queries.program(meant)?))
            });
            let (owner, program) = read.await?;
            if !caller.can_see(owner) {
                caller.authorize(Verb::Read, caller.whose(owner))?;
            }
            RunFilter::Of(program)
        }
        WhichRuns {
            job: None,
            name: Some(pattern),
            program: None,
        } => {
            limits::pattern(&pattern)?;
            RunFilter::Named(pattern)
        }
        WhichRuns {
            job: None,
            name: None,
            program: Some(program),
        } => {
            limits::program(&program)?;
            RunFilter::Of(program)
        }
        WhichRuns {
            job: None,
            name: None,
            program: None,
        } => RunFilter::All,
        _ => {
            let error = Error::new(ErrorCode::Usage, "job, name and program exclude each other");
            return Err(error.hint("give at most one of them").into());
        }
    };
    let gpus = api.mailbox.query(|queries| Ok(queries.served())).await?;
    let database = api.home.database();
    // Advice names programs, so it considers only jobs that show their commands to the caller.
    let uid = (!caller.can_see_all_users()).then_some(caller.account.uid);
    let advised = api.budget.run_in_turn(&ADVICE, move || {
        let jobs = journal::ended_of(&database, uid)?;
        let sufficient = journal::sufficient(&database)?;
        Ok::<_, journal::StoreError>(recommend::advice(&runs, jobs, &sufficient, &gpus))
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
    api: Api,
    Path(reference): Path<String>,
    Query(until): Query<Until>,
) -> Result<Response, ApiError> {
    let milestone = match until.state {
        WaitState::Starting => Milestone::Starting,
        WaitState::Ended => Milestone::Ended,
    };
    let patience = Duration::from_secs(until.timeout_s).min(POLL_LIMIT);
    let reference = match resolve(&api, &reference).await? {
        JobRef::Array(array) => return arrays::wait(&api, array, milestone, patience).await,
        job => job.to_string(),
    };
    let wanted = reference.clone();
    let wait = api.mailbox.request(|reply| Message::Wait {
        reference: wanted,
        milestone,
        reply,
    });
    let job = match tokio::time::timeout(patience, wait).await {
        Ok(job) => job?,
        Err(_) => job_with_start_estimate(&api, reference).await?,
    };
    Ok(list("JobList", vec![job])?.into_response())
}

#[cfg(test)]
mod tests {
    use divvy_testkit::until_async;
    use tokio::sync::oneshot;

    use super::*;

    fn budgets() -> impl Fn(u32) -> Budget {
        let all = Arc::default();
        move |user| Budget::of(&all, user)
    }

    #[tokio::test]
    async fn calls_for_advice_take_turns_and_hold_up_nothing_else() {
        let of = budgets();
        let (end, ended) = oneshot::channel::<()>();
        let begin = |user: u32, work: Box<dyn FnOnce() + Send>| {
            let budget = of(user);
            tokio::spawn(async move { budget.run_in_turn(&ADVICE, work).await })
        };
        let first = begin(1, Box::new(move || ended.blocking_recv().unwrap()));
        until_async("the first has the turn", async || {
            (ADVICE.available_permits() == 0).then_some(())
        })
        .await;
        let second = begin(2, Box::new(|| ()));
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        of(3).run_in_turn(&HEAVY, || ()).await.unwrap();
        end.send(()).unwrap();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn work_of_seconds_keeps_its_turn_when_the_client_is_gone() {
        let turns = HEAVY.available_permits();
        let (begin, begun) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let budget = budgets()(1);
        let asks = tokio::spawn(async move {
            let work = move || {
                begin.send(()).unwrap();
                ended.blocking_recv().unwrap();
            };
            budget.run_in_turn(&HEAVY, work).await
        });
        begun.await.unwrap();
        asks.abort();
        assert!(asks.await.unwrap_err().is_cancelled());
        assert_eq!(HEAVY.available_permits(), turns - 1);
        end.send(()).unwrap();
        let all = u32::try_from(turns).unwrap();
        drop(HEAVY.acquire_many(all).await.unwrap());
    }
}
