//! Jobs that somebody else has the last word about: they get their slice, and start once that is confirmed.
//!
//! For front ends to other queues: what a job runs may depend on where it runs, and the other side may have let it go while
//! it waited here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Container;

/// `POST /v1/jobs/{job}/confirm`. What is left out stays as it was submitted. Only who submitted a job may change what it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    /// The job's `attempt` that is meant: refused with `conflict` if it has been placed again since. Absent: whichever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Besides the environment that was submitted, and before it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Besides the labels that were submitted, and before them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Where a job stands that is to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confirmation {
    /// It has no slice yet.
    NotPlaced,
    /// It has its slice, and waits for its confirmation.
    Awaiting,
    /// It was confirmed for the slice that it has, or had last.
    Confirmed,
}
