//! What was had of the GPUs, and what was used.

use serde::{Deserialize, Serialize};

/// `GET /v1/usage`. GPU time is in milliseconds of a whole GPU: a quarter for four seconds is 1000. `allocated` is `used` less
/// `loaned`, plus `idle`, plus `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Absent, as all of these, where rows are not put together by it.
    pub user: Option<String>,
    /// Absent too for jobs of no project.
    pub project: Option<String>,
    pub queue: Option<String>,
    pub gpu_index: Option<u32>,
    pub gpu_uuid: Option<String>,
    pub job: Option<String>,
    /// The job's name.
    pub name: Option<String>,
    /// How many different jobs.
    pub jobs: u64,
    /// Held: nobody else could have it promised.
    pub allocated_gpu_ms: u64,
    /// In which a kernel of theirs ran, by the driver's samples.
    pub used_gpu_ms: u64,
    /// Of what was used, what was beyond their shares.
    pub loaned_gpu_ms: u64,
    /// Of their shares, what was measured and not used.
    pub idle_gpu_ms: u64,
    /// Of their shares, what nobody measured.
    pub unknown_gpu_ms: u64,
    /// Of what was allocated, what was held while they were suspended.
    pub suspended_gpu_ms: u64,
    /// Memory that was held, in MiB times seconds.
    pub memory_mib_s: u64,
}
