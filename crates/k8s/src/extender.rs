//! `divvy-k8s extender`: scores nodes for the stock kube-scheduler, so that the GPUs of a cluster are packed.
//!
//! ```text
//!  kube-scheduler ──POST /prioritize: pod, names of nodes──► server ──► Extender ──► the chosen node has 10, others 0
//!                                                                         │
//!  nodes, pods, claims, slices, classes ──watch──► view ──► core::cluster ──► chooser: the learned table, or best fit
//!                                                   │                             ▲
//!                                   assumed pods ◄──┘        history ──► trainer ─┘ (a thread)
//! ```
//! The scheduler filters and binds; the extender only scores, and a scheduler with `ignorable: true` goes on without it.
//! All state is in the cluster, but the pods that were just scored: they count on their node until the cluster shows them.
//!
//! A choice gets the whole score and equal nodes get none: of two nodes with the whole score the scheduler would draw one,
//! and the next pod would be scored against a wrong assumption.

mod asked;
mod assumed;
mod chooser;
mod gpus;
mod history;
mod outcome;
mod pod;
mod state;
mod status;
mod store;
mod trainer;
mod view;
mod watch;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use divvy_core::cluster::learned::REQUESTS_NEEDED;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch as channel;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::cluster::{self, ClusterError, chain};
use crate::controller::identity::{CertSource, IdentityError, ensure_identity};
use crate::controller::told_to_end;
use crate::metrics::extender::METRICS;
use crate::metrics::page;
use crate::server::{Service, ServingCert, listen, serve, serve_health};
pub use chooser::BestFitReason;
use chooser::Verdict;
pub use outcome::Outcome;
use pod::PodFacts;
use state::State;
pub use status::Status;
use store::Store;
pub use store::written_status;
use view::View;
use wire::Question;

/// How often the extender counts requests, and starts a training that is due.
const TICK: Duration = Duration::from_secs(5);
/// How often the history is written, if it changed.
const SAVES: Duration = Duration::from_secs(60);
/// How often certificate files are read again.
const CERTIFICATES: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Args {
    /// Address for the scheduler (HTTP, or HTTPS with --tls-cert)
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8888")]
    listen: SocketAddr,
    /// Address of /healthz, /readyz and /status (HTTP)
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8889")]
    health_listen: SocketAddr,
    /// Also serves GET /metrics at --health-listen
    #[arg(long)]
    metrics: bool,
    /// Certificate file; the scheduler's configuration then needs enableHTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Policy: auto (the learned table once it is good enough), or best-fit
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "best-fit"])]
    policy: String,
    /// Requests in the history from which on a table is trained
    #[arg(long, value_name = "REQUESTS", default_value_t = REQUESTS_NEEDED, value_parser = clap::value_parser!(u64).range(REQUESTS_NEEDED..=100_000))]
    least_history: u64,
    /// ConfigMap that keeps the history [default: none, the history is lost at the end]
    #[arg(long, value_name = "NAME")]
    history: Option<String>,
    /// Namespace of the ConfigMap [default: that of its pod or kubeconfig]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

/// Why the extender ended.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot listen at {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Certificate(#[from] IdentityError),
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error("cannot serve TLS")]
    Tls(#[from] rustls::Error),
    #[error("a task of the extender ended unexpectedly")]
    Broken,
}

/// The extender: answers the scheduler.
pub struct Extender {
    state: Mutex<State>,
    listed: AtomicUsize,
    is_leaving: AtomicBool,
}

