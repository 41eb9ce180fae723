//! The node part of carrier mode: it reports kubelet's and the agent's state to the GpuShares, and applies their
//! assignments.
//!
//! It has no state of its own. Kubelet knows which reservation pod has which GPU and which pod has which sixteenths
//! (pod-resources); the agent knows the held claims; the shares hold the assignments. Each reconcile combines the
//! three.

pub(in crate::node) mod observation;
mod plugin;
pub mod registration;
mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_api::v1::{Claim, ClaimDevice, ErrorCode};
use divvy_core::units::Bytes;
use kube::Client;
use kube::api::Api;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tonic::service::Routes;

use crate::base::cluster;
use crate::carrier::NAMESPACE;
use crate::carrier::assignment::{self, AllocateError, AssignedPod, Ids, PREFIX, PodDevices};
use crate::carrier::protocol::plugin::device_plugin_server::DevicePluginServer;
use crate::carrier::share::GpuShare;
use crate::carrier::units::{Unit, memory};
use crate::node::agent::Agent;
use crate::node::calls::CallCount;
use crate::node::sockets::{self, SocketError};
use observation::{NodeObservation, agent_claims, assigned_pods, list, of_kubelet};
use plugin::DevicePluginService;
use report::{offers, statuses};

/// Between two looks: a carrier that has started is to be used soon, and a look is three local calls. So a pod waits
/// two seconds at most for its carrier.
const LOOK: Duration = Duration::from_secs(2);
/// How long kubelet is kept waiting for a pending assignment, or for the agent to release the previous holder. Kubelet
/// waits without a bound, but for one pod at a time.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(250);

/// The handles of the node part.
pub struct ReservationNode {
    node: String,
    client: Client,
    agent: Agent,
    resources: PathBuf,
    shares: Store<GpuShare>,
    offers: watch::Sender<Vec<Unit>>,
    /// The GPUs were listed once. Kubelet would take an empty list for a node without GPUs.
    seen: watch::Sender<bool>,
    /// The reasons to register at kubelet, counted.
    registrations: watch::Sender<u64>,
    calls: CallCount,
    leads: AtomicBool,
    /// Claims are made and released by one at a time.
    turn: tokio::sync::Mutex<()>,
    again: Notify,
}

/// Serves kubelet until told to stop. What is held stays held.
///
/// # Errors
/// Kubelet's folders cannot be written.
pub(crate) async fn run(
    part: Arc<ReservationNode>,
    shares: Writer<GpuShare>,
    socket: &Path,
    registered: watch::Sender<bool>,
    stop: watch::Receiver<bool>,
) -> Result<(), SocketError> {
    let api = Api::<GpuShare>::namespaced(part.client.clone(), NAMESPACE);
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .reflect(shares);
    let told = Arc::clone(&part);
    tokio::spawn(async move {
        use futures_util::StreamExt as _;
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(_) => told.again.notify_one(),
                Err(error) => tracing::warn!(
                    "the watch of GpuShares failed and restarts: {}",
                    cluster::chain(&error)
                ),
            }
        }
    });
    tokio::spawn(watch_over(Arc::clone(&part)));
    let (socket, reasons) = (socket.to_owned(), part.registrations.subscribe());
    let keep = registration::keep(socket.clone(), reasons, registered);
    let (mut seen, mut ends) = (part.seen.subscribe(), stop.clone());
    tokio::spawn(async move {
        let registers = async {
            let _ = seen.wait_for(|seen| *seen).await;
            keep.await;
        };
        tokio::select! {
            () = registers => {}
            _ = ends.wait_for(|stop| *stop) => {}
        }
    });
    let again = Arc::clone(&part);
    let routes = Routes::new(DevicePluginServer::new(DevicePluginService(part)));
    sockets::serve(&socket, routes, || again.register_again(), stop).await
}

