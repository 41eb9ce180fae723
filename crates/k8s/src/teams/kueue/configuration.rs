//! Kueue's own configuration: which device classes it counts as [`RESOURCE`], and the Helm values with it.
//!
//! Kueue reads it once at its start. Five settings matter to Divvy:
//!
//! | setting | why |
//! |---|---|
//! | gate `KueueDRAIntegrationConsumableCapacity` | without it Kueue refuses capacity sources (alpha in 0.19, off) |
//! | gate `KueueDRAIntegrationExtendedResource` off | with it Kueue refuses `nvidia.com/mig-*` whose class has a capacity source (pkg/dra/extended_resources.go) |
//! | `deviceClassMappings` | claims count as memory |
//! | `managedJobsNamespaceSelector` | without Divvy's namespace, its pods start while Kueue's webhook does not respond |
//! | `transformations` | `nvidia.com/mig-*` in a pod's limits counts as the memory of its instance |

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, json};

use super::RESOURCE;
use crate::base::claim::{DRIVER, FRACTION_CLASS, Inventory, mig_class};
use crate::base::inject::entry;
use crate::base::pod_request::GPU;
use crate::base::quantity::of_bytes;
use crate::base::slices::{self, MEMORY};

/// The file in Kueue's ConfigMap.
pub const FILE: &str = "controller_manager_config.yaml";
/// A mapping takes no more (`validateDeviceClassMappings`, Kueue's pkg/config).
const MOST_CLASSES: usize = 8;
const CAPACITY: &str = "KueueDRAIntegrationConsumableCapacity";
const EXTENDED: &str = "KueueDRAIntegrationExtendedResource";

/// What Kueue has to count in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The device classes of claims.
    pub classes: BTreeSet<String>,
    /// The classes beyond those that one mapping takes: claims that name them are not admitted.
    pub left_out: BTreeSet<String>,
    /// Extended resources, with the memory of one unit.
    pub resources: BTreeMap<String, String>,
}

impl Counted {
    /// Of the published devices; `nvidia_gpu` as for [`slices::classes`].
    pub fn of(inventory: &Inventory, nvidia_gpu: bool) -> Self {
        let mut counted = Self::default();
        let plain = |class: &DeviceClass| {
            let name = class.metadata.name.as_deref().unwrap_or_default();
            // Parts of GPUs, then plain profiles, which requests by memory get as well.
            (name.starts_with("mig-"), name.contains("-with-"))
        };
        let mut classes = slices::classes(inventory, nvidia_gpu);
        classes.sort_by_key(plain);
        let memory: BTreeMap<String, _> = inventory
            .profiles
            .iter()
            .map(|(profile, memory)| (mig_class(*profile), *memory))
            .collect();
        let largest = inventory.sizes.last().copied();
        for class in classes {
            let name = class.metadata.name.unwrap_or_default();
            let unit = memory.get(&name).copied().or(largest);
            if let (Some(resource), Some(unit)) = (class.spec.extended_resource_name, unit) {
                counted.resources.insert(resource, of_bytes(unit).0);
            }
            if counted.classes.len() < MOST_CLASSES {
                counted.classes.insert(name)
            } else {
                counted.left_out.insert(name)
            };
        }
        counted
    }

    /// Whether `nvidia.com/gpu` is Divvy's, by the classes of a cluster.
    pub fn serves_nvidia_gpu(classes: &[DeviceClass]) -> bool {
        let is = |class: &DeviceClass| {
            class.metadata.name.as_deref() == Some(FRACTION_CLASS)
                && class.spec.extended_resource_name.as_deref() == Some(GPU)
        };
        classes.iter().any(is)
    }
}

/// Returns the Configuration with Divvy's settings; all others of `present` stay. Kueue is not to manage these `spared`
/// namespaces.
pub fn merged(present: Option<Value>, counted: &Counted, spared: &[&str]) -> Value {
    let mut all = present.unwrap_or_else(chart_default);
    spare(&mut all["managedJobsNamespaceSelector"], spared);
    all["featureGates"][CAPACITY] = json!(true);
    all["featureGates"][EXTENDED] = json!(false);
    if all["fairSharing"].is_null() {
        all["fairSharing"] = json!({ "preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"] });
    }
    let resources = &mut all["resources"];
    let mapping = json!({
        "name": RESOURCE,
        "deviceClassNames": counted.classes,
        "sources": [{ "capacity": {
            "driver": DRIVER,
            "name": MEMORY,
            "deviceSelector": { "cel": { "expression": format!("device.driver == '{DRIVER}'") } },
        } }],
    });
    replace(&mut resources["deviceClassMappings"], "name", vec![mapping]);
    let transformations = counted.resources.iter().map(|(input, memory)| {
        json!({ "input": input, "strategy": "Replace", "outputs": { RESOURCE: memory } })
    });
    replace(
        &mut resources["transformations"],
        "input",
        transformations.collect(),
    );
    all
}

