//! Workloads: the kinds of objects that pods are made of, and where their pod templates are.
//!
//! The webhook, its registration and the chart, and the controller's watch of claim templates all read this table. A
//! new kind is one entry, `DIVVY_RECORD=1` for the chart's copy of the webhooks, and its group in the chart's role.

use serde_json::Value;

/// A kind of object with pod templates.
#[derive(Debug, PartialEq, Eq)]
pub struct Workload {
    pub group: &'static str,
    /// The version of its objects that the controller reads; the webhook takes any.
    pub version: &'static str,
    /// `jobs`.
    pub resource: &'static str,
    pub kind: &'static str,
    /// JSON pointers; `*` stands for each element of a list, `{}` for each value of a map.
    pub templates: &'static [&'static str],
    pub claims: ClaimRule,
}

/// Whether the claims of a template may change after the object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRule {
    /// Its controller replaces the pods when the template changes.
    Replaceable,
    /// The API server or its own webhook refuses another template, or its controller ignores it.
    Fixed,
}

/// The claims of an object that another controller owns, `metadata.ownerReferences`, are that controller's business: it
/// compares the object with its own template. Nothing compares the Jobs of a CronJob or JobSet.
pub fn is_owners_business(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    object["kind"] != "Job" && owners.any(|owner| owner["controller"] == true)
}

const fn of(
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    kind: &'static str,
    templates: &'static [&'static str],
    claims: ClaimRule,
) -> Workload {
    Workload {
        group,
        version,
        resource,
        kind,
        templates,
        claims,
    }
}

const POD: &[&str] = &["/spec/template"];

/// Every kind. Those of an operator may be absent from a cluster.
pub const WORKLOADS: &[Workload] = {
    use ClaimRule::{Fixed, Replaceable};
    &[
        of("apps", "v1", "deployments", "Deployment", POD, Replaceable),
        of(
            "apps",
            "v1",
            "statefulsets",
            "StatefulSet",
            POD,
            Replaceable,
        ),
        of("apps", "v1", "daemonsets", "DaemonSet", POD, Replaceable),
        of("apps", "v1", "replicasets", "ReplicaSet", POD, Replaceable),
        of(
            "",
            "v1",
            "replicationcontrollers",
            "ReplicationController",
            POD,
            Replaceable,
        ),
        // `spec.template` is immutable, but for a suspended Job's resources and scheduling (`ValidateJobUpdate`, 1.36).
        of("batch", "v1", "jobs", "Job", POD, Fixed),
        of(
            "batch",
            "v1",
            "cronjobs",
            "CronJob",
            &["/spec/jobTemplate/spec/template"],
            Replaceable,
        ),
        // Its webhook lets only scheduling change, while suspended (`jobset_webhook.go` of 0.8).
        of(
            "jobset.x-k8s.io",
            "v1alpha2",
            "jobsets",
            "JobSet",
            &["/spec/replicatedJobs/*/template/spec/template"],
            Fixed,
        ),
        of(
            "leaderworkerset.x-k8s.io",
            "v1",
            "leaderworkersets",
            "LeaderWorkerSet",
            &[
                "/spec/leaderWorkerTemplate/leaderTemplate",
                "/spec/leaderWorkerTemplate/workerTemplate",
            ],
            Replaceable,
        ),
        of(
            "ray.io",
            "v1",
            "rayclusters",
            "RayCluster",
            &[
                "/spec/headGroupSpec/template",
                "/spec/workerGroupSpecs/*/template",
            ],
            Fixed,
        ),
        of(
            "ray.io",
            "v1",
            "rayjobs",
            "RayJob",
            &[
                "/spec/rayClusterSpec/headGroupSpec/template",
                "/spec/rayClusterSpec/workerGroupSpecs/*/template",
            ],
            Fixed,
        ),
        of(
            "ray.io",
            "v1",
            "rayservices",
            "RayService",
            &[
                "/spec/rayClusterConfig/headGroupSpec/template",
                "/spec/rayClusterConfig/workerGroupSpecs/*/template",
            ],
            Replaceable,
        ),
        of(
            "kubeflow.org",
            "v1",
            "pytorchjobs",
            "PyTorchJob",
            &["/spec/pytorchReplicaSpecs/{}/template"],
            Fixed,
        ),
    ]
};

