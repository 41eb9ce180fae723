//! Which kinds the server has: Kubernetes' own that Divvy meets, and those that were defined.

use serde_json::Value;

use super::store::Fail;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    /// Whether its status has a door of its own.
    pub status: bool,
}

const NAMESPACED: bool = true;
const CLUSTER: bool = false;
const STATUS: bool = true;
const PLAIN: bool = false;

const BUILT_IN: [(&str, &str, &str, &str, bool, bool); 35] = [
    ("", "v1", "namespaces", "Namespace", CLUSTER, STATUS),
    ("", "v1", "nodes", "Node", CLUSTER, STATUS),
    ("", "v1", "pods", "Pod", NAMESPACED, STATUS),
    ("", "v1", "secrets", "Secret", NAMESPACED, PLAIN),
    ("", "v1", "configmaps", "ConfigMap", NAMESPACED, PLAIN),
    ("", "v1", "events", "Event", NAMESPACED, PLAIN),
    ("", "v1", "services", "Service", NAMESPACED, STATUS),
    (
        "",
        "v1",
        "serviceaccounts",
        "ServiceAccount",
        NAMESPACED,
        PLAIN,
    ),
    (
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        NAMESPACED,
        STATUS,
    ),
    (
        "",
        "v1",
        "resourcequotas",
        "ResourceQuota",
        NAMESPACED,
        STATUS,
    ),
    (
        "",
        "v1",
        "replicationcontrollers",
        "ReplicationController",
        NAMESPACED,
        STATUS,
    ),
    (
        "apps",
        "v1",
        "deployments",
        "Deployment",
        NAMESPACED,
        STATUS,
    ),
    (
        "apps",
        "v1",
        "statefulsets",
        "StatefulSet",
        NAMESPACED,
        STATUS,
    ),
    ("apps", "v1", "daemonsets", "DaemonSet", NAMESPACED, STATUS),
    (
        "apps",
        "v1",
        "replicasets",
        "ReplicaSet",
        NAMESPACED,
        STATUS,
    ),
    ("batch", "v1", "jobs", "Job", NAMESPACED, STATUS),
    ("batch", "v1", "cronjobs", "CronJob", NAMESPACED, STATUS),
    (
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        NAMESPACED,
        PLAIN,
    ),
    ("events.k8s.io", "v1", "events", "Event", NAMESPACED, PLAIN),
    (
        "resource.k8s.io",
        "v1",
        "resourceslices",
        "ResourceSlice",
        CLUSTER,
        PLAIN,
    ),
    (
        "resource.k8s.io",
        "v1",
        "resourceclaims",
        "ResourceClaim",
        NAMESPACED,
        STATUS,
    ),
    (
        "resource.k8s.io",
        "v1",
        "resourceclaimtemplates",
        "ResourceClaimTemplate",
        NAMESPACED,
        PLAIN,
    ),
    (
        "resource.k8s.io",
        "v1",
        "deviceclasses",
        "DeviceClass",
        CLUSTER,
        PLAIN,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        CLUSTER,
        PLAIN,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        CLUSTER,
        PLAIN,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        CLUSTER,
        STATUS,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        CLUSTER,
        PLAIN,
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        CLUSTER,
        STATUS,
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "roles",
        "Role",
        NAMESPACED,
        PLAIN,
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "rolebindings",
        "RoleBinding",
        NAMESPACED,
        PLAIN,
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "clusterroles",
        "ClusterRole",
        CLUSTER,
        PLAIN,
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "clusterrolebindings",
        "ClusterRoleBinding",
        CLUSTER,
        PLAIN,
    ),
    (
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        NAMESPACED,
        STATUS,
    ),
    (
        "scheduling.k8s.io",
        "v1",
        "priorityclasses",
        "PriorityClass",
        CLUSTER,
        PLAIN,
    ),
    (
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        CLUSTER,
        PLAIN,
    ),
];

pub fn built_in() -> Vec<Kind> {
    let rows = BUILT_IN.into_iter();
    rows.map(|(group, version, plural, kind, namespaced, status)| Kind {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        kind: kind.to_owned(),
        namespaced,
        status,
    })
    .collect()
}

/// The kinds that a CustomResourceDefinition defines, one for each version that is served.
pub fn defined(definition: &Value) -> Vec<Kind> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions
        .filter(|version| version["served"] == true)
        .map(|version| Kind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            plural: text(&spec["names"]["plural"]),
            kind: text(&spec["names"]["kind"]),
            namespaced: spec["scope"] == "Namespaced",
            status: version["subresources"]["status"].is_object(),
        })
        .collect()
}

/// What a path names: a collection, an object, or one of its other doors.
#[derive(Clone, Debug)]
pub struct Target {
    pub kind: Kind,
    /// Empty for all namespaces, and for what has none.
    pub namespace: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl Target {
    /// Of `/api/v1/…` or `/apis/GROUP/VERSION/…`.
    pub fn of(path: &str, kinds: &[Kind]) -> Result<Self, Fail> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts[..] {
            ["api", version, ref rest @ ..] => ("", version, rest),
            ["apis", group, version, ref rest @ ..] => (group, version, rest),
            _ => return Err(Fail::not_found(format!("no such path: {path}"))),
        };
        let (namespace, rest) = match *rest {
            ["namespaces", namespace, ref rest @ ..]
                if !matches!(rest, [] | ["status"] | ["finalize"]) =>
            {
                (namespace, rest)
            }
            _ => ("", rest),
        };
        let (plural, name, subresource) = match *rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name), None),
            [plural, name, subresource] => (plural, Some(name), Some(subresource)),
            _ => return Err(Fail::not_found(format!("no such path: {path}"))),
        };
        let kind = kinds
            .iter()
            .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
            .ok_or_else(|| {
                Fail::not_found("the server could not find the requested resource".to_owned())
            })?;
        Ok(Self {
            kind: kind.clone(),
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        })
    }
}
