//! The enforcer: the driver of tickets, which limits pods to the GPUs that other programs allocated.
//!
//! ```text
//!   admission policy ── gives a pod with a GPU a ticket, in place of NVIDIA's claims in its containers
//!   scheduler ── allocates the ticket, and the GPUs: by NVIDIA's driver, NVIDIA's plugin, KAI or HAMi
//!   kubelet ── Prepare(ticket) ──► facts: the pod, its claims, kubelet's devices, annotations
//!                                    └──► grant (pure): parts of GPUs ──► agent: the slice and its CDI device
//! ```
//! A ticket is a device without a GPU: it makes kubelet call this driver before the pod's containers start. Allocations
//! are in objects that exist before that, so it does not matter which driver kubelet calls first.

mod grant;
mod hami;
mod kai;
mod nvidia;
mod report;
mod tickets;

use std::collections::BTreeMap;
use std::path::PathBuf;

use divvy_api::v1;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use super::agent::Agent;
use super::events::Events;
use super::reservation::observation;
use crate::base::claim::NVIDIA_DRIVER;
use crate::base::cluster;
use grant::{Facts, Grant, Refused, TICKET};

/// Finds what other programs allocated to the pods of a node.
pub struct Enforcer {
    pub client: Client,
    pub node: String,
    /// Kubelet's socket of pod-resources.
    pub resources: PathBuf,
    /// The name of KAI's scheduler.
    pub kai: String,
    /// The namespace of KAI's reservation pods.
    pub reservations: String,
}

/// Why a pod cannot be limited.
#[derive(Debug, thiserror::Error)]
pub enum EnforceError {
    #[error("the claim must be reserved for one pod, but is for {0}; use a ResourceClaimTemplate")]
    Pods(usize),
    #[error("pod {0} does not exist, or another one has its name")]
    NoPod(String),
    #[error("claim {0} of the pod does not exist")]
    NoClaim(String),
    #[error("the claim {0} is not the pod's {TICKET}: a pod has one ticket, and so one limit")]
    Second(String),
    #[error("cannot read {what}: {}", cluster::error_message(.error))]
    Unread {
        what: &'static str,
        error: kube::Error,
    },
    #[error("cannot read kubelet's pod-resources: {0}")]
    Kubelet(String),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("{}", .0.message)]
    Agent(#[from] v1::Error),
}

impl Enforcer {
    /// Keeps the node's tickets in the cluster, and reports pods without a limit.
    pub(super) async fn lead(&self, agent: &Agent, events: &Events) {
        tokio::join!(
            tickets::run(self.client.clone(), &self.node),
            report::run(self, agent, events)
        );
    }

