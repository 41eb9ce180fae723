//! Kubelet's calls for the claims of KAI's pods.

use std::sync::Arc;

use divvy_api::v1::{self, HeldClaim, JobState};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde_json::Value;
use tonic::{Request, Response, Status};

use super::DRIVER;
use super::placement::{Misplaced, placement};
use crate::base::cluster;
use crate::node::agent::Agent;
use crate::node::claim_lock::KeyedMutex;
use crate::node::protocol::dra::dra_plugin_server::DraPlugin;
use crate::node::protocol::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};

/// The driver on a node.
pub(super) struct Driver {
    client: Client,
    agent: Agent,
    node: String,
    /// Namespace of the reservation pods.
    reservations: String,
    turns: KeyedMutex,
}

/// Why a claim is not prepared; kubelet shows it in an event of the pod and tries again.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("claim {0} does not exist, or another one has its name")]
    NoClaim(String),
    #[error("the claim has no ticket of {DRIVER} on this node")]
    NoTicket,
    #[error("the claim must be reserved for one pod, but is for {0}; use a ResourceClaimTemplate")]
    Pods(usize),
    #[error("pod {0} does not exist, or another one has its name")]
    NoPod(String),
    #[error("cannot read {what}: {}", cluster::error_message(.error))]
    Unread {
        what: &'static str,
        error: kube::Error,
    },
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    #[error("{}", .0.message)]
    Agent(#[from] v1::Error),
}

impl Driver {
    pub fn new(client: Client, agent: Agent, node: &str, reservations: &str) -> Self {
        Self {
            client,
            agent,
            node: node.to_owned(),
            reservations: reservations.to_owned(),
            turns: KeyedMutex::default(),
        }
    }

