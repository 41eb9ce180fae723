//! `admin gpu` and `admin mig ls`: the node's own commands, run in its pod of Divvy. Output, errors and exit codes are
//! the node's.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use divvy_api::v1::{Error, ErrorCode};
use divvy_cli::args::Format;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;

use crate::base::cluster;
use crate::base::error_output;
use crate::tools::views::node_exec::{self, NodePod};

/// The daemon answers a change of mode within seconds; NVIDIA's driver can take half a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// The node, and where its pod of Divvy is.
#[derive(ClapArgs)]
struct On {
    /// Name of the node
    #[arg(value_name = "NODE")]
    node: String,
    /// Namespace in which Divvy is installed
    #[arg(long, value_name = "NAME", default_value = cluster::NAMESPACE)]
    divvy_namespace: String,
    /// Output format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    output: Option<Format>,
}

#[derive(ClapArgs)]
pub struct Gpu {
    #[command(flatten)]
    on: On,
    /// Index or UUID of the GPU on the node
    #[arg(value_name = "GPU")]
    gpu: String,
    /// shared (slices of any size), mig (instances, created as jobs need them), exclusive (whole GPUs only), unmanaged
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    mode: Mode,
    /// Prints what would happen and what blocks it, and changes nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(ClapArgs)]
pub struct Drain {
    #[command(flatten)]
    on: On,
    /// Indices or UUIDs of GPUs on the node
    #[arg(value_name = "GPU", required = true)]
    gpus: Vec<String>,
    /// Why, in a few words: shown with each pod that waits for these GPUs
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Return them to service at this time: 18:00, 2h, 2026-11-30 or 2026-11-30T09:00:00Z
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

#[derive(ClapArgs)]
pub struct Undrain {
    #[command(flatten)]
    on: On,
    /// Indices or UUIDs of GPUs on the node
    #[arg(value_name = "GPU", required = true)]
    gpus: Vec<String>,
}

#[derive(Subcommand)]
pub enum Mig {
    /// Lists the MIG instances of a node, their owners and their states
    Ls(Ls),
}

#[derive(ClapArgs)]
pub struct Ls {
    #[command(flatten)]
    on: On,
}

/// The modes of `divvy admin gpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Shared,
    Mig,
    Exclusive,
    Unmanaged,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Mig => "mig",
            Self::Exclusive => "exclusive",
            Self::Unmanaged => "unmanaged",
        }
    }
}

impl Gpu {
    pub fn is_json(&self) -> bool {
        self.on.is_json()
    }
}

impl Drain {
    pub fn is_json(&self) -> bool {
        self.on.is_json()
    }
}

impl Undrain {
    pub fn is_json(&self) -> bool {
        self.on.is_json()
    }
}

impl Mig {
    pub fn is_json(&self) -> bool {
        let Self::Ls(ls) = self;
        ls.on.is_json()
    }
}

impl On {
    fn is_json(&self) -> bool {
        self.output.is_some_and(Format::is_json)
    }

    /// The format, in the words of the node's command.
    fn format(&self) -> Option<String> {
        let format = self.output?.to_possible_value()?;
        Some(format!("--output={}", format.get_name()))
    }
}

/// Changes the mode of a GPU of a node.
///
/// # Errors
/// The node is unknown, its pod is not ready, or the caller may not run commands in it.
pub async fn gpu(args: &Gpu, client: &Client) -> Result<ExitCode, Error> {
    let mode = format!("--mode={}", args.mode.name());
    let mut words = vec!["admin", "gpu", mode.as_str()];
    if args.dry_run {
        words.push("--dry-run");
    }
    let format = args.on.format();
    words.extend(format.as_deref());
    // A name that begins with `-` is no flag.
    words.extend(["--", args.gpu.as_str()]);
    run(&args.on, &words, client).await
}

/// Takes GPUs of a node out of service. The node's driver then taints their devices.
///
/// # Errors
/// As [`gpu`].
pub async fn drain(args: &Drain, client: &Client) -> Result<ExitCode, Error> {
    let reason = format!("--reason={}", args.reason);
    let until = args.until.as_ref().map(|until| format!("--until={until}"));
    let format = args.on.format();
    let words = ["admin", "drain", reason.as_str()].into_iter();
    let words = words
        .chain(until.as_deref())
        .chain(format.as_deref())
        .chain(["--"]);
    let words = words.chain(args.gpus.iter().map(String::as_str));
    run(&args.on, &words.collect::<Vec<_>>(), client).await
}

/// Returns GPUs of a node to service.
///
/// # Errors
/// As [`gpu`].
pub async fn undrain(args: &Undrain, client: &Client) -> Result<ExitCode, Error> {
    let format = args.on.format();
    let words = ["admin", "undrain"].into_iter().chain(format.as_deref());
    let words = words
        .chain(["--"])
        .chain(args.gpus.iter().map(String::as_str));
    run(&args.on, &words.collect::<Vec<_>>(), client).await
}

/// Lists MIG instances of a node.
///
/// # Errors
/// As [`gpu`].
pub async fn mig(args: &Mig, client: &Client) -> Result<ExitCode, Error> {
    let Mig::Ls(ls) = args;
    let format = ls.on.format();
    let words = ["admin", "mig", "ls"].into_iter().chain(format.as_deref());
    run(&ls.on, &words.collect::<Vec<_>>(), client).await
}

async fn run(on: &On, words: &[&str], client: &Client) -> Result<ExitCode, Error> {
    let namespace = on.divvy_namespace.as_str();
    let pod = pod(on, client).await?;
    let ended = node_exec::run(client, namespace, &pod, words, PATIENCE).await?;
    error_output::print(&ended.stdout)?;
    // A closed stderr must not hide the exit code.
    let _ = io::stderr().write_all(ended.stderr.as_bytes());
    Ok(ExitCode::from(ended.code))
}

/// The pod of Divvy on the node.
async fn pod(on: &On, client: &Client) -> Result<NodePod, Error> {
    let (node, namespace) = (&on.node, &on.divvy_namespace);
    let mut pods = node_exec::node_pods(client, namespace).await?;
    match pods.remove(node) {
        Some(pod) if pod.is_ready => return Ok(pod),
        Some(pod) => {
            let message = format!("pod {} of node {node} is not ready", pod.pod);
            return Err(Error::new(ErrorCode::NoDaemon, message)
                .hint(format!("kubectl describe pod -n {namespace} {}", pod.pod)));
        }
        None => {}
    }
    let found = Api::<Node>::all(client.clone()).get_opt(node).await;
    match found {
        Ok(None) => {
            let message = format!("node {node:?} does not exist");
            Err(Error::new(ErrorCode::NotFound, message).hint("divvy-k8s admin nodes"))
        }
        // Without the right to read nodes, the pods are all that is known.
        Ok(Some(_)) | Err(_) => {
            let message = format!("node {node:?} has no pod of Divvy in namespace {namespace}");
            Err(Error::new(ErrorCode::NoDaemon, message).hint(
                "check node.nodeSelector of the chart, or name the namespace with --divvy-namespace",
            ))
        }
    }
}
