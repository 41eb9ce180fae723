//! `divvy-k8s uninstall`: what the chart's hooks run before and after `helm uninstall`, so that nothing of Divvy is left.
//!
//! ```text
//!   pre-delete    prepare ── pods use GPUs? refuse with their names ──► idle MIG instances ──► labels of nodes
//!   Helm          deletes controller, node pods, webhook; claim templates and classes go with the webhook (owner)
//!   post-delete   finish ── a short-lived pod on each node: node ──► the resource of carrier mode in the nodes' status
//! ```
//! Each step may be repeated at any time. A node that is not ready is skipped and named, so it cannot hold up the rest.

mod cluster;
mod files;
mod in_use;
mod on_nodes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use divvy_api::v1::Error;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};

use crate::base::error_output;
use on_nodes::{OnNodes, Task};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Before the uninstall: refuses while pods use GPUs, then removes idle MIG instances and the labels of nodes
    Prepare(Prepare),
    /// After the uninstall: removes Divvy's files from the nodes, and its resource from their status
    Finish(Finish),
    /// On a node: removes Divvy's files
    Node(files::Args),
}

#[derive(clap::Args)]
struct Prepare {
    /// Uninstalls although pods use GPUs
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    nodes: Nodes,
}

#[derive(clap::Args)]
struct Finish {
    /// Keeps the daemon's state: /var/lib/divvy
    #[arg(long)]
    keep_state: bool,
    /// kubelet's directory on the nodes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    #[command(flatten)]
    nodes: Nodes,
}

/// The pods that work on the nodes.
#[derive(clap::Args)]
struct Nodes {
    /// Image with divvy and divvy-k8s
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// When kubelet pulls the image
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pull_policy: String,
    /// Secret for the image's registry
    #[arg(long = "pull-secret", value_name = "NAME")]
    pull_secrets: Vec<String>,
    /// Namespace of the pods
    #[arg(short, long, value_name = "NAME", default_value = crate::base::cluster::NAMESPACE)]
    namespace: String,
    /// Only nodes with these labels: KEY=VALUE,…
    #[arg(long, value_name = "LABELS", default_value = "")]
    selector: String,
    /// Seconds for all nodes
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// # Errors
/// Pods use GPUs, the cluster does not respond or denies a request, or files cannot be removed.
pub async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.verb {
        Verb::Prepare(prepare) => {
            let client = error_output::client().await?;
            let users = in_use::pods(&client).await?;
            match (users.is_empty(), prepare.force) {
                (false, false) => return Err(in_use::refusal(&users)),
                (false, true) => print(&format!(
                    "{}; uninstalling nevertheless (--force)",
                    in_use::list(&users)
                ))?,
                (true, _) => print("no pod uses a GPU of Divvy")?,
            }
            let nodes = nodes(&client, &prepare.nodes).await?;
            let report = on(&client, &prepare.nodes, Task::CollectInstances, &nodes).await?;
            print(&report)?;
            print(&cluster::remove_labels(&client, &nodes).await?)?;
        }
        Verb::Finish(finish) => {
            let client = error_output::client().await?;
            let nodes = nodes(&client, &finish.nodes).await?;
            let task = Task::RemoveFiles {
                keep_state: finish.keep_state,
                kubelet: finish.kubelet_dir.clone(),
            };
            print(&on(&client, &finish.nodes, task, &nodes).await?)?;
            print(&cluster::remove_resource(&client, &nodes).await?)?;
        }
        Verb::Node(node) => print(&files::run(node).await?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<(), Error> {
    error_output::print(&format!("{text}\n"))
}

async fn nodes(client: &Client, asked: &Nodes) -> Result<Vec<Node>, Error> {
    let listed = Api::<Node>::all(client.clone())
        .list(&ListParams::default().labels(&asked.selector))
        .await;
    let mut nodes = listed
        .map_err(|error| error_output::of_kube(error, "list nodes"))?
        .items;
    nodes.retain(|node| {
        let labels = node.metadata.labels.as_ref();
        let system = labels.and_then(|labels| labels.get("kubernetes.io/os"));
        system.is_none_or(|system| system == "linux")
    });
    Ok(nodes)
}

async fn on(client: &Client, asked: &Nodes, task: Task, nodes: &[Node]) -> Result<String, Error> {
    let work = OnNodes {
        client: client.clone(),
        namespace: &asked.namespace,
        image: &asked.image,
        pull_policy: &asked.pull_policy,
        pull_secrets: &asked.pull_secrets,
        time: Duration::from_secs(asked.seconds),
        task,
    };
    Ok(work.run(nodes).await?.to_string())
}