/// Leaves these namespaces out of a selector. One that is not set has Kueue's default, without its own namespace.
fn spare(selector: &mut Value, namespaces: &[&str]) {
    const NAME: &str = "kubernetes.io/metadata.name";
    if namespaces.is_empty() {
        return;
    }
    if selector.is_null() {
        *selector = json!({ "matchExpressions": [{ "key": NAME, "operator": "NotIn", "values": ["kube-system"] }] });
    }
    let all = entry(selector, "matchExpressions", json!([]));
    let Some(all) = all.as_array_mut() else {
        return;
    };
    let excludes = |one: &&mut Value| one["key"] == NAME && one["operator"] == "NotIn";
    if let Some(one) = all.iter_mut().find(excludes) {
        let values = entry(one, "values", json!([]));
        for namespace in namespaces {
            if let Some(list) = values.as_array_mut()
                && !list.contains(&json!(namespace))
            {
                list.push(json!(namespace));
            }
        }
    } else {
        all.push(json!({ "key": NAME, "operator": "NotIn", "values": namespaces }));
    }
}

/// Puts these entries into a list, in place of those with the same key.
fn replace(list: &mut Value, key: &str, entries: Vec<Value>) {
    let mut kept = list.as_array().cloned().unwrap_or_default();
    kept.retain(|old| !entries.iter().any(|new| new[key] == old[key]));
    kept.extend(entries);
    if !kept.is_empty() {
        *list = Value::Array(kept);
    }
}

/// Returns what keeps Kueue from counting everything; empty if nothing does.
pub fn problems(configuration: &Value, counted: &Counted) -> Vec<String> {
    let mut found = Vec::new();
    if configuration["featureGates"][CAPACITY] != true {
        found.push(format!("its file does not turn on the gate {CAPACITY}"));
    }
    if configuration["featureGates"][EXTENDED] != false && !counted.resources.is_empty() {
        found.push(format!("its file does not turn off the gate {EXTENDED}"));
    }
    let resources = &configuration["resources"];
    let mappings = resources["deviceClassMappings"]
        .as_array()
        .into_iter()
        .flatten();
    let ours: Vec<&Value> = mappings
        .filter(|mapping| mapping["name"] == RESOURCE)
        .collect();
    let names = |class: &String| {
        let has = |mapping: &&Value| {
            let names = mapping["deviceClassNames"].as_array().into_iter().flatten();
            names.into_iter().any(|name| name == class.as_str())
                && mapping["sources"][0]["capacity"]["name"] == MEMORY
        };
        ours.iter().any(has)
    };
    let missing: Vec<&String> = counted
        .classes
        .iter()
        .filter(|class| !names(class))
        .collect();
    if !missing.is_empty() {
        let missing: Vec<&str> = missing.into_iter().map(String::as_str).collect();
        found.push(format!(
            "no mapping of {RESOURCE} names {}",
            missing.join(", ")
        ));
    }
    let transformed = |input: &String, memory: &String| {
        let mut all = resources["transformations"]
            .as_array()
            .into_iter()
            .flatten();
        all.any(|one| one["input"] == input.as_str() && one["outputs"][RESOURCE] == memory.as_str())
    };
    let other: Vec<&str> = counted
        .resources
        .iter()
        .filter(|(input, memory)| !transformed(input, memory))
        .map(|(input, _)| input.as_str())
        .collect();
    if !other.is_empty() {
        found.push(format!("no transformation counts {}", other.join(", ")));
    }
    found
}

/// The Configuration of Kueue's chart 0.19, without its comments.
fn chart_default() -> Value {
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": { "healthProbeBindAddress": ":8081" },
        "metrics": { "bindAddress": ":8443" },
        "webhook": { "port": 9443 },
        "leaderElection": { "leaderElect": true, "resourceName": "c1f6bfd2.kueue.x-k8s.io" },
        "controller": { "groupKindConcurrency": {
            "Job.batch": 5, "Pod": 5, "Workload.kueue.x-k8s.io": 10, "LocalQueue.kueue.x-k8s.io": 5,
            "ClusterQueue.kueue.x-k8s.io": 5, "ResourceFlavor.kueue.x-k8s.io": 1,
        } },
        "clientConnection": { "qps": 300, "burst": 500 },
        "integrations": { "frameworks": [
            "batch/job", "kubeflow.org/mpijob", "ray.io/rayjob", "ray.io/rayservice", "ray.io/raycluster",
            "jobset.x-k8s.io/jobset", "workload.codeflare.dev/appwrapper", "trainer.kubeflow.org/trainjob", "pod",
            "deployment", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset",
        ] },
    })
}

