//! Views of the whole cluster: `gpus` and `ps`, in the words and columns of the node's commands.
//!
//! ```text
//!   API server ── ResourceSlices, claims, pods, events ──► cluster (pure) ──► gpus · pods ──► table, JSON
//!   node pods ── exec: `divvy top -1 -o json` ──► used memory, utilisation
//! ```
//! Objects of the API say what the scheduler has allocated. Only the nodes know what is in use, so their commands run in
//! the node pods, with the caller's right `create pods/exec` there. Without it the views show the first part, and say so.
//! The node pods have no port for this: on the pod network any pod could read it.

mod cluster;
mod fraction;
mod gpus;
pub mod node_exec;
mod objects;
mod ps;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use divvy_api::v1::{Error, ErrorCode};
use divvy_cli::args::{Format, Look};
use divvy_cli::output::{self, Stop, view};
use divvy_cli::render::{self, Item, View};
use divvy_cli::watch::{self, Shown};
use kube::Client;

use crate::base::{cluster as connection, error_output};

/// Where the nodes' figures come from.
#[derive(ClapArgs, Clone, Debug)]
pub struct Nodes {
    /// Namespace in which Divvy is installed
    #[arg(long, value_name = "NAME", default_value = connection::NAMESPACE)]
    pub divvy_namespace: String,
    /// Seconds that one node may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub timeout: u64,
}

impl Nodes {
    fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[derive(ClapArgs)]
pub struct GpusArgs {
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    look: Look,
}

#[derive(ClapArgs)]
pub struct PsArgs {
    #[command(flatten)]
    namespaces: Namespaces,
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    look: Look,
}

/// The namespaces of a list.
#[derive(ClapArgs, Clone, Debug)]
pub struct Namespaces {
    /// Namespace of the pods [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl Namespaces {
    /// One namespace, or `None` for all.
    fn chosen(&self, client: &Client) -> Option<String> {
        match &self.namespace {
            _ if self.all_namespaces => None,
            Some(name) => Some(name.clone()),
            None => Some(client.default_namespace().to_owned()),
        }
    }
}

impl GpusArgs {
    pub fn is_json(&self) -> bool {
        self.look.read.output.is_json()
    }
}

impl PsArgs {
    pub fn is_json(&self) -> bool {
        self.look.read.output.is_json()
    }
}

/// Lists every GPU of every node.
///
/// # Errors
/// The cluster does not respond, or denies the list of ResourceSlices.
pub async fn gpus(args: &GpusArgs, client: &Client) -> Result<ExitCode, Error> {
    let draw = async || {
        let found = objects::read(client, &objects::Wanted::all(&args.nodes)).await?;
        let rows = cluster::gpus(&found.require_slices()?);
        listed(&rows, args.look.read.output, gpus::table, found.notes)
    };
    show(&args.look, draw).await
}

/// Lists the pods with GPUs, and those that wait for one.
///
/// # Errors
/// The cluster does not respond, or denies the lists of pods and claims.
pub async fn ps(args: &PsArgs, client: &Client) -> Result<ExitCode, Error> {
    let namespace = args.namespaces.chosen(client);
    let draw = async || {
        let wanted = objects::Wanted::pods(&args.nodes, namespace.clone());
        let found = objects::read(client, &wanted).await?;
        let rows = cluster::pods(&found, view().now);
        listed(&rows, args.look.read.output, ps::table, found.notes)
    };
    show(&args.look, draw).await
}

/// The items in the form asked for.
fn listed<T: Item>(
    rows: &[T],
    format: Format,
    table: fn(&[T], View) -> String,
    notes: Vec<String>,
) -> Result<Shown, Error> {
    let text = render::list(rows, format, view(), table).map_err(|error| {
        let message = format!("cannot write the output as JSON: {error}");
        Error::new(ErrorCode::Internal, message)
    })?;
    let remarks = notes;
    Ok(Shown { text, remarks })
}

/// Prints what `draw` gives, once or until a signal.
async fn show(
    look: &Look,
    draw: impl AsyncFnMut() -> Result<Shown, Error>,
) -> Result<ExitCode, Error> {
    match look.watch {
        None => once(draw).await,
        Some(every) => repeat(every, look.read.output, draw).await,
    }
}

async fn once(mut draw: impl AsyncFnMut() -> Result<Shown, Error>) -> Result<ExitCode, Error> {
    let Shown { text, remarks } = draw().await?;
    match output::print(text) {
        // The reader of a pipe has all that it wants.
        Err(Stop::Hangup) => return Ok(ExitCode::SUCCESS),
        Err(Stop::Failed(error)) => return Err(error),
        Ok(()) => {}
    }
    remarks.iter().for_each(|remark| error_output::say(remark));
    Ok(ExitCode::SUCCESS)
}

async fn repeat(
    every: Duration,
    format: Format,
    mut draw: impl AsyncFnMut() -> Result<Shown, Error>,
) -> Result<ExitCode, Error> {
    let draw = async || Ok(draw().await?);
    match watch::show(Some(every), format, draw).await {
        Ok(code) => Ok(code),
        Err(Stop::Hangup) => Ok(ExitCode::SUCCESS),
        Err(Stop::Failed(error)) => Err(error),
    }
}
