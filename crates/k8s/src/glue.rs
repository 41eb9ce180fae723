//! `divvy-k8s glue`: tasks of a ClearML Server's queues as pods.
//!
//! ```text
//!  values ──► template ──► pod (pure)                ┌─► Secret (record, credentials)
//!                            │                       ├─► Pod ──► webhook, scheduler, node: as any other
//!  server: queues, tasks ──► life (pure) ──► desk ───┤
//!  cluster: Secrets, pods ──► sight (pure)           └─► status, log
//! ```
//! It places nothing and limits nothing: a queue's template says what its pods ask of GPUs, the webhook makes that a claim, and the
//! scheduler finds the GPU. It keeps nothing either: a task's record is a Secret in the cluster, written before what it speaks of
//! is begun, and every look starts from what is there. Decisions are in `life`, `sight`, `pod` and `template`, which are pure.

mod desk;
mod hand;
pub mod life;
pub mod objects;
pub mod pod;
mod pump;
pub mod record;
pub mod sight;
pub mod template;
pub mod values;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use divvy_clearml::Settings;
use divvy_clearml::config::{ConfigError, Credentials};
use divvy_clearml::container::Setup;
use divvy_clearml::frontend::gate::Gate;
use divvy_clearml::server::{QueueFacts, Server, ServerError, Stats, StatusReport};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::ask::{Steps, ask};
use desk::Desk;
use hand::{Hand, Served, now_ms};
use objects::Objects;
use record::{Record, holder};
use values::{Values, Wrong};

/// How long a worker stays on the server's list unheard, seconds: the stock agent's.
const TIMEOUT: u64 = 600;

/// The first report after the start, as the stock agent sends it.
const FIRST: Duration = Duration::from_secs(3);

/// How long taking the worker off the list may take.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Tasks of a ClearML Server's queues, as pods
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Queues and their pod templates, in the shape of the values of ClearML's agent chart (agentk8sglue)
    #[arg(long, value_name = "FILE")]
    values: PathBuf,
    /// A pod's manifest that lies under every template
    #[arg(long, value_name = "FILE")]
    pod_template: Option<PathBuf>,
    /// Where the pods are made; otherwise the kubeconfig's or the service account's own
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// clearml.conf; otherwise as the stock agent finds it
    #[arg(long, value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// What the glue is called on the server, and how it finds its pods again: another name is another glue
    #[arg(long, value_name = "NAME")]
    worker_id: Option<String>,
    /// Makes queues that the server does not have
    #[arg(long)]
    create_queue: bool,
    /// Prints the pod of a task of each queue, and does nothing; needs neither a server nor a cluster
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
    Values { path: PathBuf, wrong: Wrong },
    #[error("queue {queue}: {wrong}")]
    Queue { queue: String, wrong: Wrong },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("uptime, downtime: {0:?} means no hours of days")]
    Hours(String),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the server has no queue \"{0}\"")]
    NoQueue(String),
    #[error("the Kubernetes API: {0}")]
    Cluster(String),
    #[error("standard output: {0}")]
    Write(std::io::Error),
    #[error("signals: {0}")]
    Signals(std::io::Error),
}

