//! Claims: exact parts of GPUs, MIG instances or whole GPUs that another scheduler has given to somebody, held here until they are
//! given back.
//!
//! A claim is a job that has no program: others start theirs in its slice, by the CDI device that the answer names.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{JobState, Slice};

/// `PUT /v1/claims/{uid}`: the same again changes nothing but the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Whose it is, as the other scheduler says it.
    pub namespace: String,
    pub name: String,
    /// Uids of the pods that use it: for people.
    #[serde(default)]
    pub pods: Vec<String>,
    /// At least one. Parts of the same GPU are added up.
    pub devices: Vec<ClaimDevice>,
    /// How compute time is divided, as in a submission: `fair`, `strict=0.25`, `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
}

/// One device of a claim, exactly: of `memory_bytes`, `mig` and `whole` it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimDevice {
    /// The GPU's UUID.
    pub gpu: String,
    /// A part of a shared GPU; rounded up to 2 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// A MIG instance of a GPU in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<ClaimInstance>,
    /// All of the GPU, and nobody beside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// A MIG instance by its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimInstance {
    /// `1g.10gb`.
    pub profile: String,
    /// The memory slice that it begins at.
    pub start: u8,
}

impl ClaimDevice {
    /// So much memory of a shared GPU.
    pub fn part(gpu: impl Into<String>, memory_bytes: u64) -> Self {
        Self {
            memory_bytes: Some(memory_bytes),
            ..Self::of(gpu)
        }
    }

    /// An instance of this profile at this memory slice.
    pub fn instance(gpu: impl Into<String>, profile: impl Into<String>, start: u8) -> Self {
        let profile = profile.into();
        Self {
            mig: Some(ClaimInstance { profile, start }),
            ..Self::of(gpu)
        }
    }

    /// All of a GPU.
    pub fn whole(gpu: impl Into<String>) -> Self {
        Self {
            whole: true,
            ..Self::of(gpu)
        }
    }

    fn of(gpu: impl Into<String>) -> Self {
        Self {
            gpu: gpu.into(),
            memory_bytes: None,
            mig: None,
            whole: false,
        }
    }
}

/// A claim that is held.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HeldClaim {
    pub uid: String,
    /// Number of the job that it is here.
    pub job: String,
    /// `starting` while its files or instances are being made, `running` once they are there, `stopping` while something of it is left
    /// after it was given back, `ended` once it holds nothing.
    pub state: JobState,
    /// What brings a container into its slice: `divvy.dev/slice=…`. One for the whole claim.
    pub cdi_device: String,
    pub namespace: String,
    pub name: String,
    pub pods: Vec<String>,
    /// As they were asked for.
    pub devices: Vec<ClaimDevice>,
    /// What it holds.
    pub slices: Vec<Slice>,
    /// How many processes of it use a GPU now.
    pub processes: u32,
    /// What is the matter with it: a GPU of it is lost. It is held all the same.
    #[serde(default)]
    pub problem: Option<String>,
    pub since: Timestamp,
}

/// What a job that is a claim is the claim of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobClaim {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub pods: Vec<String>,
    pub cdi_device: String,
}

/// A place on a GPU in MIG mode where an instance may lie, whatever lies there now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigPlacement {
    /// `1g.10gb`.
    pub profile: String,
    /// The driver's number of it.
    pub profile_id: u32,
    pub memory_bytes: u64,
    /// The memory slice that it begins at.
    pub start: u8,
    pub memory_slices: u8,
    pub compute_slices: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_with_what_it_is_and_nothing_else() {
        for (device, text) in [
            (
                ClaimDevice::part("GPU-1", 1 << 30),
                r#"{"gpu":"GPU-1","memory_bytes":1073741824}"#,
            ),
            (
                ClaimDevice::instance("GPU-1", "1g.10gb", 3),
                r#"{"gpu":"GPU-1","mig":{"profile":"1g.10gb","start":3}}"#,
            ),
            (
                ClaimDevice::whole("GPU-1"),
                r#"{"gpu":"GPU-1","whole":true}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&device).unwrap(), text);
            assert_eq!(serde_json::from_str::<ClaimDevice>(text).unwrap(), device);
        }
        assert!(serde_json::from_str::<ClaimDevice>(r#"{"gpu":"GPU-1","all":true}"#).is_err());
    }
}
