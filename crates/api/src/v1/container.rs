//! Containers: options of a job in a container, and the options that bring a container into a slice.

use serde::{Deserialize, Serialize};

/// The container that a job's command runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Container {
    /// Image name as the container engine knows it: `nvidia/cuda:12.3.2-base-ubuntu22.04`.
    pub image: String,
    /// Flags of `docker run`, one word each. The daemon refuses flags that would let the container leave its slice.
    /// It moves variables to the job's environment.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Process that starts the container itself, with the answer of `GET /v1/jobs/{job}/docker`. The job lives as
    /// long as that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starter: Option<Starter>,
    /// Whether the container runs as its submitter, by the daemon's roles. The daemon sets it; a submission cannot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_submitter: bool,
}

/// A process of this machine that starts a container of its own in a job's slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Starter {
    pub pid: u32,
    /// Start time in clock ticks since boot, which the daemon reads from the kernel.
    #[serde(default)]
    pub start_time: Option<u64>,
}

/// Answer of `GET /v1/jobs/{job}/docker`: the options that bring a container into the job's slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DockerArgs {
    pub job: String,
    /// Flags of `docker run`, one word each.
    pub flags: Vec<String>,
    /// Name of the same device in the Container Device Interface (CDI).
    pub cdi_device: String,
    /// Content of the CDI file that defines the device.
    pub cdi: serde_json::Value,
}