    async fn prepare(&self, asked: &Claim) -> Result<Vec<Device>, PrepareError> {
        let _turn = self.turns.lock(&asked.uid).await;
        let called = format!("{}/{}", asked.namespace, asked.name);
        let claim = self.claim(&asked.namespace, &asked.name).await;
        let claim = claim.map_err(unread("the claim"))?;
        let claim = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&asked.uid));
        let claim = claim.ok_or(PrepareError::NoClaim(called))?;
        let tickets: Vec<_> = results(&claim)
            .filter(|result| result.driver == DRIVER && result.pool == self.node)
            .collect();
        if tickets.is_empty() {
            return Err(PrepareError::NoTicket);
        }
        // KAI's objects may be gone when kubelet asks again; what is held stays as it is.
        let held = self.agent.held().await?;
        let held = held.into_iter().find(|held| held.uid == asked.uid);
        let cdi = match held.filter(|held| held.state == JobState::Running) {
            Some(held) => held.cdi_device,
            None => self.hold(asked, &claim).await?,
        };
        let device = |ticket: &DeviceRequestAllocationResult| Device {
            request_names: vec![ticket.request.clone()],
            pool_name: ticket.pool.clone(),
            device_name: ticket.device.clone(),
            cdi_device_ids: vec![cdi.clone()],
            share_id: None,
        };
        Ok(tickets.into_iter().map(device).collect())
    }

    async fn hold(&self, asked: &Claim, claim: &ResourceClaim) -> Result<String, PrepareError> {
        let status = claim.status.as_ref();
        let reserved = status.and_then(|status| status.reserved_for.as_deref());
        let [consumer] = reserved.unwrap_or_default() else {
            return Err(PrepareError::Pods(reserved.map_or(0, <[_]>::len)));
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &asked.namespace);
        let pod = pods.get_opt(&consumer.name).await;
        let pod = pod.map_err(unread("the pod"))?;
        let pod = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid));
        let pod = pod.ok_or_else(|| PrepareError::NoPod(consumer.name.clone()))?;
        let bind = self.bind_request(&asked.namespace, &consumer.name, &consumer.uid);
        let bind = bind.await;
        let bind = bind.map_err(unread("KAI's BindRequest"))?;
        let reservations: Api<Pod> = Api::namespaced(self.client.clone(), &self.reservations);
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let reservations = reservations.list(&of_node).await;
        let reservations = reservations
            .map_err(unread("KAI's reservation pods"))?
            .items;
        let gpus = self.agent.gpus().await?.into_iter();
        let gpus = gpus.filter(|gpu| gpu.mode == "shared");
        let gpus = gpus
            .map(|gpu| (gpu.uuid, gpu.memory_usable_bytes))
            .collect();
        let placed = placement(&pod, bind.as_ref(), &reservations, &self.node, &gpus)?;
        let body = v1::Claim {
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            pods: vec![consumer.uid.clone()],
            devices: placed.devices,
            ..v1::Claim::default()
        };
        let held = self.agent.hold(&asked.uid, &body).await?;
        tracing::info!(
            "claim {}/{} is allocated to job {}: {}",
            asked.namespace,
            asked.name,
            held.job,
            held.cdi_device
        );
        Ok(held.cdi_device)
    }

    /// The `spec` of the pod's BindRequest, which has the pod's name; `None` once KAI has deleted it.
    async fn bind_request(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
    ) -> Result<Option<Value>, kube::Error> {
        let kind = GroupVersionKind::gvk("scheduling.run.ai", "v1alpha2", "BindRequest");
        let resource = ApiResource::from_gvk(&kind);
        let requests: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = requests.get_opt(pod).await?;
        let is_its = |request: &DynamicObject| {
            let mut owners = request.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.uid == uid)
        };
        let found = found.filter(is_its);
        Ok(found.map(|mut request| request.data["spec"].take()))
    }

    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaim>, kube::Error> {
        Api::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
    }

    async fn unprepare(&self, asked: &Claim) -> Result<(), PrepareError> {
        let _turn = self.turns.lock(&asked.uid).await;
        self.agent.release(&asked.uid).await?;
        tracing::info!("claim {}/{} is released", asked.namespace, asked.name);
        Ok(())
    }

    /// Releases held claims that no longer exist and that no process uses: kubelet will not unprepare them.
    pub async fn release_orphans(&self) {
        let held = match self.agent.held_now().await {
            Ok(held) => held,
            Err(error) => {
                tracing::debug!("cannot list the held claims: {error}");
                return;
            }
        };
        let is_idle = |held: &&HeldClaim| held.state == JobState::Running && held.processes == 0;
        for held in held.iter().filter(is_idle) {
            let _turn = self.turns.lock(&held.uid).await;
            let now = self.claim(&held.namespace, &held.name).await;
            let is_gone = now.is_ok_and(|now| {
                now.is_none_or(|now| now.metadata.uid.as_ref() != Some(&held.uid))
            });
            if is_gone && let Err(error) = self.agent.release(&held.uid).await {
                tracing::warn!(
                    "cannot release claim {}/{}: {error}",
                    held.namespace,
                    held.name
                );
            }
        }
    }
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim
        .status
        .as_ref()
        .and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices
        .and_then(|devices| devices.results.as_ref())
        .into_iter()
        .flatten()
}

fn unread(what: &'static str) -> impl FnOnce(kube::Error) -> PrepareError {
    move |error| PrepareError::Unread { what, error }
}

/// Kubelet's calls.
pub(super) struct Kubelet(pub Arc<Driver>);

#[tonic::async_trait]
impl DraPlugin for Kubelet {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut answer = NodePrepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            // In a task of its own: a call that kubelet gives up is dropped where it stands.
            let (driver, uid) = (Arc::clone(&self.0), claim.uid.clone());
            let prepared = tokio::spawn(async move { driver.prepare(&claim).await }).await;
            let response = match prepared {
                Ok(Ok(devices)) => NodePrepareResourceResponse {
                    devices,
                    error: String::new(),
                },
                Ok(Err(error)) => refused(&uid, &error.to_string()),
                Err(error) => refused(&uid, &error.to_string()),
            };
            answer.claims.insert(uid, response);
        }
        Ok(Response::new(answer))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut answer = NodeUnprepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let (driver, uid) = (Arc::clone(&self.0), claim.uid.clone());
            let released = tokio::spawn(async move { driver.unprepare(&claim).await }).await;
            let error = match released {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            answer
                .claims
                .insert(uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(answer))
    }
}

fn refused(uid: &str, error: &str) -> NodePrepareResourceResponse {
    tracing::warn!("claim {uid} is not prepared: {error}");
    NodePrepareResourceResponse {
        devices: Vec::new(),
        error: error.to_owned(),
    }
}
