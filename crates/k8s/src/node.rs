//! `divvy-k8s node`: the DRA driver on a node, between kubelet, the API server and the node's agent.
//!
//! ```text
//!   kubelet ── plugins_registry/gpu.divvy.dev-UID@reg.sock ──► registration     the driver's name and socket
//!           ── plugins/gpu.divvy.dev/dra-UID.sock ──┬──► plugin ──► agent       hold a claim, release a claim
//!                                                   └──► health ◄── agent_poll ◄── agent, every few seconds
//!   API server ◄── slices::publish ◄────────────────────────┘
//!              ◄── reconcile ──► agent                                          orphaned claims
//!              ◄── incidents ◄── agent                                          events on pods: bypasses, refused memory
//!   Prometheus ──► healthz ──► metrics ──► agent                                series with namespace, claim and pod
//! ```
//! It has no state: the agent's journal holds the allocations, so it may be killed at any time. Allocations stay while
//! it is away; running pods have their limits from files that the agent made, and need neither.
//!
//! In a rolling update the old and the new pod of a node serve kubelet side by side, each on sockets of its own
//! ([`Instance`]); [`leadership`] decides which of them writes.

pub(crate) mod agent;
mod agent_poll;
mod allocation;
pub(crate) mod calls;
pub(crate) mod claim_lock;
pub mod enforcer;
mod events;
mod health;
mod healthz;
mod incidents;
pub(crate) mod leadership;
pub(crate) mod metrics;
mod page;
mod plugin;
pub mod probe;
pub mod protocol;
mod reconcile;
mod registration;
pub mod reservation;
mod sharing;
pub(crate) mod sockets;

use std::fs::File;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::service::Routes;

use crate::base::claim::{DRIVER, TICKETS};
use crate::base::cluster::{self, ClusterError};
use crate::base::sharing::{CarrierNodes, Sharing};
use crate::base::slices::publish::Publisher;
use agent::Agent;
use agent_poll::Wellness;
use calls::CallCount;
use enforcer::Enforcer;
use health::HealthService;
use leadership::{Leadership, LockError};
use metrics::{NodePage, PodNames};
use plugin::{DraDriver, Kubelet};
use protocol::dra::dra_plugin_server::DraPluginServer;
use protocol::health::dra_resource_health_server::DraResourceHealthServer;
use protocol::registration::registration_server::RegistrationServer;
use registration::Registrar;
use reservation::ReservationNode;
use sharing::NodeSharing;
use sockets::SocketError;

pub(crate) use registration::{DRIVERS, is_registration_socket, suffix};
pub use registration::{Instance, NoInstance, driver_socket, registration_socket};

/// How long a driver that ends waits for its successor: the DaemonSet's controller creates a new pod at once, and its
/// containers start within seconds. Without a successor (an uninstall) the wait is for nothing.
const SUCCESSOR: Duration = Duration::from_secs(10);
/// How long a driver that ends finishes its calls. Kubelet gives up after 45 s (`defaultClientCallTimeout`). So longer
/// would finish calls that kubelet has forgotten.
pub(crate) const LAST_CALLS: Duration = Duration::from_secs(45);
/// How long the driver waits for the API server when it starts and ends: kubelet waits for the driver meanwhile. One
/// write takes some 10 ms.
const SUSPENDING: Duration = Duration::from_secs(2);
/// Between two looks for sockets of drivers that were killed. A dead socket only costs kubelet a failed call, so a
/// minute is soon enough.
const SWEEP: Duration = Duration::from_secs(60);

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
    /// The uid of its pod: the drivers of a rolling update then serve side by side, each on sockets of its own
    #[arg(long, value_name = "UID")]
    instance: Option<Instance>,
    /// Limits pods to the GPUs that other programs allocated: NVIDIA's DRA driver and device plugin, KAI or HAMi. Publishes
    /// no GPUs
    #[arg(long, conflicts_with = "carrier")]
    enforce: bool,
    /// With --enforce: the name of KAI's scheduler
    #[arg(long, value_name = "NAME", default_value = "kai-scheduler")]
    kai_scheduler: String,
    /// With --enforce: the namespace of KAI's reservation pods
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = "kai-resource-reservation"
    )]
    kai_reservations: String,
    /// Carrier mode: allocates sixteenths of the GPUs of reservation pods, instead of preparing claims
    #[arg(long)]
    carrier: bool,
    /// With --carrier: only if this node has all of these labels; otherwise it prepares claims
    #[arg(long, value_name = "KEY=VALUE,…", requires = "carrier")]
    carrier_nodes: Option<CarrierNodes>,
    /// Address for GET /healthz and /readyz, for probes
    #[arg(long, value_name = "ADDRESS:PORT")]
    health_listen: Option<SocketAddr>,
    /// Also serves GET /metrics there: this driver's and the daemon's, with the names of namespaces and pods
    #[arg(long, requires = "health_listen")]
    metrics: bool,
}

