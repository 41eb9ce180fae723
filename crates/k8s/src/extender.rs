//! `divvy-k8s extender`: scores nodes for the stock kube-scheduler, so that the GPUs of a cluster are packed.
//!
//! ```text
//!  kube-scheduler ──POST /prioritize: pod, names of nodes──► server ──► Extender ──► the chosen node has 10, others 0
//!                                                    (a thread)           │
//!  nodes, pods, claims, slices, classes ──watch──► view ──► packing ──► chooser: the learned table, or best fit
//!                                                   │                             ▲
//!                                   assumed pods ◄──┘        history ──► trainer ─┘ (a thread)
//! ```
//! The scheduler filters and binds; the extender only scores, and a scheduler with `ignorable: true` goes on without it.
//! All state is in the cluster, but the pods that were just scored: they count on their node until the cluster shows them.
//!
//! A choice gets the whole score and equal nodes get none: of two nodes with the whole score the scheduler would draw one,
//! and the next pod would be scored against a wrong assumption.

mod answers;
mod asked;
mod assumed;
mod chooser;
mod gpus;
mod health;
mod history;
mod keeper;
mod metrics;
mod outcome;
mod pod;
mod state;
mod status;
mod store;
mod tls;
mod trainer;
mod view;
mod watch;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use divvy_packing::learned::REQUESTS_NEEDED;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::base::cluster::{self, ClusterError};
use crate::base::server::{Service, listen, serve_health};
use crate::controller::identity::{CertSource, IdentityError};
use crate::controller::told_to_end;
pub use chooser::BestFitReason;
use metrics::METRICS;
pub use outcome::Outcome;
use pod::PodFacts;
use state::State;
pub use status::Status;
use store::Store;
pub use store::written_status;
use view::View;
use wire::Question;

#[derive(clap::Args)]
pub struct Args {
    /// Address for the scheduler (HTTP, or HTTPS with --tls-cert or --tls-secret)
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
    /// Secret in which the extender keeps a certificate that it creates and renews
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "tls_cert",
        requires = "tls_names"
    )]
    tls_secret: Option<String>,
    /// Host name or address in the certificate of --tls-secret; repeatable
    #[arg(long = "tls-name", value_name = "NAME", requires = "tls_secret")]
    tls_names: Vec<String>,
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

impl Args {
    /// Where the certificate lies, and its names; `None` for HTTP.
    fn certificate(&self, namespace: &str) -> Option<(CertSource, Vec<String>)> {
        let place = match (&self.tls_cert, &self.tls_key, &self.tls_secret) {
            (Some(certificate), Some(key), _) => CertSource::Files {
                certificate: certificate.clone(),
                key: key.clone(),
                bundle: None,
            },
            (_, _, Some(name)) => CertSource::Secret {
                namespace: namespace.to_owned(),
                name: name.clone(),
            },
            _ => return None,
        };
        Some((place, self.tls_names.clone()))
    }
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
    #[error("cannot start the thread of the answers")]
    Answers(#[source] io::Error),
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
        if self.is_ready() {
            self.state().choose(&pod, &question.nodes, now)
        } else {
            (None, Outcome::NotReady)
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
    let shown = match args.certificate(&namespace) {
        Some((place, names)) => Some(tls::serving(&client, place, names, &mut tasks).await?),
        None => None,
    };
    let router = health::router(&extender, args.metrics);
    tasks.spawn(serve_health(health, router));
    watch::start(&client, &extender, &mut tasks);
    let store = store.map(Arc::new);
    tasks.spawn(keeper::keep(Arc::clone(&extender), store.clone()));
    let (close, closed) = channel::channel(false);
    let answers = answers::start(door, shown, Arc::clone(&extender), closed);
    let mut serving = answers.map_err(ExtenderError::Answers)?;
    tokio::select! {
        told = told_to_end() => told.map_err(ExtenderError::Signals)?,
        Some(_) = tasks.join_next() => return Err(ExtenderError::Broken),
        _ = &mut serving => return Err(ExtenderError::Broken),
    }
    info!("ending");
    extender.is_leaving.store(true, Ordering::Release);
    close.send_replace(true);
    let served = serving.await.unwrap_or(Err(ExtenderError::Broken));
    if let Some(store) = &store {
        keeper::save(&extender, store).await;
    }
    tasks.shutdown().await;
    served
}

#[cfg(test)]
mod tests;