#[cfg(test)]
mod tests {
    use divvy_core::units::Bytes;

    use super::*;

    fn inventory(profiles: &[&str]) -> Inventory {
        Inventory {
            sizes: [Bytes::mib(81_050)].into(),
            profiles: profiles
                .iter()
                .map(|name| (name.parse().unwrap(), Bytes::mib(9728)))
                .collect(),
        }
    }

    #[test]
    fn claims_and_mig_requests_count_in_one_resource() {
        let counted = Counted::of(&inventory(&["1g.10gb"]), true);
        let all = merged(None, &counted, &[]);
        assert_eq!(problems(&all, &counted), Vec::<String>::new());
        let mapping = &all["resources"]["deviceClassMappings"][0];
        assert_eq!(
            mapping["deviceClassNames"],
            json!([
                "fraction.gpu.divvy.dev",
                "memory.gpu.divvy.dev",
                "mig-1g-10gb.gpu.divvy.dev"
            ])
        );
        assert_eq!(
            all["resources"]["transformations"],
            json!([
                { "input": "nvidia.com/gpu", "strategy": "Replace", "outputs": { RESOURCE: "81050Mi" } },
                { "input": "nvidia.com/mig-1g.10gb", "strategy": "Replace", "outputs": { RESOURCE: "9728Mi" } },
            ])
        );
    }

    #[test]
    fn the_settings_of_others_stay_and_old_ones_of_divvy_go() {
        let before = merged(None, &Counted::of(&inventory(&["1g.10gb"]), false), &[]);
        let mut present = before;
        let other = json!({ "input": "example.com/a", "strategy": "Retain" });
        let transformations = present["resources"]["transformations"].as_array_mut();
        transformations.unwrap().push(other);
        present["manageJobsWithoutQueueName"] = json!(true);
        let counted = Counted::of(&inventory(&["1g.10gb", "2g.20gb"]), false);
        assert_eq!(
            problems(&present, &counted).len(),
            2,
            "{:?}",
            problems(&present, &counted)
        );
        let after = merged(Some(present), &counted, &[]);
        assert_eq!(problems(&after, &counted), Vec::<String>::new());
        assert_eq!(after["manageJobsWithoutQueueName"], true);
        assert_eq!(
            after["resources"]["deviceClassMappings"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            after["resources"]["transformations"]
                .as_array()
                .unwrap()
                .len(),
            3
        );
    }

    #[test]
    fn kueue_leaves_the_pods_of_divvys_namespace_alone() {
        const NAME: &str = "kubernetes.io/metadata.name";
        let counted = Counted::default();
        let of = |all: &Value| all["managedJobsNamespaceSelector"]["matchExpressions"].clone();
        let spared = ["kueue-system", "divvy-system"];
        let new = merged(None, &counted, &spared);
        let without =
            |values: &[&str]| json!({ "key": NAME, "operator": "NotIn", "values": values });
        assert_eq!(
            of(&new),
            json!([without(&["kube-system", "kueue-system", "divvy-system"])])
        );
        assert_eq!(merged(Some(new.clone()), &counted, &spared), new);
        let label = json!({ "key": "team", "operator": "Exists" });
        let present = json!({ "managedJobsNamespaceSelector": { "matchExpressions": [label] } });
        let after = merged(Some(present), &counted, &spared);
        assert_eq!(of(&after), json!([label, without(&spared)]));
        let unset = merged(None, &counted, &[]);
        assert_eq!(unset["managedJobsNamespaceSelector"], Value::Null);
    }

    #[test]
    fn of_more_classes_than_a_mapping_takes_the_plain_ones_are_counted() {
        let profiles = [
            "1g.10gb",
            "1g.10gb+me",
            "1g.20gb",
            "2g.20gb",
            "2g.20gb+me",
            "3g.40gb",
            "4g.40gb",
            "7g.80gb",
            "7g.80gb+me",
        ];
        let counted = Counted::of(&inventory(&profiles), false);
        assert_eq!(counted.classes.len(), MOST_CLASSES);
        assert_eq!(counted.left_out.len(), 3);
        assert!(
            counted
                .left_out
                .iter()
                .all(|class| class.contains("-with-me"))
        );
        assert_eq!(counted.resources.len(), profiles.len());
    }

    #[test]
    fn what_is_missing_is_named() {
        let counted = Counted::of(&inventory(&["1g.10gb"]), false);
        let found = problems(&json!({ "kind": "Configuration" }), &counted).join("; ");
        for word in [
            CAPACITY,
            EXTENDED,
            "fraction.gpu.divvy.dev",
            "nvidia.com/mig-1g.10gb",
        ] {
            assert!(found.contains(word), "{found}");
        }
    }
}