impl Args {
    /// The name of the DRA driver.
    fn driver(&self) -> &'static str {
        if self.enforce { TICKETS } else { DRIVER }
    }

    fn enforcer(&self, client: &kube::Client) -> Option<Enforcer> {
        let enforcer = || Enforcer {
            client: client.clone(),
            node: self.node_name.clone(),
            resources: self.kubelet_dir.join("pod-resources/kubelet.sock"),
            kai: self.kai_scheduler.clone(),
            reservations: self.kai_reservations.clone(),
        };
        self.enforce.then(enforcer)
    }

    /// The page of metrics, if it is served.
    fn page(&self, pods: Arc<PodNames>) -> Option<Arc<NodePage>> {
        let page = || NodePage::new(&self.node_name, &self.agent, pods);
        self.metrics.then(|| Arc::new(page()))
    }
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Lock(#[from] LockError),
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

/// Serves until SIGTERM or SIGINT: then a successor takes over, calls in progress end, the sockets are removed, and what
/// is held stays held.
///
/// # Errors
/// No cluster is known, or kubelet's folders cannot be written.
pub async fn run(args: Args) -> Result<(), NodeError> {
    let client = cluster::client().await?;
    let mut signals = ShutdownSignals::listen().map_err(NodeError::Signals)?;
    let kubelet = &args.kubelet_dir;
    let driver = driver_socket(kubelet, args.driver(), args.instance.as_ref());
    let leadership = Leadership::of(driver.parent().unwrap_or(kubelet));
    // Drivers without a name have the same sockets, so one serves at a time.
    let alone = match args.instance {
        Some(_) => None,
        None => tokio::select! {
            alone = leadership.take() => Some(alone?),
            () = signals.end() => return Ok(()),
        },
    };
    remove_stale(kubelet);
    let shutdown = Shutdown::new(args.instance.is_some(), leadership);
    let agent = Agent::new(&args.agent);
    let sharing = args.carrier_nodes.as_ref().map(|carriers| NodeSharing {
        client: client.clone(),
        agent: &agent,
        node: &args.node_name,
        carriers,
    });
    let mode = match (&sharing, args.carrier) {
        (_, false) => Sharing::Claims,
        (None, true) => Sharing::Carrier,
        (Some(sharing), true) => tokio::select! {
            mode = sharing.at_start() => mode,
            () = signals.end() => return Ok(()),
        },
    };
    let sharing = sharing.as_ref();
    match mode {
        Sharing::Claims => prepare(&args, client, signals, (shutdown, alone, sharing)).await,
        Sharing::Carrier => carry(&args, client, signals, (shutdown, alone, sharing)).await,
    }
}

/// Serves kubelet with claims: the DRA driver.
async fn prepare(
    args: &Args,
    client: kube::Client,
    signals: ShutdownSignals,
    (shutdown, alone, sharing): (Shutdown, Option<File>, Option<&NodeSharing<'_>>),
) -> Result<(), NodeError> {
    let kubelet = &args.kubelet_dir;
    let driver = driver_socket(kubelet, args.driver(), args.instance.as_ref());
    let plugin = Arc::new(DraDriver::new(
        &args.node_name,
        client.clone(),
        Agent::new(&args.agent),
        args.enforcer(&client),
    ));
    let (lists, listed) = watch::channel(None);
    let (feels, wellness) = watch::channel(Wellness::new());
    tokio::spawn(agent_poll::run(Arc::clone(&plugin), lists, feels));
    if let Some(address) = args.health_listen {
        let sockets = [
            driver.clone(),
            registration_socket(kubelet, args.driver(), args.instance.as_ref()),
        ];
        let page = args.page(Arc::clone(plugin.pods()));
        let registered = shutdown.registered.subscribe();
        let listening = healthz::listen(address, sockets, registered, page).await;
        listening.map_err(|source| NodeError::Probes { address, source })?;
    }
    let publisher = Publisher::new(client.clone(), args.node_name.clone());
    // Tickets have no taints: kubelet tries again until this driver is back.
    if !args.enforce && (alone.is_some() || shutdown.leadership.is_vacant()) {
        suspend(&publisher).await;
    }
    let (leader, stop) = (Arc::clone(&plugin), shutdown.stop.subscribe());
    let offers = Arc::clone(&plugin);
    let published = listed.clone();
    let kubelet_dir = kubelet.clone();
    let lead = async move {
        tokio::join!(
            async {
                match offers.enforcer() {
                    Some(enforcer) => enforcer.lead(offers.agent(), offers.events()).await,
                    None => publisher.run(published).await,
                }
            },
            reconcile::run(Arc::clone(&leader), stop.clone()),
            incidents::run(leader, stop),
            sweep(&kubelet_dir),
        );
    };
    let teller = HealthService {
        node: args.node_name.clone(),
        wellness,
        stop: shutdown.stop.subscribe(),
    };
    let served = serve(
        kubelet,
        (args.instance.as_ref(), &shutdown),
        Arc::clone(&plugin),
        teller,
    );
    let change = async {
        match sharing {
            Some(sharing) => sharing.changes(Sharing::Claims).await,
            None => pending().await,
        }
    };
    let last = Publisher::new(client.clone(), args.node_name.clone());
    let withdraw = async {
        let publisher = Publisher::new(client, args.node_name.clone());
        if let Err(error) = publisher.withdraw().await {
            tracing::warn!(
                "cannot delete the ResourceSlices of this node: {}",
                cluster::chain(&error)
            );
        }
        if let Some(sharing) = sharing {
            sharing.settle().await;
        }
    };
    let leave = async {
        if !args.enforce {
            suspend(&last).await;
        }
    };
    let ends = (change, withdraw, leave);
    let ended = shutdown.run((signals, alone), lead, ends, plugin.calls());
    tokio::try_join!(async { served.await.map_err(NodeError::from) }, ended)?;
    // Until here, so that the agent was polled for kubelet's sake after the end of the leadership.
    drop(listed);
    Ok(())
}

/// Serves kubelet with sixteenths, in carrier mode.
async fn carry(
    args: &Args,
    client: kube::Client,
    signals: ShutdownSignals,
    (shutdown, alone, sharing): (Shutdown, Option<File>, Option<&NodeSharing<'_>>),
) -> Result<(), NodeError> {
    let socket =
        reservation::registration::plugin_socket(&args.kubelet_dir, args.instance.as_ref());
    if let Some(address) = args.health_listen {
        let page = args.page(Arc::default());
        let registered = shutdown.registered.subscribe();
        let listening = healthz::listen(address, [socket.clone()], registered, page).await;
        listening.map_err(|source| NodeError::Probes { address, source })?;
    }
    let agent = Agent::new(&args.agent);
    let (part, shares) =
        ReservationNode::new(client, agent, args.node_name.clone(), &args.kubelet_dir);
    let part = Arc::new(part);
    let served = reservation::run(
        Arc::clone(&part),
        shares,
        &socket,
        shutdown.registered.clone(),
        shutdown.stop.subscribe(),
    );
    let kubelet = args.kubelet_dir.clone();
    let leader = Arc::clone(&part);
    let lead = async move {
        tokio::join!(leader.lead(), sweep(&kubelet));
    };
    let change = async {
        match sharing {
            Some(sharing) => sharing.changes(Sharing::Carrier).await,
            None => pending().await,
        }
    };
    let withdraw = async {
        if let Err(error) = part.withdraw().await {
            tracing::warn!("{error}");
        }
        if let Some(sharing) = sharing {
            sharing.settle().await;
        }
    };
    let ends = (change, withdraw, async {});
    let ended = shutdown.run((signals, alone), lead, ends, part.calls());
    tokio::try_join!(async { served.await.map_err(NodeError::from) }, ended)?;
    Ok(())
}

/// Taints the node's devices while kubelet knows no driver for them. The publication after the registration takes the
/// taint back.
async fn suspend(publisher: &Publisher) {
    match timeout(SUSPENDING, publisher.suspend()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(
                "cannot taint the node's devices: {}",
                cluster::chain(&error)
            );
        }
        Err(_) => {
            tracing::warn!("cannot taint the node's devices: the API server does not respond")
        }
    }
}

/// Removes, again and again, the sockets of drivers that were killed beside this one.
async fn sweep(kubelet: &Path) {
    loop {
        sleep(SWEEP).await;
        remove_stale(kubelet);
    }
}

/// Removes the sockets of drivers that were killed, of both modes.
fn remove_stale(kubelet: &Path) {
    sockets::remove_stale(
        &kubelet.join("plugins_registry"),
        registration::is_registration_socket,
    );
    for driver in DRIVERS {
        if let Some(folder) = driver_socket(kubelet, driver, None).parent() {
            sockets::remove_stale(folder, registration::is_driver_socket);
        }
    }
    if let Some(folder) = reservation::registration::plugin_socket(kubelet, None).parent() {
        sockets::remove_stale(folder, reservation::registration::is_plugin_socket);
    }
}

/// The life of a driver among those of its node: it leads once it is registered and no other one leads; told to end, it
/// leaves the lead to its successor, finishes its calls, and only then stops serving.
struct Shutdown {
    has_successor: bool,
    leadership: Leadership,
    registered: watch::Sender<bool>,
    stop: watch::Sender<bool>,
}

impl Shutdown {
    fn new(has_successor: bool, leadership: Leadership) -> Self {
        Self {
            has_successor,
            leadership,
            registered: watch::Sender::new(false),
            stop: watch::Sender::new(false),
        }
    }

    /// Runs `lead` while this driver leads; returns once it has stopped serving.
    ///
    /// When `change` ends, the node has to serve in the other mode: `withdraw` takes back what this one offers, and the
    /// program ends, so that kubelet starts it anew. `leave` comes where the driver ends without a successor.
    async fn run(
        &self,
        (mut signals, alone): (ShutdownSignals, Option<File>),
        lead: impl Future<Output = ()>,
        (change, withdraw, leave): (
            impl Future<Output = ()>,
            impl Future<Output = ()>,
            impl Future<Output = ()>,
        ),
        calls: &CallCount,
    ) -> Result<(), NodeError> {
        let (taken, mut is_taken) = watch::channel(false);
        let leads = async {
            let lock = match alone {
                Some(lock) => lock,
                None => {
                    let mut registered = self.registered.subscribe();
                    let _ = registered.wait_for(|registered| *registered).await;
                    self.leadership.take().await?
                }
            };
            taken.send_replace(true);
            lead.await;
            drop(lock);
            Ok(())
        };
        // Only the leader changes the mode: an earlier driver would publish again what this one withdraws.
        let change = async {
            let _ = is_taken.wait_for(|taken| *taken).await;
            change.await;
        };
        // The lead and its lock are dropped at the end of this.
        let changes = tokio::select! {
            led = leads => {
                led.map_err(NodeError::Lock)?;
                false
            }
            () = change => true,
            () = signals.end() => false,
        };
        if changes {
            withdraw.await;
        } else if !self.has_successor || !self.leadership.succeeded(SUCCESSOR).await? {
            tracing::info!("no other driver of this node took over");
            leave.await;
        }
        if !calls.finished(LAST_CALLS).await {
            tracing::warn!("calls of kubelet are still in progress; kubelet will repeat them");
        }
        self.stop.send_replace(true);
        Ok(())
    }
}

/// Both sockets: the driver's first, as kubelet calls it as soon as it knows of it, and it last, after kubelet has been told.
async fn serve(
    kubelet: &Path,
    (instance, shutdown): (Option<&Instance>, &Shutdown),
    plugin: Arc<DraDriver>,
    teller: HealthService,
) -> Result<(), SocketError> {
    let driver = driver_socket(kubelet, plugin.name(), instance);
    let registrar = Registrar::new(plugin.name(), &driver, shutdown.registered.clone());
    let registrar = RegistrationServer::new(registrar);
    let registration = registration_socket(kubelet, plugin.name(), instance);
    let stop = shutdown.stop.subscribe();
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