async fn watch_over(part: Arc<ReservationNode>) {
    // An error says that the watch was dropped, and it never is.
    let _ = part.shares.wait_until_ready().await;
    let mut told = String::new();
    loop {
        match part.reconcile().await {
            Ok(()) => told.clear(),
            Err(error) if error != told => {
                tracing::warn!("{error}");
                told = error;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            () = part.again.notified() => sleep(PAUSE).await,
        }
    }
}

impl ReservationNode {
    /// A part that does nothing before [`run`], and what fills its shares.
    pub fn new(
        client: Client,
        agent: Agent,
        node: String,
        kubelet: &Path,
    ) -> (Self, Writer<GpuShare>) {
        let (shares, writer) = reflector::store();
        let part = Self {
            node,
            agent,
            resources: kubelet.join("pod-resources/kubelet.sock"),
            shares,
            offers: watch::Sender::new(Vec::new()),
            seen: watch::Sender::new(false),
            registrations: watch::Sender::new(0),
            calls: CallCount::default(),
            leads: AtomicBool::new(false),
            turn: tokio::sync::Mutex::new(()),
            again: Notify::new(),
            client,
        };
        (part, writer)
    }

    /// Leads the node: releases unowned claims and writes the shares, until it is dropped.
    pub async fn lead(&self) {
        struct Lead<'a>(&'a AtomicBool);
        impl Drop for Lead<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        self.leads.store(true, Ordering::Relaxed);
        let _lead = Lead(&self.leads);
        // Kubelet calls the plugin that registered last, which the one before may be after kubelet's restart.
        self.register_again();
        self.again.notify_one();
        std::future::pending().await
    }

    /// Takes back what this node offers: kubelet gets no more sixteenths, and the controller no more records.
    ///
    /// # Errors
    /// The API server does not respond, or denies it.
    pub async fn withdraw(&self) -> Result<(), String> {
        self.offers.send_replace(Vec::new());
        self.publish_statuses(&BTreeMap::new()).await
    }

    /// Registers at kubelet once more.
    pub fn register_again(&self) {
        self.registrations.send_modify(|count| *count += 1);
    }

    /// The calls of kubelet that are in progress.
    pub fn calls(&self) -> &CallCount {
        &self.calls
    }

    /// The sixteenths that kubelet may give out, as they change.
    pub fn offered(&self) -> watch::Receiver<Vec<Unit>> {
        self.offers.subscribe()
    }

    /// As [`assignment::prefer`].
    pub async fn prefer(&self, available: &[String], must: &[String], size: usize) -> Vec<String> {
        let Ok(seen) = self.observe().await else {
            return Vec::new();
        };
        let seats = self.seats();
        assignment::prefer(
            available,
            must,
            size,
            &assignment::unfilled_assignments(&seats, &agent_claims(&seen), &seen.shown),
        )
    }

    /// Holds a part of a GPU for the owner of these ids; returns its CDI device.
    ///
    /// # Errors
    /// The ids have no assignment, or the agent cannot hold it.
    pub async fn allocate(&self, ids: &[String]) -> Result<String, String> {
        let ids = Ids::read(ids).map_err(|error| error.to_string())?;
        let until = Instant::now() + PATIENCE;
        loop {
            let turn = self.turn.lock().await;
            let done = self.try_allocate(&ids).await;
            drop(turn);
            match done {
                Ok(device) => {
                    self.again.notify_one();
                    return Ok(device);
                }
                Err(AllocationFailure { passes: true, .. }) if Instant::now() < until => {
                    sleep(PAUSE).await
                }
                Err(trouble) => return Err(trouble.text),
            }
        }
    }

    async fn try_allocate(&self, ids: &Ids) -> Result<String, AllocationFailure> {
        let claim = ids.claim();
        let mut seen = self.observe().await.map_err(AllocationFailure::passing)?;
        if seen.claims.iter().any(|held| held.uid == claim) {
            // Kubelet allocates ids again only when their previous pod is over.
            self.release(&claim).await?;
            seen.claims.retain(|held| held.uid != claim);
        }
        let open =
            assignment::unfilled_assignments(&self.seats(), &agent_claims(&seen), &seen.shown);
        assignment::choose(ids, &open).map_err(|error| AllocationFailure {
            // The assignment may be on its way here.
            passes: matches!(error, AllocateError::NoneOpen { .. }),
            text: error.to_string(),
        })?;
        self.hold(ids, &seen).await
    }

    /// Has what these ids stand for held, which a reboot may have ended: kubelet does not give the same ids out anew.
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub async fn ensure(&self, ids: &[String]) -> Result<(), String> {
        let read = Ids::read(ids).map_err(|error| error.to_string())?;
        let turn = self.turn.lock().await;
        let seen = self.observe().await?;
        if seen.claims.iter().any(|held| held.uid == read.claim()) {
            return Ok(());
        }
        let seats = self.seats();
        let has = |pod: &&PodDevices| {
            let has = |id: &String| pod.units.iter().any(|unit| unit.to_string() == *id);
            ids.iter().all(has)
        };
        let pod = seen.shown.iter().find(has);
        let assigned = pod.is_some_and(|pod| {
            let same =
                |seat: &&AssignedPod| seat.namespace == pod.namespace && seat.name == pod.name;
            seats.iter().find(same).is_some()
        });
        if assigned {
            let held = self.hold(&read, &seen).await;
            return held.map(drop).map_err(|trouble| trouble.text);
        }
        drop(turn);
        self.allocate(ids).await.map(drop)
    }

    async fn hold(&self, ids: &Ids, seen: &NodeObservation) -> Result<String, AllocationFailure> {
        let gpu = seen.gpus.iter().find(|gpu| gpu.uuid == ids.gpu);
        let gpu = gpu.ok_or_else(|| {
            AllocationFailure::passing(format!("the daemon has no GPU {}", ids.gpu))
        })?;
        let uid = ids.claim();
        let limit = memory(ids.units(), Bytes::new(gpu.memory_usable_bytes));
        let claim = Claim {
            namespace: NAMESPACE.to_owned(),
            name: uid.clone(),
            // Whose it is kubelet says once it has answered.
            pods: Vec::new(),
            devices: vec![ClaimDevice::part(&ids.gpu, limit.get())],
            ..Claim::default()
        };
        let held = self
            .agent
            .hold(&uid, &claim)
            .await
            .map_err(AllocationFailure::of)?;
        Ok(held.cdi_device)
    }

    async fn release(&self, claim: &str) -> Result<(), AllocationFailure> {
        self.agent
            .release(claim)
            .await
            .map_err(AllocationFailure::of)
    }

    fn mine(&self) -> Vec<Arc<GpuShare>> {
        let mut mine = self.shares.state();
        mine.retain(|share| share.spec.node == self.node);
        mine.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        mine
    }

    fn seats(&self) -> Vec<AssignedPod> {
        self.mine()
            .iter()
            .flat_map(|share| assigned_pods(share))
            .collect()
    }

    async fn observe(&self) -> Result<NodeObservation, String> {
        let said = |error: divvy_api::v1::Error| format!("the node's daemon: {}", error.message);
        let gpus = self.agent.gpus().await.map_err(said)?;
        let mut claims = self.agent.held().await.map_err(said)?;
        claims.retain(|claim| claim.uid.starts_with(PREFIX));
        let listed = list(&self.resources).await;
        let listed =
            listed.map_err(|error| format!("cannot read kubelet's pod-resources: {error}"))?;
        let (shown, carriers) = of_kubelet(&listed);
        Ok(NodeObservation {
            gpus,
            claims,
            shown,
            carriers,
        })
    }

    /// Releases unowned claims, and reports the state to kubelet and the shares.
    async fn reconcile(&self) -> Result<(), String> {
        let turn = self.turn.lock().await;
        let mut seen = self.observe().await?;
        self.offer(&seen);
        if !self.leads.load(Ordering::Relaxed) {
            return Ok(());
        }
        let seats = self.seats();
        for claim in assignment::orphaned_claims(&seats, &agent_claims(&seen), &seen.shown) {
            tracing::info!("{claim}: releasing, no pod uses it");
            self.release(&claim).await.map_err(|trouble| trouble.text)?;
            seen.claims.retain(|held| held.uid != claim);
        }
        self.record_holders(&seats, &mut seen).await?;
        drop(turn);
        self.publish_statuses(&statuses(&seen, &seats)).await
    }

    fn offer(&self, seen: &NodeObservation) {
        let offers = offers(seen);
        self.offers.send_if_modified(|offered| {
            let changed = *offered != offers;
            *offered = offers;
            changed
        });
        self.seen.send_replace(true);
    }

    /// Records at the agent which pod each claim belongs to.
    async fn record_holders(
        &self,
        seats: &[AssignedPod],
        seen: &mut NodeObservation,
    ) -> Result<(), String> {
        let all = agent_claims(seen);
        for (claim, held) in seen.claims.iter_mut().zip(all) {
            let Some(uid) = held.holder(seats, &seen.shown) else {
                continue;
            };
            if held.pod.as_ref() == Some(&uid) {
                continue;
            }
            let body = Claim {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                pods: vec![uid],
                devices: claim.devices.clone(),
                ..Claim::default()
            };
            let held = self.agent.hold(&claim.uid, &body).await;
            *claim = held.map_err(|error| format!("the node's daemon: {}", error.message))?;
        }
        Ok(())
    }
}

/// The reason why ids are not allocated.
struct AllocationFailure {
    text: String,
    /// It may be gone in a moment.
    passes: bool,
}

impl AllocationFailure {
    fn passing(text: String) -> Self {
        Self { text, passes: true }
    }

    fn of(error: divvy_api::v1::Error) -> Self {
        let passes = [
            ErrorCode::Conflict,
            ErrorCode::WouldWait,
            ErrorCode::NoDaemon,
            ErrorCode::Unresponsive,
        ];
        Self {
            passes: passes.contains(&error.code),
            text: format!("the node's daemon: {}", error.message),
        }
    }
}
