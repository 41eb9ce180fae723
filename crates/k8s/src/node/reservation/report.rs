//! The report of a node in carrier mode: devices for kubelet, state for the GpuShares.

use std::collections::BTreeMap;

use divvy_api::v1::{Gpu, HeldClaim};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::ReservationNode;
use super::observation::{NodeObservation, agent_claims};
use crate::base::cluster;
use crate::carrier::NAMESPACE;
use crate::carrier::assignment::{self, AssignedPod};
use crate::carrier::share::{GpuShare, GpuShareSpec, GpuShareStatus, Held, name};
use crate::carrier::units::{Unit, of_gpu};

/// Sixteenths of GPUs that a reservation pod holds, or that a pod still has parts of.
pub(super) fn offers(seen: &NodeObservation) -> Vec<Unit> {
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

/// The wanted status of each share, by its name, with its GPU's UUID.
pub(super) fn statuses(
    seen: &NodeObservation,
    seats: &[AssignedPod],
) -> BTreeMap<String, (String, GpuShareStatus)> {
    let all = agent_claims(seen);
    let counted: BTreeMap<String, String> = assignment::attribute_claims(seats, &all, &seen.shown)
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
            units: i64::from(assignment::units_of(&held.claim)),
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

impl ReservationNode {
    /// Writes what is so into the shares, makes those that are missing, and removes those of GPUs that are gone.
    pub(super) async fn publish_statuses(
        &self,
        statuses: &BTreeMap<String, (String, GpuShareStatus)>,
    ) -> Result<(), String> {
        let api = Api::<GpuShare>::namespaced(self.client.clone(), NAMESPACE);
        let said = |error: kube::Error| {
            format!(
                "cannot update GpuShares: {}",
                cluster::error_message(&error)
            )
        };
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
                        Err(error) if !cluster::is_already_exists(&error) => {
                            return Err(said(error));
                        }
                        // Its status comes with the next look, when it is seen.
                        _ => continue,
                    }
                }
                Some(share) if share.spec.node != self.node => {
                    return Err(format!(
                        "GpuShare {name} belongs to node {}; if the GPU was moved from there, delete the GpuShare",
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
