//! `divvy-k8s node`: the DRA driver on a node, between kubelet, the API server and the node's agent.
//!
//! ```text
//!   kubelet ── plugins_registry/gpu.divvy.dev@reg.sock ──► registration     the driver's name and socket
//!           ── plugins/gpu.divvy.dev/dra.sock ──┬──► plugin ──► agent       hold a claim, release a claim
//!                                               └──► health ◄── agent_poll ◄── agent, every few seconds
//!   API server ◄── slices::publish ◄────────────────────┘
//!              ◄── reconcile ──► agent                                      orphaned claims
//!              ◄── incidents ◄── agent                                      events on pods: bypasses, refused memory
//! ```
//! It has no state: the agent's journal holds the allocations, so it may be killed at any time. Allocations stay while
//! it is away; running pods have their limits from files that the agent made, and need neither.

pub(crate) mod agent;
mod agent_poll;
mod allocation;
pub(crate) mod claim_lock;
mod events;
mod health;
mod healthz;
mod incidents;
mod plugin;
pub mod probe;
pub mod protocol;
mod reconcile;
mod registration;
pub(crate) mod sockets;

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::service::Routes;

use crate::cluster::{self, ClusterError};
use crate::reservation;
use crate::slices::publish::Publisher;
use agent::Agent;
use agent_poll::Wellness;
use health::HealthService;
use plugin::{DraDriver, Kubelet};
use protocol::dra::dra_plugin_server::DraPluginServer;
use protocol::health::dra_resource_health_server::DraResourceHealthServer;
use protocol::registration::registration_server::RegistrationServer;
use registration::Registrar;
use sockets::SocketError;

pub use registration::{driver_socket, registration_socket};

/// Between two tries to be the only one.
const TRY_AGAIN: Duration = Duration::from_secs(1);

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
    /// Carrier mode: allocates sixteenths of the GPUs of reservation pods, instead of preparing claims
    #[arg(long)]
    carrier: bool,
    /// Address for GET /healthz, for a liveness probe
    #[arg(long, value_name = "ADDRESS:PORT")]
    health_listen: Option<SocketAddr>,
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot lock {path}")]
    Lock { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error("cannot listen for health probes on {address}")]
    Probes {
        address: SocketAddr,
        source: io::Error,
    },
}

/// Serves until SIGTERM or SIGINT: then no new calls are taken, the sockets are removed, and what is held stays held.
///
/// # Errors
/// No cluster is known, or kubelet's folders cannot be written.
pub async fn run(args: Args) -> Result<(), NodeError> {
    let client = cluster::client().await?;
    let (end, stop) = watch::channel(false);
    let mut told = ShutdownSignals::listen().map_err(NodeError::Signals)?;
    let driver = driver_socket(&args.kubelet_dir);
    let _alone = tokio::select! {
        alone = alone(&driver) => alone?,
        () = told.end() => return Ok(()),
    };
    if args.carrier {
        return carry(args, client, told).await;
    }
    let plugin = Arc::new(DraDriver::new(
        &args.node_name,
        client.clone(),
        Agent::new(&args.agent),
    ));
    let (lists, listed) = watch::channel(None);
    let (feels, wellness) = watch::channel(Wellness::new());
    tokio::spawn(agent_poll::run(Arc::clone(&plugin), lists, feels));
    tokio::spawn(Publisher::new(client, args.node_name.clone()).run(listed));
    tokio::spawn(reconcile::run(Arc::clone(&plugin), stop.clone()));
    tokio::spawn(incidents::run(Arc::clone(&plugin), stop.clone()));
    if let Some(address) = args.health_listen {
        let sockets = [driver.clone(), registration_socket(&args.kubelet_dir)];
        let listening = healthz::listen(address, sockets).await;
        listening.map_err(|source| NodeError::Probes { address, source })?;
    }
    tokio::spawn(async move {
        told.end().await;
        end.send_replace(true);
    });
    let teller = HealthService {
        node: args.node_name,
        wellness,
        stop: stop.clone(),
    };
    serve(&args.kubelet_dir, plugin, teller, stop).await?;
    Ok(())
}

/// Serves kubelet with sixteenths, in carrier mode.
async fn carry(
    args: Args,
    client: kube::Client,
    mut told: ShutdownSignals,
) -> Result<(), NodeError> {
    if let Some(address) = args.health_listen {
        let sockets = [reservation::plugin_socket(&args.kubelet_dir)];
        let listening = healthz::listen(address, sockets).await;
        listening.map_err(|source| NodeError::Probes { address, source })?;
    }
    let (end, stop) = watch::channel(false);
    tokio::spawn(async move {
        told.end().await;
        end.send_replace(true);
    });
    let agent = Agent::new(&args.agent);
    reservation::node::run(client, agent, args.node_name, &args.kubelet_dir, stop).await?;
    Ok(())
}

/// Both sockets: the driver's first, as kubelet calls it as soon as it knows of it, and it last, after kubelet has been told.
async fn serve(
    kubelet: &Path,
    plugin: Arc<DraDriver>,
    teller: HealthService,
    stop: watch::Receiver<bool>,
) -> Result<(), SocketError> {
    let driver = driver_socket(kubelet);
    let registrar = RegistrationServer::new(Registrar::new(&driver));
    let registration = registration_socket(kubelet);
    let routes = Routes::new(DraPluginServer::new(Kubelet(plugin)))
        .add_service(DraResourceHealthServer::new(teller));
    let (there, is_there) = watch::channel(false);
    let (gone, is_gone) = watch::channel(false);
    let serve_driver = sockets::serve(&driver, routes, || _ = there.send_replace(true), is_gone);
    let serve_registration = async {
        let mut is_there = is_there;
        let _ = is_there.wait_for(|there| *there).await;
        let served = sockets::serve(&registration, Routes::new(registrar), || {}, stop).await;
        gone.send_replace(true);
        served
    };
    tokio::try_join!(serve_driver, serve_registration).map(drop)
}

/// Waits until no other driver serves these sockets: one that is being replaced lives on for a moment.
async fn alone(driver: &Path) -> Result<File, NodeError> {
    let path = driver.with_file_name("lock");
    let failed = |source| NodeError::Lock {
        path: path.clone(),
        source,
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut told = false;
    loop {
        let file = File::create(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if !told {
            told = true;
            tracing::info!("another driver is still running; waiting until it ends");
        }
        sleep(TRY_AGAIN).await;
    }
}

/// Signals that ask for a clean end.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