    /// What the pod of this ticket gets.
    ///
    /// # Errors
    /// The pod cannot be limited, or its facts cannot be read.
    pub(super) async fn grant(
        &self,
        ticket: &ResourceClaim,
        agent: &Agent,
    ) -> Result<Grant, EnforceError> {
        let status = ticket.status.as_ref();
        let reserved = status.and_then(|status| status.reserved_for.as_deref());
        let [consumer] = reserved.unwrap_or_default() else {
            return Err(EnforceError::Pods(reserved.map_or(0, <[_]>::len)));
        };
        let namespace = ticket.metadata.namespace.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods
            .get_opt(&consumer.name)
            .await
            .map_err(unread("the pod"))?;
        let pod = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid));
        let pod = pod.ok_or_else(|| EnforceError::NoPod(consumer.name.clone()))?;
        // With a second ticket, the same allocation would be a second limit.
        let name = ticket.metadata.name.as_deref().unwrap_or_default();
        if claim_name(&pod, TICKET) != Some(name) {
            return Err(EnforceError::Second(name.to_owned()));
        }
        Ok(grant::of(&self.facts(pod, usable(agent).await?).await?)?)
    }

    /// The facts about a pod of this node, as far as it has to do with them; `gpus`: the [`usable`] bytes.
    async fn facts(&self, pod: Pod, gpus: BTreeMap<String, u64>) -> Result<Facts, EnforceError> {
        let mut facts = Facts {
            node: self.node.clone(),
            kai: self.kai.clone(),
            gpus,
            pod,
            ..Facts::default()
        };
        if kai::places(&facts.pod, &facts.kai) {
            facts.bind = self.bind_request(&facts.pod).await?;
            facts.reservations = self.reservations().await?;
        }
        (facts.claims, facts.extended) = self.claims(&facts.pod).await?;
        let all = facts.claims.values().chain(&facts.extended);
        if all.flat_map(nvidia::results).next().is_some() {
            let fields = format!("spec.driver={},spec.nodeName={}", NVIDIA_DRIVER, self.node);
            let slices: Api<ResourceSlice> = Api::all(self.client.clone());
            let listed = slices.list(&ListParams::default().fields(&fields)).await;
            facts.slices = listed.map_err(unread("NVIDIA's ResourceSlices"))?.items;
        }
        if nvidia::requested(&facts).is_some() {
            (facts.ids, facts.allocatable) = self.ids(&facts.pod).await?;
        }
        Ok(facts)
    }

    /// The pod's claims other than its ticket, by their names in the pod; and the one for extended resources.
    async fn claims(
        &self,
        pod: &Pod,
    ) -> Result<(BTreeMap<String, ResourceClaim>, Option<ResourceClaim>), EnforceError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let read = async |name: &str| {
            let found = claims
                .get_opt(name)
                .await
                .map_err(unread("a claim of the pod"))?;
            found.ok_or_else(|| EnforceError::NoClaim(name.to_owned()))
        };
        let status = pod.status.as_ref();
        let mut found = BTreeMap::new();
        let own = pod
            .spec
            .iter()
            .flat_map(|spec| spec.resource_claims.iter().flatten());
        for claim in own.filter(|claim| claim.name != TICKET) {
            if let Some(name) = claim_name(pod, &claim.name) {
                found.insert(claim.name.clone(), read(name).await?);
            }
        }
        let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
        let extended = match extended {
            Some(extended) => Some(read(&extended.resource_claim_name).await?),
            None => None,
        };
        Ok((found, extended))
    }

    /// The pod's ids of devices of NVIDIA's plugin, and all that kubelet may give out.
    async fn ids(&self, pod: &Pod) -> Result<(Vec<String>, Vec<String>), EnforceError> {
        let listed = observation::list(&self.resources)
            .await
            .map_err(EnforceError::Kubelet)?;
        let all = observation::allocatable(&self.resources)
            .await
            .map_err(EnforceError::Kubelet)?;
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let pods = listed.pod_resources.into_iter();
        let own = pods.filter(|one| {
            Some(&one.namespace) == namespace.as_ref() && Some(&one.name) == name.as_ref()
        });
        let own = own
            .flat_map(|pod| pod.containers)
            .flat_map(|container| container.devices);
        let own = own.filter(|one| one.resource_name.starts_with(nvidia::RESOURCES));
        let all = all.devices.into_iter();
        let all = all.filter(|one| one.resource_name.starts_with(nvidia::RESOURCES));
        Ok((
            own.flat_map(|one| one.device_ids).collect(),
            all.flat_map(|one| one.device_ids).collect(),
        ))
    }

    /// The `spec` of the pod's BindRequest, which has the pod's name; `None` once KAI has deleted it.
    async fn bind_request(&self, pod: &Pod) -> Result<Option<Value>, EnforceError> {
        let kind = GroupVersionKind::gvk("scheduling.run.ai", "v1alpha2", "BindRequest");
        let resource = ApiResource::from_gvk(&kind);
        let metadata = &pod.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let requests: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = requests
            .get_opt(metadata.name.as_deref().unwrap_or_default())
            .await;
        let is_its = |request: &DynamicObject| {
            let mut owners = request.metadata.owner_references.iter().flatten();
            owners.any(|owner| Some(&owner.uid) == metadata.uid.as_ref())
        };
        let found = found.map_err(unread("KAI's BindRequest"))?.filter(is_its);
        Ok(found.map(|mut request| request.data["spec"].take()))
    }

    /// KAI's reservation pods on this node.
    async fn reservations(&self) -> Result<Vec<Pod>, EnforceError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.reservations);
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let listed = pods.list(&of_node).await;
        Ok(listed.map_err(unread("KAI's reservation pods"))?.items)
    }
}

/// Usable bytes of the daemon's GPUs, by UUID.
async fn usable(agent: &Agent) -> Result<BTreeMap<String, u64>, v1::Error> {
    let gpus = agent.gpus().await?.into_iter();
    Ok(gpus
        .map(|gpu| (gpu.uuid, gpu.memory_usable_bytes))
        .collect())
}

/// The name of the claim that has this name in the pod.
fn claim_name<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    let mut claims = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten());
    let claim = claims.find(|claim| claim.name == name)?;
    let status = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let mut made = status.filter(|made| made.name == name);
    let made = made
        .next()
        .and_then(|made| made.resource_claim_name.as_deref());
    claim.resource_claim_name.as_deref().or(made)
}

fn unread(what: &'static str) -> impl FnOnce(kube::Error) -> EnforceError {
    move |error| EnforceError::Unread { what, error }
}

#[cfg(test)]
mod tests;
