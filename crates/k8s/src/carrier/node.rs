//! The node part in carrier mode: what kubelet and the agent say, to the shares; what shares say, to kubelet and the agent.
//!
//! It has no state that counts. Which carrier has which GPU and which pod has which sixteenths is kubelet's word
//! (pod-resources); what is held is the agent's; who is to have what is the shares'. Each look puts the three together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use divvy_api::v1::{Claim, ClaimDevice, ErrorCode, Gpu, HeldClaim};
use divvy_core::units::Bytes;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tonic::service::Routes;
use tonic::transport::Endpoint;

use super::plugin::Plugin;
use super::protocol::plugin::device_plugin_server::DevicePluginServer;
use super::protocol::resources::pod_resources_lister_client::PodResourcesListerClient;
use super::protocol::resources::{ListPodResourcesRequest, ListPodResourcesResponse};
use super::seat::{self, Ids, PREFIX, Refused, Seat, Shown};
use super::share::{GpuShare, GpuShareSpec, GpuShareStatus, Held, name};
use super::units::{Unit, memory, of_gpu};
use super::{NAMESPACE, RESOURCE, register};
use crate::ask::GPU;
use crate::cluster;
use crate::node::agent::Agent;
use crate::node::sockets::{self, SocketError};

/// Between two looks: a carrier that has started is to be used soon, and a look is three local calls.
const LOOK: Duration = Duration::from_secs(2);
/// How long kubelet is kept waiting for an assignment that is on its way, or for the agent to be done with who was there before.
/// It waits without end, but for one pod at a time.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(250);

/// What the node part works with.
pub struct Part {
    node: String,
    client: Client,
    agent: Agent,
    resources: PathBuf,
    shares: Store<GpuShare>,
    offers: watch::Sender<Vec<Unit>>,
    /// Claims are made and released by one at a time.
    turn: tokio::sync::Mutex<()>,
    again: Notify,
}

/// What there is, by who knows.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub gpus: Vec<Gpu>,
    /// Of carrier mode.
    pub claims: Vec<HeldClaim>,
    /// Pods with sixteenths.
    pub shown: Vec<Shown>,
    /// Which pod of ours has which GPU, by UUID.
    pub carriers: BTreeMap<String, String>,
}

/// Serves kubelet until told to stop. What is held stays held.
///
/// # Errors
/// Kubelet's folders cannot be written.
pub(crate) async fn run(
    client: Client,
    agent: Agent,
    node: String,
    kubelet: &Path,
    stop: watch::Receiver<bool>,
) -> Result<(), SocketError> {
    let (shares, writer) = reflector::store();
    let part = Arc::new(Part {
        node,
        agent,
        resources: kubelet.join("pod-resources/kubelet.sock"),
        shares,
        offers: watch::Sender::new(Vec::new()),
        turn: tokio::sync::Mutex::new(()),
        again: Notify::new(),
        client: client.clone(),
    });
    let api = Api::<GpuShare>::namespaced(client, NAMESPACE);
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .reflect(writer);
    let told = Arc::clone(&part);
    tokio::spawn(async move {
        use futures_util::StreamExt as _;
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(_) => told.again.notify_one(),
                Err(error) => tracing::warn!("shares are listed again: {}", cluster::chain(&error)),
            }
        }
    });
    tokio::spawn(watch_over(Arc::clone(&part)));
    let (made, makes) = watch::channel(0_u64);
    tokio::spawn(register::keep(kubelet.to_owned(), makes));
    let routes = Routes::new(DevicePluginServer::new(Plugin(part)));
    let there = || made.send_modify(|count| *count += 1);
    sockets::serve(&register::plugin_socket(kubelet), routes, there, stop).await
}

