//! What a pod takes of its node: CPU, memory, claims and GPUs by name.

use std::collections::BTreeMap;

use divvy_core::Bytes;
use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, Pod, PodSpec, ResourceRequirements, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::ResourceExt as _;

use crate::base::objects::has_ended;
use crate::base::quantity::Quantity;

/// Namespace and name of an object.
pub type Key = (String, String);

/// What the scheduler reserves for a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub cpu_milli: u64,
    pub memory: Bytes,
}

/// A pod that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    pub uid: String,
    pub key: Key,
    pub node: Option<String>,
    pub requests: Requests,
    /// Its claims, as far as they have a name.
    pub claims: Vec<Key>,
    /// Claims that kube-controller-manager has still to create from a template.
    pub claims_to_come: bool,
    /// What its containers request by names such as `nvidia.com/gpu`.
    pub extended: BTreeMap<String, u64>,
    /// The nodes that it accepts, if it names any.
    pub selection: Option<PodSpec>,
}

impl PodFacts {
    /// `None` for a pod that has ended, or that is none.
    pub fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        if has_ended(pod) {
            return None;
        }
        let status = pod.status.as_ref();
        let namespace = pod.namespace().unwrap_or_default();
        let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
        let made = |name: &str| {
            let mut made = made.into_iter().flatten();
            made.find(|made| made.name == name)
        };
        let (mut claims, mut claims_to_come) = (Vec::new(), false);
        for claim in spec.resource_claims.iter().flatten() {
            let name = match (&claim.resource_claim_name, made(&claim.name)) {
                (Some(name), _) => Some(name),
                // A template that makes no claim has a status without a name.
                (None, Some(made)) => made.resource_claim_name.as_ref(),
                (None, None) => {
                    claims_to_come = true;
                    None
                }
            };
            claims.extend(name.map(|name| (namespace.clone(), name.clone())));
        }
        let extended = extended(spec);
        let may_want_gpus = !claims.is_empty() || claims_to_come || !extended.is_empty();
        Some(Self {
            uid: pod.uid().unwrap_or_default(),
            key: (namespace, pod.name_any()),
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            requests: requests(spec),
            claims,
            claims_to_come,
            extended,
            // The selectors of a pod may be large, and those of a pod without GPUs choose nothing here.
            selection: selection(spec).filter(|_| may_want_gpus),
        })
    }

    /// Whether the view needs it: it takes room of its node, or waits and may want GPUs.
    pub fn is_needed(&self) -> bool {
        self.node.is_some() || self.may_want_gpus()
    }

    /// Whether it may want GPUs: a pod without a claim and without a resource of a driver wants none.
    pub fn may_want_gpus(&self) -> bool {
        !self.claims.is_empty() || self.claims_to_come || !self.extended.is_empty()
    }
}

/// As kube-scheduler adds them: containers together, each init container alone beside the sidecars before it.
fn requests(spec: &PodSpec) -> Requests {
    let sum = |one: Requests, other: Requests| Requests {
        cpu_milli: one.cpu_milli.saturating_add(other.cpu_milli),
        memory: one.memory.saturating_add(other.memory),
    };
    let most = |one: Requests, other: Requests| Requests {
        cpu_milli: one.cpu_milli.max(other.cpu_milli),
        memory: one.memory.max(other.memory),
    };
    let containers = spec.containers.iter().map(of_container);
    let mut together = containers.fold(Requests::default(), sum);
    let (mut sidecars, mut starting) = (Requests::default(), Requests::default());
    for init in spec.init_containers.iter().flatten() {
        let own = of_container(init);
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars = sum(sidecars, own);
            together = sum(together, own);
            starting = most(starting, sidecars);
        } else {
            starting = most(starting, sum(sidecars, own));
        }
    }
    let mut all = most(together, starting);
    let of_pod = spec
        .resources
        .as_ref()
        .and_then(|all| all.requests.as_ref());
    if let Some(of_pod) = of_pod {
        let set = of_list(of_pod);
        if of_pod.contains_key("cpu") {
            all.cpu_milli = set.cpu_milli;
        }
        if of_pod.contains_key("memory") {
            all.memory = set.memory;
        }
    }
    let overhead = spec.overhead.as_ref().map(of_list).unwrap_or_default();
    sum(all, overhead)
}