impl GlueError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => Some(error.hint()),
            Self::Server(error) => error.hint().map(str::to_owned),
            Self::NoQueue(_) => Some("make it on the server, or say --create-queue".to_owned()),
            _ => None,
        }
    }

    /// As the command line's reference has it: 2 wrong input, 1 otherwise.
    fn code(&self) -> u8 {
        match self {
            Self::Read { .. }
            | Self::Values { .. }
            | Self::Queue { .. }
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
    let filter = EnvFilter::try_from_env("DIVVY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Fails only where a log is set already, and then that one is used.
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .with_target(false)
        .try_init();
}

/// What the files say.
struct Prepared {
    values: Values,
    manifest: Value,
}

fn prepared(args: &Args) -> Result<Prepared, GlueError> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|source| GlueError::Read {
            path: path.clone(),
            source,
        })
    };
    let wrong = |path: &PathBuf| {
        let path = path.clone();
        move |wrong| GlueError::Values { path, wrong }
    };
    let values = Values::parse(&read(&args.values)?).map_err(wrong(&args.values))?;
    for note in &values.notes {
        eprintln!("note: {}: {note}", args.values.display());
    }
    let manifest = match &args.pod_template {
        None => json!({}),
        Some(path) => pod::manifest(&read(path)?).map_err(wrong(path))?,
    };
    let prepared = Prepared { values, manifest };
    for queue in &prepared.values.queues {
        let sample = prepared
            .sample(queue, "divvy-k8s", "IMAGE")
            .map_err(|wrong| GlueError::Queue {
                queue: queue.name.clone(),
                wrong,
            })?;
        // With Divvy's webhook every task of such a queue would fail; without it, it may be somebody else's language.
        if let Err(refusal) = ask(&sample, Steps::Any) {
            eprintln!(
                "warning: queue {}: its pods would be refused: {refusal}",
                queue.name
            );
        }
    }
    Ok(prepared)
}

impl Prepared {
    /// The pod that a task of a queue would have.
    fn sample(&self, queue: &values::Queue, worker: &str, image: &str) -> Result<Value, Wrong> {
        let record = Record {
            task: "TASK".to_owned(),
            queue_id: "QUEUE".to_owned(),
            queue_name: queue.name.clone(),
            mark: life::Mark::Ours,
            was_stopped: false,
            logged: record::Logged::Nothing,
        };
        let asked = pod::Asked {
            record: &record,
            holder: &holder(worker),
            image: None,
            default_image: self.values.image.as_deref().unwrap_or(image),
            env: &[],
            worker: &format!("{worker}:TASK"),
            files: &self.values.files(queue),
            token: false,
            pull: false,
        };
        let pod = pod::pod(&self.manifest, &self.values.layers(queue), &asked)?;
        serde_json::to_value(pod).map_err(|error| Wrong::new("the pod", &error.to_string()))
    }

