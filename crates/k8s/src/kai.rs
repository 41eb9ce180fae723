//! `divvy-k8s kai`: a DRA driver that enforces the GPU fractions that KAI-Scheduler places on a node.
//!
//! ```text
//!   KAI's scheduler ── BindRequest: GPU group, portion ──► KAI's binder ── reservation pod: the group's GPU
//!                   └─ allocates a ticket of this driver to the pod's claim           │
//!   kubelet ── Prepare(claim) ──► prepare ──► placement (pure) ◄── pod, BindRequest, reservation pods
//!                                    └──────► agent: the slice on that GPU, and its CDI device
//! ```
//! A ticket is a device without a GPU: it makes kubelet call this driver before the pod's containers start, and nothing
//! else. KAI counts a claim or a ResourceSlice as GPUs if the name of its class or driver contains `gpu`
//! (`IsGPUDeviceClass` in pkg/common/resources/dra.go, KAI d5bc503), so these names do not, and KAI's accounting stays as
//! it is. The node's GPUs belong to NVIDIA's device plugin, which gives them to KAI's reservation pods.

mod placement;
mod prepare;
mod registration;
mod tickets;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::service::Routes;

use crate::base::cluster::{self, ClusterError};
use crate::node::agent::Agent;
use crate::node::protocol::dra::dra_plugin_server::DraPluginServer;
use crate::node::protocol::registration::registration_server::RegistrationServer;
use crate::node::sockets::{self, SocketError};
use prepare::{Driver, Kubelet};
use registration::Registrar;

pub use placement::{Misplaced, Placement, placement};

/// The name of the driver. KAI must not take it for a driver of GPUs.
pub const DRIVER: &str = "kai.divvy.dev";

/// Between two looks at the tickets and at claims that are gone. A fraction pod waits no longer for its ticket; the
/// webhook and watches do the rest, so this is a safety net.
const AGAIN: Duration = Duration::from_secs(15);

#[derive(clap::Args)]
pub struct Args {
    /// Name of this node in the cluster
    #[arg(long, value_name = "NAME")]
    node_name: String,
    /// Kubelet's directory, at the same path as on the host
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Socket of this node's `divvy daemon`
    #[arg(long, value_name = "SOCKET", default_value = "/run/divvy/divvy.sock")]
    agent: PathBuf,
    /// Namespace of KAI's reservation pods
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = "kai-resource-reservation"
    )]
    reservations: String,
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum KaiError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Serves kubelet until SIGTERM or SIGINT. Allocations stay: the agent's journal holds them.
///
/// # Errors
/// No cluster is known, or kubelet's folders cannot be written.
pub async fn run(args: Args) -> Result<(), KaiError> {
    let client = cluster::client().await?;
    let mut terminate = signal(SignalKind::terminate()).map_err(KaiError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(KaiError::Signals)?;
    let (end, stop) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        end.send_replace(true);
    });
    let driver = Arc::new(Driver::new(
        client.clone(),
        Agent::new(&args.agent),
        &args.node_name,
        &args.reservations,
    ));
    tokio::spawn(maintain(Arc::clone(&driver), client, args.node_name));
    let socket = args
        .kubelet_dir
        .join("plugins")
        .join(DRIVER)
        .join("dra.sock");
    let registry = args.kubelet_dir.join("plugins_registry");
    // As for the driver of claims: kubelet needs the `@` (see `node::registration`).
    let registry = registry.join(format!("{DRIVER}@reg.sock"));
    let registrar = RegistrationServer::new(Registrar::new(&socket));
    let plugin = Routes::new(DraPluginServer::new(Kubelet(driver)));
    let (there, mut is_there) = watch::channel(false);
    let (gone, is_gone) = watch::channel(false);
    let serve_driver = sockets::serve(&socket, plugin, || _ = there.send_replace(true), is_gone);
    let serve_registration = async {
        let _ = is_there.wait_for(|there| *there).await;
        let served = sockets::serve(&registry, Routes::new(registrar), || {}, stop).await;
        gone.send_replace(true);
        served
    };
    tokio::try_join!(serve_driver, serve_registration)?;
    Ok(())
}

/// Keeps the node's tickets in the cluster, and releases claims that kubelet has forgotten.
async fn maintain(driver: Arc<Driver>, client: kube::Client, node: String) {
    loop {
        if let Err(error) = tickets::publish(&client, &node).await {
            tracing::warn!(%node, "cannot publish tickets: {}", cluster::chain(&error));
        }
        driver.release_orphans().await;
        sleep(AGAIN).await;
    }
}