fn of_container(container: &Container) -> Requests {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    requests.map(of_list).unwrap_or_default()
}

/// CPU and memory of a list; what cannot be parsed counts as nothing.
fn of_list(list: &BTreeMap<String, ApiQuantity>) -> Requests {
    let quantity = |name: &str| list.get(name)?.0.parse::<Quantity>().ok();
    Requests {
        cpu_milli: quantity("cpu").map_or(0, Quantity::milli_rounded_up),
        // Whole MiB, as the history of requests counts them.
        memory: Bytes::mib(quantity("memory").map_or(0, Quantity::mib_rounded_up)),
    }
}

/// What of the node's allocatable amounts is there.
pub fn allocatable(list: &BTreeMap<String, ApiQuantity>) -> Requests {
    of_list(list)
}

fn extended(spec: &PodSpec) -> BTreeMap<String, u64> {
    let init = spec.init_containers.iter().flatten();
    let mut all = BTreeMap::new();
    for container in spec.containers.iter().chain(init) {
        let Some(ResourceRequirements { limits, .. }) = &container.resources else {
            continue;
        };
        for (name, quantity) in limits.iter().flatten() {
            // Kubernetes' own resources have no domain, or `kubernetes.io`.
            let is_driver_resource =
                name.contains('/') && !name.starts_with("kubernetes.io/") && name.len() <= 253;
            let count = quantity.0.parse::<Quantity>().ok();
            if let (true, Some(count)) = (is_driver_resource, count.and_then(Quantity::count)) {
                let sum = all.entry(name.clone()).or_insert(0_u64);
                *sum = sum.saturating_add(count);
            }
        }
    }
    all
}

/// The part of a pod that selects nodes by their labels; taints do not say what a pod is for.
fn selection(spec: &PodSpec) -> Option<PodSpec> {
    let affinity = spec.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        let terms = &affinity.required_during_scheduling_ignored_during_execution;
        terms.clone()
    });
    let labels = spec.node_selector.clone().filter(|all| !all.is_empty());
    if labels.is_none() && required.is_none() {
        return None;
    }
    Some(PodSpec {
        node_selector: labels,
        affinity: Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: required,
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        }),
        tolerations: Some(vec![Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }]),
        ..PodSpec::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn facts(pod: Value) -> Option<PodFacts> {
        PodFacts::of(&serde_json::from_value(pod).unwrap())
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": memory } } })
    }

    #[test]
    fn requests_are_added_as_the_scheduler_adds_them() {
        let mut sidecar = container("100m", "1Gi");
        sidecar["restartPolicy"] = json!("Always");
        let pod = json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" }, "spec": {
            "containers": [container("1", "2Gi"), container("500m", "1Mi")],
            "initContainers": [sidecar, container("3", "1Gi")],
            "overhead": { "cpu": "10m" },
        } });
        let found = facts(pod).unwrap().requests;
        // 3 of the init container and 0.1 of the sidecar before it; 2 + 1 GiB, and 1 MiB.
        assert_eq!((found.cpu_milli, found.memory), (3110, Bytes::mib(3073)));
    }

    #[test]
    fn a_pod_names_its_claims_and_an_ended_one_takes_nothing() {
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u" },
            "spec": { "containers": [], "resourceClaims": [
                { "name": "a", "resourceClaimName": "own" },
                { "name": "b", "resourceClaimTemplateName": "t" },
                { "name": "c", "resourceClaimTemplateName": "t" },
            ] },
            "status": { "resourceClaimStatuses": [{ "name": "b", "resourceClaimName": "p-b-x" }] },
        });
        let found = facts(pod.clone()).unwrap();
        let names: Vec<&str> = found.claims.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["own", "p-b-x"]);
        assert!(found.claims_to_come);
        pod["status"]["phase"] = json!("Succeeded");
        assert_eq!(facts(pod), None);
    }
}
