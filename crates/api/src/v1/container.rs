//! Jobs in containers: what they ask for, and what is added to a container for a slice.

use serde::{Deserialize, Serialize};

/// The container that a job's command runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Container {
    /// As the container engine knows it: `nvidia/cuda:12.3.2-base-ubuntu22.04`.
    pub image: String,
    /// Flags of `docker run`, as words. What would let the container out of its slice is refused; variables are taken out of here
    /// and kept with the job's environment.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Somebody else starts it, with what `GET /v1/jobs/{job}/docker` says: who does. The job lives as long as that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starter: Option<Starter>,
}

/// A process of this machine that is to start a container of its own in a job's slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Starter {
    pub pid: u32,
    /// In clock ticks since boot; the agent looks it up.
    #[serde(default)]
    pub start_time: Option<u64>,
}

/// `GET /v1/jobs/{job}/docker`: what brings a container into the job's slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DockerArgs {
    pub job: String,
    /// Flags of `docker run`, one a word.
    pub flags: Vec<String>,
    /// The same as a device of the Container Device Interface: its name.
    pub cdi_device: String,
    /// And the file that defines it.
    pub cdi: serde_json::Value,
}