    fn print(&self, worker: &str) -> Result<(), GlueError> {
        let mut out = std::io::stdout().lock();
        for queue in &self.values.queues {
            let wrong = |wrong| GlueError::Queue {
                queue: queue.name.clone(),
                wrong,
            };
            let pod = self.sample(queue, worker, "IMAGE").map_err(wrong)?;
            let text = yaml_serde::to_string(&pod)
                .map_err(|error| wrong(Wrong::new("the pod", &error.to_string())))?;
            write!(out, "---\n# a task of the queue {}\n{text}", queue.name)
                .map_err(GlueError::Write)?;
        }
        Ok(())
    }
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
        let (hand, gate) = tokio::select! {
            ready = set_up(args, prepared) => ready?,
            () = &mut stop => return Ok(()),
        };
        let hand = Rc::new(hand);
        let beating = tokio::task::spawn_local(beat(Rc::clone(&hand)));
        let mut desk = Desk::new(Rc::clone(&hand), gate);
        tokio::select! {
            () = desk.serve() => {}
            () = &mut stop => {}
        }
        beating.abort();
        let unregistering = tokio::time::timeout(LAST_WORD, hand.server.unregister(&hand.worker));
        if !matches!(unregistering.await, Ok(Ok(()))) {
            tracing::warn!(
                worker = hand.worker,
                "the worker stays on the server's list until its time is over"
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

/// Everything before the first task: configuration, login, queues, the cluster.
async fn set_up(args: &Args, prepared: Prepared) -> Result<(Hand, Gate), GlueError> {
    let Prepared { values, manifest } = prepared;
    let mut vars: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    for (variable, address) in &values.addresses {
        vars.entry((*variable).to_owned())
            .or_insert_with(|| address.clone());
    }
    let settings = Settings::read_with(args.config_file.as_deref(), vars.clone())?;
    let asked: Vec<String> = values.image.iter().cloned().collect();
    let (gate, both) = Gate::of(&settings.uptime, &settings.downtime)
        .map_err(|error| GlueError::Hours(error.0))?;
    if both {
        tracing::warn!(
            "both uptime and downtime were given, and only one of them can count: neither does"
        );
    }
    let setup = Setup::read(&settings.tree, &asked, vars.clone())?;

    let client = crate::cluster::client()
        .await
        .map_err(|error| GlueError::Cluster(error.to_string()))?;
    let namespace = args
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    // Not the machine's name: that of a pod changes, and what is ours would not be found again.
    let worker = args
        .worker_id
        .clone()
        .or_else(|| settings.worker_id.clone());
    let worker = worker.unwrap_or_else(|| format!("divvy-k8s:{namespace}"));

    let server = Server::new(&settings.api, &worker)?;
    server.login().await?;
    let create = args.create_queue || values.create_queues;
    let mut queues = Vec::new();
    for queue in &values.queues {
        let facts = find(&server, &queue.name, create).await?;
        queues.push(Served {
            id: facts.id,
            queue: queue.clone(),
        });
    }
    let ids: Vec<String> = queues.iter().map(|served| served.id.clone()).collect();
    server
        .register(&worker, &ids, TIMEOUT, &settings.worker_tags)
        .await?;
    tracing::info!(%worker, queues = queues.len(), namespace, "serving queues of the ClearML server");
    let hand = Hand {
        objects: Objects::new(client, &namespace, &holder(&worker)),
        config: config(&settings, &vars).to_string(),
        token: match &settings.api.credentials {
            Credentials::Token(token) => Some(token.clone()),
            Credentials::Keys { .. } => None,
        },
        poll: settings.poll,
        server,
        settings,
        setup,
        values,
        manifest,
        worker,
        queues,
    };
    Ok((hand, gate))
}

async fn find(server: &Server, name: &str, create: bool) -> Result<QueueFacts, GlueError> {
    match server.queue(name).await? {
        Some(queue) => Ok(queue),
        None if create => {
            let id = server.create_queue(name).await?;
            tracing::info!(queue = name, "made a queue on the ClearML server");
            Ok(QueueFacts {
                id,
                name: name.to_owned(),
                ..QueueFacts::default()
            })
        }
        None => Err(GlueError::NoQueue(name.to_owned())),
    }
}

/// Variables of git's credentials, and the keys that mean the same.
const GIT: [(&str, &str); 3] = [
    ("CLEARML_AGENT_GIT_USER", "git_user"),
    ("CLEARML_AGENT_GIT_PASS", "git_pass"),
    ("CLEARML_AGENT_GIT_HOST", "git_host"),
];

/// The configuration as tasks get it: the glue's own, less its name; the image's packages count, as under the stock glue.
fn config(settings: &Settings, vars: &BTreeMap<String, String>) -> Value {
    let mut config = settings.tree.root().clone();
    let agent = &mut config["agent"];
    if !agent.is_object() {
        *agent = json!({});
    }
    for name in ["worker_id", "worker_name"] {
        agent.as_object_mut().map(|fields| fields.remove(name));
    }
    for (variable, key) in GIT {
        if let Some(value) = vars.get(variable).filter(|value| !value.is_empty()) {
            agent[key] = json!(value);
        }
    }
    let manager = &mut agent["package_manager"];
    if !manager.is_object() {
        *manager = json!({});
    }
    if manager["system_site_packages"].is_null() {
        manager["system_site_packages"] = json!(true);
    }
    config
}

/// The heartbeat: the glue is on the server's list of workers. It has no figures of a machine: its pods are on others.
async fn beat(hand: Rc<Hand>) {
    let every = hand.settings.report;
    tokio::time::sleep(FIRST.min(every)).await;
    loop {
        let report = StatusReport {
            worker: hand.worker.clone(),
            timestamp: now_ms(),
            task: None,
            queues: Some(hand.queues.iter().map(|served| served.id.clone()).collect()),
            machine_stats: Stats::default(),
            is_daemon: true,
            tags: hand.settings.worker_tags.clone(),
        };
        if let Err(error) = hand.server.report(&report).await {
            tracing::warn!(%error, "cannot report to the ClearML server");
        }
        tokio::time::sleep(every).await;
    }
}
