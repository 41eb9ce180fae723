//! Confirmation: a job gets its slices, and starts once a front end confirms it.
//!
//! For front ends to other queues: what a job runs may depend on where it runs, and the other side may have let it go while
//! it waited here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Container;

/// Body of `POST /v1/jobs/{job}/confirm`. Absent fields stay as submitted. Only the submitting user may change the
/// command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    /// The `attempt` to confirm. The daemon answers `conflict` if the job has been placed again since. Absent: any
    /// attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Variables added to the submitted environment; they take precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Labels added to the submitted labels; they take precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// State of a job's confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confirmation {
    /// The job has no slices yet.
    NotPlaced,
    /// The job has its slices and waits for the confirmation.
    Awaiting,
    /// The front end has confirmed the job for its present or last slices.
    Confirmed,
}