impl Extender {
    fn new(args: &Args) -> Self {
        Self {
            state: Mutex::new(State::new(args.policy == "auto", args.least_history)),
            listed: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn with_view<R>(&self, change: impl FnOnce(&mut View) -> R) -> R {
        change(&mut self.state().view)
    }

    /// One more kind of object is listed.
    fn listed(&self) {
        if self.listed.fetch_add(1, Ordering::AcqRel) + 1 == watch::KINDS {
            self.state().begin();
            info!("ready");
        }
    }

    fn is_ready(&self) -> bool {
        self.listed.load(Ordering::Acquire) >= watch::KINDS
    }

    /// The node for a pod, and what came of the question.
    fn choose(&self, question: &Question, now: Instant) -> (Option<String>, Outcome) {
        let Some(pod) = PodFacts::of(&question.pod).filter(PodFacts::may_want_gpus) else {
            return (None, Outcome::NotOurs);
        };
        match self.is_ready() {
            true => self.state().choose(&pod, &question.nodes, now),
            false => (None, Outcome::NotReady),
        }
    }

    fn status(&self) -> Status {
        self.state().status()
    }
}

impl Service for Extender {
    const PATH: &'static str = "/prioritize";
    /// A pod has at most 1.5 MiB, as etcd takes no larger object, and 5,000 names of nodes have at most 1.3 MiB.
    const MOST_BYTES: usize = 4 << 20;

    async fn answer(&self, body: &[u8]) -> Result<String, String> {
        let begun = Instant::now();
        let (answer, outcome) = match Question::parse(body) {
            Ok(question) => {
                let (chosen, outcome) = self.choose(&question, begun);
                debug!(pod = ?question.pod.metadata.name, node = chosen, outcome = outcome.name(), "scored");
                (Ok(wire::answer(chosen.as_deref())), outcome)
            }
            Err(error) => {
                warn!(%error, "a request of the scheduler is invalid");
                (Err(error.to_string()), Outcome::Invalid)
            }
        };
        METRICS.answered(outcome, begun.elapsed());
        answer
    }
}

/// Runs until SIGTERM or SIGINT, and then until the open requests are answered.
///
/// # Errors
/// No cluster is known, an address is taken, or the certificate is unusable. What fails later is logged, and tried again.
pub async fn run(args: Args) -> Result<(), ExtenderError> {
    let client = cluster::client().await?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let store = args
        .history
        .as_ref()
        .map(|name| Store::new(&client, &namespace, name));
    let extender = Arc::new(Extender::new(&args));
    if let Some(store) = &store
        && let Some(history) = store.load().await
    {
        let mut state = extender.state();
        state.history = history;
        state.is_read = true;
    }
    let failed = |address| move |error| ExtenderError::Listen { address, error };
    let door = listen(args.listen).await;
    let (door, address) = door.map_err(failed(args.listen))?;
    let health = listen(args.health_listen).await;
    let (health, health_address) = health.map_err(failed(args.health_listen))?;
    info!(%address, health = %health_address, "listening");
    let mut tasks = JoinSet::new();
    let shown = match (args.tls_cert, args.tls_key) {
        (Some(certificate), Some(key)) => {
            let bundle = None;
            let files = CertSource::Files {
                certificate,
                key,
                bundle,
            };
            Some(certificate_of(&client, files, &mut tasks).await?)
        }
        _ => None,
    };
    let router = router(&extender, args.metrics);
    tasks.spawn(serve_health(health, router));
    watch::start(&client, &extender, &mut tasks);
    let store = store.map(Arc::new);
    tasks.spawn(keep(Arc::clone(&extender), store.clone()));
    let (close, closed) = channel::channel(false);
    let mut serving = tokio::spawn(serve(door, shown, Arc::clone(&extender), closed));
    tokio::select! {
        told = told_to_end() => told.map_err(ExtenderError::Signals)?,
        Some(_) = tasks.join_next() => return Err(ExtenderError::Broken),
        _ = &mut serving => return Err(ExtenderError::Broken),
    }
    info!("ending");
    extender.is_leaving.store(true, Ordering::Release);
    close.send_replace(true);
    let served = serving.await.unwrap_or(Ok(()));
    if let Some(store) = &store {
        save(&extender, store).await;
    }
    tasks.shutdown().await;
    Ok(served?)
}

/// The certificate in files, which is read again as others renew it.
async fn certificate_of(
    client: &Client,
    files: CertSource,
    tasks: &mut JoinSet<()>,
) -> Result<Arc<ServingCert>, ExtenderError> {
    let shown = Arc::new(ServingCert::default());
    let (client, serving) = (client.clone(), Arc::clone(&shown));
    let read = async move || {
        let identity = ensure_identity(&client, &files, &[], None, Timestamp::now()).await?;
        if let Ok(certified) = identity.certified() {
            serving.show(certified);
        }
        Ok::<_, IdentityError>(())
    };
    read().await?;
    tasks.spawn(async move {
        loop {
            sleep(CERTIFICATES).await;
            if let Err(error) = read().await {
                warn!(error = chain(&error), "cannot read the certificate again");
            }
        }
    });
    Ok(shown)
}

/// Counts, trains and saves, for as long as the process lives.
async fn keep(extender: Arc<Extender>, store: Option<Arc<Store>>) {
    let (mut saved_at, mut saved) = (Instant::now(), None);
    loop {
        sleep(TICK).await;
        if !extender.is_ready() {
            continue;
        }
        let lesson = extender.state().lesson(Instant::now());
        if let Some(lesson) = lesson {
            let begun = Instant::now();
            // A panic there is logged, and the policy stays as it was.
            if let Ok(verdict) = spawn_blocking(|| lesson.learn()).await {
                adopt(&extender, verdict, begun.elapsed());
            }
        }
        METRICS.policy(extender.state().chooser.reason());
        let status = extender.status();
        if saved_at.elapsed() >= SAVES && saved.as_ref() != Some(&status) {
            if let Some(store) = &store {
                save(&extender, store).await;
            }
            (saved_at, saved) = (Instant::now(), Some(status));
        }
    }
}

fn adopt(extender: &Extender, verdict: Verdict, took: Duration) {
    let seconds = took.as_secs_f64();
    match &verdict {
        Verdict::Use(table) => info!(
            seconds,
            requests = table.learned.requests(),
            "the learned table chooses nodes"
        ),
        Verdict::BestFit(reason) => warn!(seconds, %reason, "best fit chooses nodes"),
    }
    extender.state().chooser.adopt(verdict);
}

async fn save(extender: &Extender, store: &Store) {
    let (history, status) = {
        let state = extender.state();
        (state.history.to_json(), state.status())
    };
    store.save(&history, &status).await;
}

fn router(extender: &Arc<Extender>, metrics: bool) -> Router {
    let (of_ready, of_status) = (Arc::clone(extender), Arc::clone(extender));
    let ready = async move || match () {
        () if of_ready.is_leaving.load(Ordering::Acquire) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "this replica is shutting down\n",
        ),
        () if !of_ready.is_ready() => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the objects of the cluster are not listed yet\n",
        ),
        () => (StatusCode::OK, "ok\n"),
    };
    let status = async move || axum::Json(of_status.status());
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/status", get(status));
    match metrics {
        true => router.route("/metrics", get(async || page(METRICS.text()))),
        false => router,
    }
}

#[cfg(test)]
mod tests;
