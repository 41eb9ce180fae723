//! The objects of a project and of a department, as JSON for server-side apply. The chart renders the same.

use std::collections::BTreeSet;

use divvy_core::units::{Bytes, gpus};
use serde_json::{Value, json};

use super::{
    FLAVOR, GPU_MEMORY, GROUP, MARK, QUEUE, RESOURCE, ROOT, UNLIMITED_FLAVOR, VERSION, quota,
};
use crate::base::cluster::MANAGED_BY;
use crate::base::quantity::of_bytes;

/// Resources of pods that a project leaves unlimited. A ClusterQueue refuses workloads with a resource that it does not
/// cover (`resource cpu unavailable in ClusterQueue`), and Kueue's settings for that hold for other queues too.
const UNLIMITED: [(&str, &str); 3] = [
    ("cpu", "1M"),
    ("memory", "1Pi"),
    ("ephemeral-storage", "1Pi"),
];
/// The annotations that keep what the spec alone does not show.
pub const WEIGHT: &str = "divvy.dev/weight";
pub const QUOTA: &str = "divvy.dev/quota";
pub const LIMIT: &str = "divvy.dev/limit";

/// A project: who may hold how much. Amounts in thousandths of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    pub name: String,
    pub quota: u64,
    /// The most that it may hold; with `Some(quota)` it never goes over quota.
    pub limit: Option<u64>,
    /// `None`: as its quota.
    pub weight: Option<u32>,
    pub namespaces: BTreeSet<String>,
    pub department: Option<String>,
    pub gpu_memory: Bytes,
}

/// A department: projects that share a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Department {
    pub name: String,
    /// `None`: what its projects have together.
    pub quota: Option<u64>,
    pub limit: Option<u64>,
    pub weight: Option<u32>,
    pub gpu_memory: Bytes,
}

/// The kinds of Kueue that Divvy writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ResourceFlavor,
    Cohort,
    ClusterQueue,
    LocalQueue,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ResourceFlavor => "ResourceFlavor",
            Self::Cohort => "Cohort",
            Self::ClusterQueue => "ClusterQueue",
            Self::LocalQueue => "LocalQueue",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::ResourceFlavor => "resourceflavors",
            Self::Cohort => "cohorts",
            Self::ClusterQueue => "clusterqueues",
            Self::LocalQueue => "localqueues",
        }
    }
}

/// The objects that every project needs: the two flavors, and the root of the cohorts.
pub fn shared() -> Vec<Value> {
    vec![
        object(Kind::ResourceFlavor, FLAVOR, "shared", json!({}), json!({})),
        object(
            Kind::ResourceFlavor,
            UNLIMITED_FLAVOR,
            "shared",
            json!({}),
            json!({}),
        ),
        object(Kind::Cohort, ROOT, "shared", json!({}), json!({})),
    ]
}

impl Project {
    /// The ClusterQueue.
    pub fn cluster_queue(&self) -> Value {
        let mut memory = json!({
            "name": RESOURCE,
            "nominalQuota": of_bytes(quota::memory(self.quota, self.gpu_memory)),
        });
        if let Some(limit) = self.limit {
            memory["borrowingLimit"] = json!(over(self.quota, limit, self.gpu_memory));
        }
        let (names, amounts): (Vec<&str>, Vec<Value>) = UNLIMITED
            .iter()
            .map(|(name, amount)| (*name, json!({ "name": name, "nominalQuota": amount })))
            .unzip();
        let spec = json!({
            "cohortName": self.department.as_deref().unwrap_or(ROOT),
            "queueingStrategy": "BestEffortFIFO",
            "namespaceSelector": { "matchExpressions": [{
                "key": "kubernetes.io/metadata.name", "operator": "In", "values": self.namespaces,
            }] },
            "preemption": {
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": { "policy": "Never" },
                "withinClusterQueue": "LowerPriority",
            },
            "fairSharing": { "weight": weight(self.weight, self.quota) },
            "resourceGroups": [
                { "coveredResources": [RESOURCE], "flavors": [{ "name": FLAVOR, "resources": [memory] }] },
                { "coveredResources": names, "flavors": [{ "name": UNLIMITED_FLAVOR, "resources": amounts }] },
            ],
        });
        let mut annotations = json!({ GPU_MEMORY: of_bytes(self.gpu_memory) });
        if let Some(weight) = self.weight {
            annotations[WEIGHT] = json!(weight.to_string());
        }
        object(Kind::ClusterQueue, &self.name, "project", annotations, spec)
    }

    /// The LocalQueue of each namespace.
    pub fn local_queues(&self) -> Vec<Value> {
        let of_namespace = |namespace: &String| {
            let spec = json!({ "clusterQueue": self.name });
            let mut queue = object(Kind::LocalQueue, QUEUE, "project", json!({}), spec);
            queue["metadata"]["namespace"] = json!(namespace);
            queue
        };
        self.namespaces.iter().map(of_namespace).collect()
    }
}

