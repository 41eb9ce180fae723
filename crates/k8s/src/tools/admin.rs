//! `divvy-k8s admin`: sets the nodes whose GPUs may be split into MIG instances, lists the devices of each node, and runs
//! the node's commands for GPU modes.
//!
//! A role is a label, so these commands keep no state and are idempotent. `divvy-k8s node` creates the MIG instances.

pub mod gpu;
pub mod nodes;
pub mod roles;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use divvy_api::v1::Error;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};

use crate::base::cluster::is_missing;
use crate::base::error_output::{self, Format};
use crate::carrier::NAMESPACE;
use crate::carrier::share::GpuShare;

#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Gives nodes a role
    Set(Role),
    /// Takes a role from nodes
    Remove(Role),
    /// Lists the nodes with their role, GPUs and published devices
    Nodes(Read),
    /// Changes the mode of a GPU on a node
    Gpu(gpu::Gpu),
    /// Takes a GPU of a node out of service: pods there go on, and no further ones come
    Drain(gpu::Drain),
    /// Returns a GPU of a node to service
    Undrain(gpu::Undrain),
    /// MIG instances of a node
    #[command(subcommand)]
    Mig(gpu::Mig),
}

#[derive(ClapArgs)]
struct Role {
    #[command(subcommand)]
    what: AdminCommand,
}

#[derive(Subcommand)]
enum AdminCommand {
    /// The use of a node's GPUs: fractions only, or MIG instances too
    NodeRole(NodeRole),
}

#[derive(ClapArgs)]
struct NodeRole {
    /// Divvy may split the GPUs of these nodes into the MIG instances that pods request
    #[arg(long, required = true)]
    dynamic_mig_enabled: bool,
    /// With `remove`: also removes other products' labels that give this role
    #[arg(long)]
    all_labels: bool,
    /// Names of the nodes
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(ClapArgs)]
struct Read {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Args {
    pub fn is_json(&self) -> bool {
        let output = match &self.verb {
            Verb::Set(role) | Verb::Remove(role) => {
                let AdminCommand::NodeRole(role) = &role.what;
                role.output
            }
            Verb::Nodes(read) => read.output,
            Verb::Gpu(args) => return args.is_json(),
            Verb::Drain(args) => return args.is_json(),
            Verb::Undrain(args) => return args.is_json(),
            Verb::Mig(args) => return args.is_json(),
        };
        output.is_json()
    }
}

/// # Errors
/// The cluster does not respond, denies the request, or has no such node. Then nothing was changed.
pub async fn run(args: &Args, client: &Client) -> Result<ExitCode, Error> {
    match &args.verb {
        Verb::Set(role) => change(role, true, client).await?,
        Verb::Remove(role) => change(role, false, client).await?,
        Verb::Nodes(read) => {
            let slices = Api::<ResourceSlice>::all(client.clone())
                .list(&ListParams::default())
                .await
                .map_err(|error| error_output::of_kube(error, "list ResourceSlices"))?;
            let shares = Api::<GpuShare>::namespaced(client.clone(), NAMESPACE)
                .list(&ListParams::default())
                .await;
            let shares = match shares {
                Ok(shares) => shares.items,
                // Carrier mode is not installed.
                Err(error) if is_missing(&error) => Vec::new(),
                Err(error) => return Err(error_output::of_kube(error, "list GpuShares")),
            };
            let rows = nodes::rows(&all(client).await?, &slices.items, &shares);
            error_output::print(&nodes::render(rows, read.output)?)?;
        }
        Verb::Gpu(args) => return gpu::gpu(args, client).await,
        Verb::Drain(args) => return gpu::drain(args, client).await,
        Verb::Undrain(args) => return gpu::undrain(args, client).await,
        Verb::Mig(args) => return gpu::mig(args, client).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn change(role: &Role, set: bool, client: &Client) -> Result<(), Error> {
    let AdminCommand::NodeRole(asked) = &role.what;
    let wish = match (set, asked.all_labels) {
        (true, false) => roles::RoleRequest::Set,
        (true, true) => {
            return Err(error_output::usage(
                "--all-labels works only with `remove`",
                "leave it out: `set` writes only Divvy's own label",
            ));
        }
        (false, all_labels) => roles::RoleRequest::Remove { all_labels },
    };
    let changes = roles::changes(&all(client).await?, &asked.nodes, wish)?;
    let api = Api::<Node>::all(client.clone());
    for change in &changes {
        if let Some(patch) = &change.patch {
            api.patch(&change.node, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map_err(|error| {
                    error_output::of_kube(error, &format!("label the node {}", change.node))
                })?;
        }
    }
    error_output::print(&roles::render(&changes, asked.output)?)
}

async fn all(client: &Client) -> Result<Vec<Node>, Error> {
    let nodes = Api::<Node>::all(client.clone())
        .list(&ListParams::default())
        .await
        .map_err(|error| error_output::of_kube(error, "list nodes"))?;
    Ok(nodes.items)
}
