//! Actions on the jobs that a query selects: `PATCH /v1/jobs`.

use serde::{Deserialize, Serialize};

use super::{Error, Job};

/// An action on each selected job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobAction {
    Cancel,
    Requeue,
    Suspend,
    Resume,
    Hold,
    /// End a hold.
    Release,
}

/// Body of `PATCH /v1/jobs`. The daemon selects the jobs and acts on them in one step, so none of them changes in
/// between. Without `state` in the query the action selects the jobs that it can change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobsChange {
    pub action: JobAction,
    /// With `suspend`: as in the body of a single job's `suspend`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release_memory: bool,
    /// Change nothing, and answer with the jobs that would be selected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Select no other jobs than these numbers, at most 100,000: the jobs that a user has agreed to. Absent: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
}

/// Result of an action. A job that ended, or left its state, before the daemon decided is in neither list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobsChanged {
    /// Jobs that the action applied to, oldest first.
    pub jobs: Vec<Job>,
    /// Errors of the selected jobs that it did not apply to, oldest job first. Each message names its job.
    pub refused: Vec<Error>,
}