impl Department {
    /// The quota of the department: its own, or that of its projects together.
    pub fn effective_quota(&self, of_projects: u64) -> u64 {
        self.quota.unwrap_or(of_projects)
    }

    /// The Cohort. `of_projects` is the quota of its projects together: Kueue adds a Cohort's quota to theirs.
    pub fn cohort(&self, of_projects: u64) -> Value {
        let all = self.effective_quota(of_projects);
        let own = all.saturating_sub(of_projects);
        let mut memory = json!({
            "name": RESOURCE,
            "nominalQuota": of_bytes(quota::memory(own, self.gpu_memory)),
        });
        let mut annotations = json!({ GPU_MEMORY: of_bytes(self.gpu_memory) });
        if let Some(quota) = self.quota {
            annotations[QUOTA] = json!(gpus(quota).to_string());
        }
        if let Some(limit) = self.limit {
            memory["borrowingLimit"] = json!(over(all, limit, self.gpu_memory));
            annotations[LIMIT] = json!(gpus(limit).to_string());
        }
        if let Some(weight) = self.weight {
            annotations[WEIGHT] = json!(weight.to_string());
        }
        let spec = json!({
            "parentName": ROOT,
            "fairSharing": { "weight": weight(self.weight, all) },
            "resourceGroups": [
                { "coveredResources": [RESOURCE], "flavors": [{ "name": FLAVOR, "resources": [memory] }] },
            ],
        });
        object(Kind::Cohort, &self.name, "department", annotations, spec)
    }
}

/// The memory between quota and limit.
fn over(
    quota: u64,
    limit: u64,
    gpu: Bytes,
) -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    of_bytes(quota::memory(limit, gpu).saturating_sub(quota::memory(quota, gpu)))
}

/// A weight of 1 counts as a quota of one GPU.
fn weight(given: Option<u32>, quota: u64) -> String {
    given.map_or_else(|| gpus(quota).to_string(), |weight| weight.to_string())
}

fn object(kind: Kind, name: &str, mark: &str, annotations: Value, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind.as_str(),
        "metadata": { "name": name, "labels": { MANAGED_BY.0: MANAGED_BY.1, MARK: mark } },
        "spec": spec,
    });
    if annotations.as_object().is_some_and(|all| !all.is_empty()) {
        object["metadata"]["annotations"] = annotations;
    }
    object
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn project(name: &str, quota: u64) -> Project {
        Project {
            name: name.to_owned(),
            quota,
            limit: None,
            weight: None,
            namespaces: [name.to_owned()].into(),
            department: None,
            gpu_memory: Bytes::mib(81_050),
        }
    }

    fn gpu(object: &Value) -> &Value {
        &object["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    }

    #[test]
    fn a_quota_in_gpus_becomes_memory_and_a_limit_becomes_borrowing() {
        let plain = project("vision", 2500).cluster_queue();
        assert_eq!(
            *gpu(&plain),
            json!({ "name": RESOURCE, "nominalQuota": "202625Mi" })
        );
        assert_eq!(plain["spec"]["fairSharing"]["weight"], "2.5");
        assert_eq!(plain["spec"]["cohortName"], ROOT);
        let bounded = Project {
            limit: Some(4000),
            weight: Some(0),
            department: Some("research".into()),
            ..project("vision", 2000)
        };
        let bounded = bounded.cluster_queue();
        assert_eq!(gpu(&bounded)["borrowingLimit"], "162100Mi");
        assert_eq!(bounded["spec"]["fairSharing"]["weight"], "0");
        assert_eq!(bounded["spec"]["cohortName"], "research");
        let never = Project {
            limit: Some(2000),
            ..project("vision", 2000)
        };
        assert_eq!(gpu(&never.cluster_queue())["borrowingLimit"], "0");
    }

    #[test]
    fn a_department_adds_what_its_projects_do_not_have() {
        let department = |quota| Department {
            name: "research".into(),
            quota,
            limit: Some(8000),
            weight: None,
            gpu_memory: Bytes::gib(80),
        };
        let cohort = department(Some(6000)).cohort(4000);
        assert_eq!(gpu(&cohort)["nominalQuota"], "160Gi");
        assert_eq!(gpu(&cohort)["borrowingLimit"], "160Gi");
        assert_eq!(cohort["spec"]["parentName"], ROOT);
        assert_eq!(cohort["spec"]["fairSharing"]["weight"], "6");
        let sum = department(None).cohort(4000);
        assert_eq!(gpu(&sum)["nominalQuota"], "0");
        assert_eq!(gpu(&sum)["borrowingLimit"], "320Gi");
    }
}