impl Workload {
    /// `None` for a kind without pod templates.
    pub fn of_kind(kind: &str) -> Option<&'static Self> {
        WORKLOADS.iter().find(|workload| workload.kind == kind)
    }

    /// The places of an object's pod templates.
    pub fn places(&self, object: &Value) -> Vec<TemplatePlace> {
        let each = self.templates.iter();
        each.flat_map(|pattern| expand(object, pattern)).collect()
    }
}

/// A pod template of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplatePlace {
    /// A JSON pointer.
    pub pointer: String,
    /// The same with names in place of numbers, so that the template is found in another version of the object.
    key: String,
}

impl TemplatePlace {
    /// The same template of another version of the object.
    pub fn in_version<'o>(&self, workload: &Workload, object: &'o Value) -> Option<&'o Value> {
        let there = workload.places(object);
        let same = there.iter().find(|place| place.key == self.key)?;
        object.pointer(&same.pointer)
    }
}

fn expand(object: &Value, pattern: &str) -> Vec<TemplatePlace> {
    let mut found = vec![TemplatePlace {
        pointer: String::new(),
        key: String::new(),
    }];
    for segment in pattern.split('/').skip(1) {
        let step = |place: &TemplatePlace| {
            let here = object.pointer(&place.pointer).unwrap_or(&Value::Null);
            let below = |name: &str, key: &str| TemplatePlace {
                pointer: format!("{}/{}", place.pointer, escaped(name)),
                key: format!("{}/{}", place.key, escaped(key)),
            };
            match segment {
                "*" => {
                    let elements = here.as_array().into_iter().flatten().enumerate();
                    elements
                        .map(|(at, element)| {
                            let name = ["name", "groupName"].map(|key| element[key].as_str());
                            let at = at.to_string();
                            let key = name.into_iter().flatten().next().unwrap_or(&at).to_owned();
                            below(&at, &key)
                        })
                        .collect::<Vec<_>>()
                }
                "{}" => {
                    let values = here.as_object().into_iter().flatten();
                    values.map(|(name, _)| below(name, name)).collect()
                }
                name => vec![below(name, name)],
            }
        };
        found = found.iter().flat_map(step).collect();
    }
    found.retain(|place| object.pointer(&place.pointer).is_some_and(Value::is_object));
    found
}

/// As a segment of a JSON pointer (RFC 6901).
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_template_of_an_object_is_found_and_found_again_by_its_name() {
        let ray = Workload::of_kind("RayCluster").unwrap();
        let cluster = json!({ "spec": {
            "headGroupSpec": { "template": { "a": 0 } },
            "workerGroupSpecs": [
                { "groupName": "small", "template": { "a": 1 } },
                { "groupName": "without" },
                { "groupName": "a/b", "template": { "a": 2 } },
            ],
        } });
        let places = ray.places(&cluster);
        let pointers: Vec<&str> = places.iter().map(|place| place.pointer.as_str()).collect();
        assert_eq!(
            pointers,
            [
                "/spec/headGroupSpec/template",
                "/spec/workerGroupSpecs/0/template",
                "/spec/workerGroupSpecs/2/template",
            ]
        );
        let reordered = json!({ "spec": { "workerGroupSpecs": [
            { "groupName": "a/b", "template": { "a": 3 } },
        ] } });
        let found = places
            .iter()
            .map(|place| place.in_version(ray, &reordered).map(|found| &found["a"]));
        assert_eq!(found.collect::<Vec<_>>(), [None, None, Some(&json!(3))]);
    }

    #[test]
    fn replicas_of_a_map_are_found_by_their_role() {
        let job = Workload::of_kind("PyTorchJob").unwrap();
        let object = json!({ "spec": { "pytorchReplicaSpecs": {
            "Master": { "template": {} }, "Worker": { "template": {} },
        } } });
        assert_eq!(job.places(&object).len(), 2);
        assert_eq!(job.places(&json!({ "spec": {} })), []);
    }

    #[test]
    fn only_jobs_of_an_owner_get_claims_of_their_own() {
        let owned = |kind: &str, controller: bool| json!({ "kind": kind, "metadata": { "ownerReferences": [{ "controller": controller }] } });
        assert!(is_owners_business(&owned("ReplicaSet", true)));
        assert!(is_owners_business(&owned("RayCluster", true)));
        assert!(!is_owners_business(&owned("ReplicaSet", false)));
        assert!(!is_owners_business(&owned("Job", true)));
        assert!(!is_owners_business(&json!({ "kind": "ReplicaSet" })));
    }
}
