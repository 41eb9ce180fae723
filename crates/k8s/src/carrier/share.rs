//! The GpuShare: the custom resource of a GPU in carrier mode, with the controller's assignments and the node's
//! state.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state. The node creates it with the first two fields; the controller writes the others.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "divvy.dev",
    version = "v1alpha1",
    kind = "GpuShare",
    plural = "gpushares",
    namespaced,
    derive = "PartialEq",
    status = "GpuShareStatus",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.node"}"#,
    printcolumn = r#"{"name":"GPU","type":"string","jsonPath":".spec.gpu"}"#,
    printcolumn = r#"{"name":"Carrier","type":"string","jsonPath":".status.carrier"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GpuShareSpec {
    /// The node that the GPU is in.
    pub node: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// Pods that are assigned a fraction of the GPU.
    #[serde(default)]
    pub assignments: Vec<Assignment>,
    /// The GPU accepts no more pods, and its reservation pod will be deleted.
    #[serde(default)]
    pub draining: bool,
}

/// A pod that is assigned a fraction of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// The pod's uid.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Sixteenths of the GPU.
    pub units: i64,
}

/// The observed state, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuShareStatus {
    /// GPU memory that is available to slices, in bytes.
    #[serde(default)]
    pub memory_bytes: i64,
    /// The reservation pod that holds the GPU, as kubelet reports it.
    #[serde(default)]
    pub carrier: Option<String>,
    /// Allocations of the node's daemon for pods, including pods that are no longer assigned.
    #[serde(default)]
    pub held: Vec<Held>,
}

/// The allocation of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Held {
    /// The claim's name in the node's daemon.
    pub claim: String,
    /// The pod's uid.
    pub uid: String,
    /// Sixteenths of the GPU.
    pub units: i64,
}

/// The name of a GPU's record.
pub fn name(gpu: &str) -> String {
    gpu.to_ascii_lowercase()
}

/// The definition that a cluster needs before there can be shares.
pub fn definition() -> CustomResourceDefinition {
    GpuShare::crd()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_record_is_written_as_its_definition_has_it() {
        let text = r#"{"apiVersion":"divvy.dev/v1alpha1","kind":"GpuShare","metadata":{"name":"gpu-1"},
            "spec":{"node":"a","gpu":"GPU-1"}}"#;
        let share: GpuShare = serde_json::from_str(text).unwrap();
        assert!(share.spec.assignments.is_empty() && !share.spec.draining);
        let status = serde_json::to_value(GpuShareStatus::default()).unwrap();
        assert_eq!(
            status,
            json!({ "memoryBytes": 0, "carrier": null, "held": [] }),
            "what is not there is cleared"
        );
        let definition = serde_json::to_value(definition()).unwrap();
        assert_eq!(definition["metadata"]["name"], "gpushares.divvy.dev");
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["subresources"]["status"], json!({}));
        let properties = &version["schema"]["openAPIV3Schema"]["properties"];
        assert_eq!(
            properties["spec"]["properties"]["assignments"]["items"]["properties"]["units"]["type"],
            "integer"
        );
        assert_eq!(name("GPU-8F3C"), "gpu-8f3c");
    }
}
