//! `divvy-k8s glue`: runs the tasks of a ClearML Server's queues as pods.
//!
//! ```text
//!  values ──► template ──► pod (pure)                ┌─► Secret (record, credentials)
//!                            │                       ├─► Pod ──► webhook, scheduler, node: as any other
//!  server: queues, tasks ──► task_state (pure) ──► controller
//!  cluster: Secrets, pods ──► pod_status (pure)      └─► status, log
//! ```
//! It places and limits nothing: a queue's template holds its pods' GPU request, the webhook turns that into a claim, and
//! the scheduler finds the GPU. It keeps no state either: a task's record is a Secret in the cluster, written before the
//! action that it names begins, and every reconcile starts from the cluster's objects. Decisions are in `task_state`,
//! `pod_status`, `pod`, `template` and `values`, which are pure.

mod context;
mod controller;
mod log_forwarder;
pub mod objects;
pub mod pod;
pub mod pod_status;
mod prepared;
pub mod record;
mod setup;
pub mod task_state;
pub mod template;
pub mod values;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use divvy_clearml::config::ConfigError;
use divvy_clearml::server::{ServerError, Stats, StatusReport, now_ms};
use tracing_subscriber::EnvFilter;

use context::GlueContext;
use controller::GlueController;
use prepared::{Prepared, prepared};
use setup::set_up;
use values::Problems;

/// How long a worker stays on the server's list unheard, seconds: the stock agent's.
const TIMEOUT: u64 = 600;

/// The first report after the start, as the stock agent sends it.
const FIRST: Duration = Duration::from_secs(3);

/// The client's own log repeats each error that is returned to us.
const FILTER: &str = "info,kube_client=off";

/// How long taking the worker off the list may take.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Tasks of a ClearML Server's queues, as pods
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Queues and their pod templates, in the format of the values of ClearML's agent chart (agentk8sglue)
    #[arg(long, value_name = "FILE")]
    values: PathBuf,
    /// Manifest of a pod on which every template is based
    #[arg(long, value_name = "FILE")]
    pod_template: Option<PathBuf>,
    /// Namespace of the pods [default: that of the kubeconfig or service account]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Path of clearml.conf [default: as for the stock agent]
    #[arg(long, value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Name of the glue on the server; it finds its pods again by this name
    #[arg(long, value_name = "NAME")]
    worker_id: Option<String>,
    /// Creates queues that do not exist on the server
    #[arg(long)]
    create_queue: bool,
    /// Only prints a sample pod of each queue; needs neither a server nor a cluster
    #[arg(long)]
    print: bool,
}

/// Why the glue does not run.
#[derive(Debug, thiserror::Error)]
pub enum GlueError {
    #[error("{path}: {source}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path}: {wrong}")]
    Values { path: PathBuf, wrong: Problems },
    #[error("{0}")]
    Queues(Problems),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot parse {0:?} in uptime or downtime as hours and days")]
    Hours(String),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the server has no queue \"{0}\"")]
    NoQueue(String),
    #[error("the Kubernetes API: {0}")]
    Cluster(String),
    #[error("cannot write to standard output: {0}")]
    Write(std::io::Error),
    #[error("cannot start or wait for signals: {0}")]
    Signals(std::io::Error),
}

impl GlueError {
    /// The remedy.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => Some(error.hint()),
            Self::Server(error) => error.hint().map(str::to_owned),
            Self::NoQueue(_) => Some("create it on the server, or add --create-queue".to_owned()),
            _ => None,
        }
    }

    /// As the command line's reference has it: 2 wrong input, 1 otherwise.
    fn code(&self) -> u8 {
        match self {
            Self::Read { .. }
            | Self::Values { .. }
            | Self::Queues(_)
            | Self::Config(_)
            | Self::Hours(_) => 2,
            _ => 1,
        }
    }
}

/// Serves until it is told to stop by SIGTERM or SIGINT. Pods and tasks are left as they are: the next glue goes on with them.
pub fn run(args: &Args) -> ExitCode {
    log_to_stderr();
    match prepared(args).and_then(|prepared| serve(args, prepared)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("divvy-k8s: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(error.code())
        }
    }
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("DIVVY_LOG").unwrap_or_else(|_| EnvFilter::new(FILTER));
    // Fails only where a log is set already, and then that one is used.
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .with_target(false)
        .try_init();
}

fn serve(args: &Args, prepared: Prepared) -> Result<(), GlueError> {
    if args.print {
        return prepared.print(args.worker_id.as_deref().unwrap_or("divvy-k8s"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(GlueError::Signals)?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let stop = stop()?;
        tokio::pin!(stop);
        let (context, gate) = tokio::select! {
            ready = set_up(args, prepared) => ready?,
            () = &mut stop => return Ok(()),
        };
        let context = Rc::new(context);
        let beating = tokio::task::spawn_local(send_heartbeats(Rc::clone(&context)));
        let mut controller = GlueController::new(Rc::clone(&context), gate);
        tokio::select! {
            () = controller.serve() => {}
            () = &mut stop => {}
        }
        beating.abort();
        let unregistering =
            tokio::time::timeout(LAST_WORD, context.server.unregister(&context.worker));
        if !matches!(unregistering.await, Ok(Ok(()))) {
            tracing::warn!(
                worker = context.worker,
                "cannot unregister the worker; the server lists it until its timeout"
            );
        }
        Ok(())
    })
}

/// The word to stop.
fn stop() -> Result<impl Future<Output = ()>, GlueError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(GlueError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(GlueError::Signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The heartbeat: the glue is on the server's list of workers. It has no figures of a machine: its pods are on others.
async fn send_heartbeats(context: Rc<GlueContext>) {
    let every = context.settings.report;
    tokio::time::sleep(FIRST.min(every)).await;
    loop {
        let report = StatusReport {
            worker: context.worker.clone(),
            timestamp: now_ms(),
            task: None,
            queues: Some(
                context
                    .queues
                    .iter()
                    .map(|served| served.id.clone())
                    .collect(),
            ),
            machine_stats: Stats::default(),
            is_daemon: true,
            tags: context.settings.worker_tags.clone(),
        };
        if let Err(error) = context.server.report(&report).await {
            tracing::warn!(%error, "cannot report to the ClearML server");
        }
        tokio::time::sleep(every).await;
    }
}
