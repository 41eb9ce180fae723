//! The ProjectReport: what the members of a namespace may read of their project, since Kueue's ClusterQueues and the nodes are
//! closed to them. The controller writes one into each namespace of a project; the chart lets the role `view` read it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::{Client, CustomResource, CustomResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::cluster::list_all;

/// The name of the report in each namespace.
pub const NAME: &str = "project";

/// A project as its members see it. Amounts of GPUs are in thousandths.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "divvy.dev",
    version = "v1alpha1",
    kind = "ProjectReport",
    plural = "projectreports",
    namespaced,
    derive = "PartialEq",
    printcolumn = r#"{"name":"Project","type":"string","jsonPath":".spec.project"}"#,
    printcolumn = r#"{"name":"Quota","type":"integer","jsonPath":".spec.quota"}"#,
    printcolumn = r#"{"name":"Used","type":"integer","jsonPath":".spec.used"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ProjectReportSpec {
    pub project: String,
    /// Guaranteed GPUs.
    pub quota: i64,
    /// Most GPUs at once; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub department: Option<String>,
    /// GPUs in use, in all namespaces of the project.
    pub used: i64,
    /// The part of `used` that is over quota.
    pub over_quota: i64,
    /// Running workloads.
    pub running: i64,
    /// Waiting workloads.
    pub waiting: i64,
    /// Memory of the GPU that amounts count in.
    pub gpu_memory_bytes: i64,
    /// Why Kueue admits nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive: Option<String>,
    /// Allocated GPU time of the last days, the oldest first.
    #[serde(default)]
    pub days: Vec<DayReport>,
}

/// The GPU time of one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DayReport {
    /// The day in UTC, `2026-11-26`.
    pub day: String,
    /// Milliseconds of the GPU that amounts count in.
    pub allocated_gpu_ms: i64,
}

/// The definition that a cluster needs before there can be reports.
pub fn definition() -> CustomResourceDefinition {
    ProjectReport::crd()
}

/// Returns the reports of all namespaces; with rights in one namespace alone, those of the context's namespace.
///
/// # Errors
/// The caller may read neither, or the cluster has no reports.
pub async fn readable(client: &Client) -> Result<Vec<ProjectReport>, kube::Error> {
    match list_all(&Api::all(client.clone()), None).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            list_all(&Api::default_namespaced(client.clone()), None).await
        }
        listed => listed,
    }
}