async fn watch_over(part: Arc<Part>) {
    // An error says that the watch was dropped, and it never is.
    let _ = part.shares.wait_until_ready().await;
    let mut told = String::new();
    loop {
        match part.look().await {
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

impl Part {
    /// The sixteenths that kubelet may give out, as they change.
    pub fn offered(&self) -> watch::Receiver<Vec<Unit>> {
        self.offers.subscribe()
    }

    /// As [`seat::prefer`].
    pub async fn prefer(&self, available: &[String], must: &[String], size: usize) -> Vec<String> {
        let Ok(seen) = self.see().await else {
            return Vec::new();
        };
        let seats = self.seats();
        seat::prefer(
            available,
            must,
            size,
            &seat::open(&seats, &held(&seen), &seen.shown),
        )
    }

    /// Holds a part of a GPU for whoever these ids are for; answers its CDI device.
    ///
    /// # Errors
    /// They are for nobody, or the agent cannot hold it.
    pub async fn give(&self, ids: &[String]) -> Result<String, String> {
        let ids = Ids::read(ids).map_err(|error| error.to_string())?;
        let until = Instant::now() + PATIENCE;
        loop {
            let turn = self.turn.lock().await;
            let done = self.try_to_give(&ids).await;
            drop(turn);
            match done {
                Ok(device) => {
                    self.again.notify_one();
                    return Ok(device);
                }
                Err(Trouble { passes: true, .. }) if Instant::now() < until => sleep(PAUSE).await,
                Err(trouble) => return Err(trouble.text),
            }
        }
    }

    async fn try_to_give(&self, ids: &Ids) -> Result<String, Trouble> {
        let claim = ids.claim();
        let mut seen = self.see().await.map_err(Trouble::passing)?;
        if seen.claims.iter().any(|held| held.uid == claim) {
            // Kubelet gives ids out again only when whoever had them is over.
            self.release(&claim).await?;
            seen.claims.retain(|held| held.uid != claim);
        }
        let open = seat::open(&self.seats(), &held(&seen), &seen.shown);
        seat::choose(ids, &open).map_err(|error| Trouble {
            // The assignment may be on its way here.
            passes: matches!(error, Refused::NoneOpen { .. }),
            text: error.to_string(),
        })?;
        self.hold(ids, &seen).await
    }

    /// Has what these ids stand for held, which a reboot may have ended: kubelet does not give the same ids out anew.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub async fn ensure(&self, ids: &[String]) -> Result<(), String> {
        let read = Ids::read(ids).map_err(|error| error.to_string())?;
        let turn = self.turn.lock().await;
        let seen = self.see().await?;
        if seen.claims.iter().any(|held| held.uid == read.claim()) {
            return Ok(());
        }
        let seats = self.seats();
        let has = |pod: &&Shown| {
            let has = |id: &String| pod.units.iter().any(|unit| unit.to_string() == *id);
            ids.iter().all(has)
        };
        let pod = seen.shown.iter().find(has);
        let assigned = pod.is_some_and(|pod| {
            let same = |seat: &&Seat| seat.namespace == pod.namespace && seat.name == pod.name;
            seats.iter().find(same).is_some()
        });
        if assigned {
            let held = self.hold(&read, &seen).await;
            return held.map(drop).map_err(|trouble| trouble.text);
        }
        drop(turn);
        self.give(ids).await.map(drop)
    }

    async fn hold(&self, ids: &Ids, seen: &Seen) -> Result<String, Trouble> {
        let gpu = seen.gpus.iter().find(|gpu| gpu.uuid == ids.gpu);
        let gpu =
            gpu.ok_or_else(|| Trouble::passing(format!("the agent knows no GPU {}", ids.gpu)))?;
        let uid = ids.claim();
        let limit = memory(ids.units(), Bytes::new(gpu.memory_usable_bytes));
        let claim = Claim {
            namespace: NAMESPACE.to_owned(),
            name: uid.clone(),
            // Whose it is kubelet says once it has answered.
            pods: Vec::new(),
            devices: vec![ClaimDevice::part(&ids.gpu, limit.get())],
            compute: None,
        };
        let held = self.agent.hold(&uid, &claim).await.map_err(Trouble::of)?;
        Ok(held.cdi_device)
    }

    async fn release(&self, claim: &str) -> Result<(), Trouble> {
        self.agent.release(claim).await.map_err(Trouble::of)
    }

    fn mine(&self) -> Vec<Arc<GpuShare>> {
        let mut mine = self.shares.state();
        mine.retain(|share| share.spec.node == self.node);
        mine.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        mine
    }

    fn seats(&self) -> Vec<Seat> {
        self.mine().iter().flat_map(|share| seats(share)).collect()
    }

    async fn see(&self) -> Result<Seen, String> {
        let said = |error: divvy_api::v1::Error| format!("the node's agent: {}", error.message);
        let gpus = self.agent.gpus().await.map_err(said)?;
        let mut claims = self.agent.held().await.map_err(said)?;
        claims.retain(|claim| claim.uid.starts_with(PREFIX));
        let listed = list(&self.resources).await;
        let listed = listed.map_err(|error| format!("kubelet's pod-resources: {error}"))?;
        let (shown, carriers) = of_kubelet(&listed);
        Ok(Seen {
            gpus,
            claims,
            shown,
            carriers,
        })
    }

    /// Lets go of what nobody has, and tells kubelet and the shares what is so.
    async fn look(&self) -> Result<(), String> {
        let turn = self.turn.lock().await;
        let mut seen = self.see().await?;
        let seats = self.seats();
        for claim in seat::leftovers(&seats, &held(&seen), &seen.shown) {
            tracing::info!("{claim} is nobody's any more");
            self.release(&claim).await.map_err(|trouble| trouble.text)?;
            seen.claims.retain(|held| held.uid != claim);
        }
        self.correct(&seats, &mut seen).await?;
        drop(turn);
        let offers = offers(&seen);
        self.offers.send_if_modified(|offered| {
            let changed = *offered != offers;
            *offered = offers;
            changed
        });
        self.tell(&statuses(&seen, &seats)).await
    }

    /// Writes down at the agent for whom each claim turned out to be.
    async fn correct(&self, seats: &[Seat], seen: &mut Seen) -> Result<(), String> {
        let all = held(seen);
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
                compute: None,
            };
            let held = self.agent.hold(&claim.uid, &body).await;
            *claim = held.map_err(|error| format!("the node's agent: {}", error.message))?;
        }
        Ok(())
    }

    async fn tell(
        &self,
        statuses: &BTreeMap<String, (String, GpuShareStatus)>,
    ) -> Result<(), String> {
        let api = Api::<GpuShare>::namespaced(self.client.clone(), NAMESPACE);
        let said = |error: kube::Error| format!("shares: {}", cluster::said(&error));
        let all = self.shares.state();
        let find = |name: &str| {
            all.iter()
                .find(|share| share.metadata.name.as_deref() == Some(name))
        };
        for (name, (gpu, status)) in statuses {
            match find(name) {
                None => {
                    let spec = GpuShareSpec {
                        node: self.node.clone(),
                        gpu: gpu.clone(),
                        assignments: Vec::new(),
                        draining: false,
                    };
                    match api
                        .create(&PostParams::default(), &GpuShare::new(name, spec))
                        .await
                    {
                        Err(error) if !cluster::is_there_already(&error) => {
                            return Err(said(error));
                        }
                        // Its status comes with the next look, when it is seen.
                        _ => continue,
                    }
                }
                Some(share) if share.spec.node != self.node => {
                    return Err(format!(
                        "{name} is said to be in the node {}: is its record of another time?",
                        share.spec.node
                    ));
                }
                Some(share) if share.status.as_ref() == Some(status) => {}
                Some(_) => {
                    let patch = Patch::Merge(json!({ "status": status }));
                    let done = api
                        .patch_status(name, &PatchParams::default(), &patch)
                        .await;
                    done.map_err(said)?;
                }
            }
        }
        for share in self.mine() {
            let name = share.metadata.name.clone().unwrap_or_default();
            if !statuses.contains_key(&name) && share.spec.assignments.is_empty() {
                let as_seen = DeleteParams {
                    preconditions: Some(Preconditions {
                        resource_version: share.metadata.resource_version.clone(),
                        uid: share.metadata.uid.clone(),
                    }),
                    ..DeleteParams::default()
                };
                match api.delete(&name, &as_seen).await {
                    Err(error) if !cluster::is_missing(&error) && !cluster::is_conflict(&error) => {
                        return Err(said(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// What keeps ids from being given out.
struct Trouble {
    text: String,
    /// It may be gone in a moment.
    passes: bool,
}

impl Trouble {
    fn passing(text: String) -> Self {
        Self { text, passes: true }
    }

    fn of(error: divvy_api::v1::Error) -> Self {
        let passes = [
            ErrorCode::Conflict,
            ErrorCode::WouldWait,
            ErrorCode::NoDaemon,
        ];
        Self {
            passes: passes.contains(&error.code),
            text: format!("the node's agent: {}", error.message),
        }
    }
}

fn seats(share: &GpuShare) -> Vec<Seat> {
    let assignments = share.spec.assignments.iter();
    assignments
        .map(|one| Seat {
            gpu: share.spec.gpu.clone(),
            uid: one.uid.clone(),
            namespace: one.namespace.clone(),
            name: one.name.clone(),
            units: u8::try_from(one.units).unwrap_or(0),
        })
        .collect()
}

fn held(seen: &Seen) -> Vec<seat::Held> {
    let now = Timestamp::now();
    let claims = seen.claims.iter();
    claims
        .map(|claim| {
            let device = claim.devices.first();
            let age = now.duration_since(claim.since);
            seat::Held {
                claim: claim.uid.clone(),
                gpu: device.map(|device| device.gpu.clone()).unwrap_or_default(),
                pod: claim.pods.first().cloned(),
                processes: claim.processes,
                // A clock that was set back makes nothing old.
                age: Duration::try_from(age).unwrap_or_default(),
            }
        })
        .collect()
}

async fn list(socket: &Path) -> Result<ListPodResourcesResponse, String> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let endpoint = endpoint.map_err(|error| cluster::chain(&error))?;
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| cluster::chain(&error))?;
    let answer = PodResourcesListerClient::new(channel)
        .list(ListPodResourcesRequest {})
        .await;
    Ok(answer.map_err(|error| cluster::chain(&error))?.into_inner())
}

/// Pods with sixteenths, and the GPUs of our carriers.
fn of_kubelet(listed: &ListPodResourcesResponse) -> (Vec<Shown>, BTreeMap<String, String>) {
    let (mut shown, mut carriers) = (Vec::new(), BTreeMap::new());
    for pod in &listed.pod_resources {
        let devices = |resource: &str| -> Vec<String> {
            let containers = pod
                .containers
                .iter()
                .flat_map(|container| &container.devices);
            let these = containers.filter(|devices| devices.resource_name == resource);
            these
                .flat_map(|devices| devices.device_ids.clone())
                .collect()
        };
        let units: BTreeSet<Unit> = devices(RESOURCE)
            .iter()
            .filter_map(|id| id.parse().ok())
            .collect();
        if !units.is_empty() {
            shown.push(Shown {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                units,
            });
        }
        if pod.namespace == NAMESPACE {
            // `GPU-…::3` is a replica, which others have as well: such a GPU is not ours.
            let whole = devices(GPU).into_iter().filter(|id| !id.contains("::"));
            carriers.extend(whole.map(|gpu| (gpu, pod.name.clone())));
        }
    }
    (shown, carriers)
}

/// Sixteenths of GPUs that a carrier holds, or that somebody still has parts of.
fn offers(seen: &Seen) -> Vec<Unit> {
    let ours = seen
        .gpus
        .iter()
        .filter(|gpu| gpu.lost.is_none() && is_shared(gpu));
    let carried = ours.filter(|gpu| {
        let of_it = |claim: &HeldClaim| claim.devices.iter().any(|device| device.gpu == gpu.uuid);
        seen.carriers.contains_key(&gpu.uuid) || seen.claims.iter().any(of_it)
    });
    carried.flat_map(|gpu| of_gpu(&gpu.uuid)).collect()
}

/// A GPU that the agent gives out in parts; others are none of carrier mode's.
fn is_shared(gpu: &Gpu) -> bool {
    gpu.mode == "shared"
}

/// What each share is to say, by its name, with its GPU's UUID.
fn statuses(seen: &Seen, seats: &[Seat]) -> BTreeMap<String, (String, GpuShareStatus)> {
    let all = held(seen);
    let counted: BTreeMap<String, String> = seat::counted(seats, &all, &seen.shown)
        .into_iter()
        .collect();
    let ours = seen
        .gpus
        .iter()
        .filter(|gpu| is_shared(gpu) || gpu.lost.is_some());
    ours.map(|gpu| {
        let of_it = all.iter().filter(|held| held.gpu == gpu.uuid);
        let held = of_it.map(|held| Held {
            claim: held.claim.clone(),
            uid: counted.get(&held.claim).cloned().unwrap_or_default(),
            units: i64::from(seat::units_of(&held.claim)),
        });
        let status = GpuShareStatus {
            memory_bytes: i64::try_from(gpu.memory_usable_bytes).unwrap_or(i64::MAX),
            carrier: seen.carriers.get(&gpu.uuid).cloned(),
            held: held.collect(),
        };
        (name(&gpu.uuid), (gpu.uuid.clone(), status))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::protocol::resources::{ContainerDevices, ContainerResources, PodResources};

    fn pod(namespace: &str, name: &str, resource: &str, ids: &[&str]) -> PodResources {
        let devices = ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        PodResources {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![ContainerResources {
                name: "c".to_owned(),
                devices: vec![devices],
            }],
        }
    }

    #[test]
    fn a_carrier_is_a_pod_of_ours_with_a_whole_gpu_and_no_replica() {
        let listed = ListPodResourcesResponse {
            pod_resources: vec![
                pod(NAMESPACE, "carrier-1", "nvidia.com/gpu", &["GPU-a"]),
                pod(NAMESPACE, "carrier-2", "nvidia.com/gpu", &["GPU-b::3"]),
                pod("team", "whole", "nvidia.com/gpu", &["GPU-c"]),
                pod("team", "train", RESOURCE, &["GPU-a/0", "GPU-a/1"]),
                pod("team", "other", "nvidia.com/mig-1g.10gb", &["MIG-1"]),
            ],
        };
        let (shown, carriers) = of_kubelet(&listed);
        assert_eq!(
            carriers,
            BTreeMap::from([("GPU-a".to_owned(), "carrier-1".to_owned())])
        );
        assert_eq!(
            (shown.len(), shown[0].name.as_str(), shown[0].units.len()),
            (1, "train", 2)
        );
    }
}
