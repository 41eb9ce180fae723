//! Claims: exact parts of GPUs, MIG instances or whole GPUs that another scheduler has allocated, held here until
//! their release.
//!
//! A claim is a job that has no program: others start theirs in its slice, by the CDI device that the answer names.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{JobState, Slice};

/// Body of `PUT /v1/claims/{uid}`. Repeating a call changes only the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Namespace and name in the other scheduler.
    pub namespace: String,
    pub name: String,
    /// UIDs of the pods that use the claim, for display.
    #[serde(default)]
    pub pods: Vec<String>,
    /// Devices, at least one. Parts of the same GPU are added up.
    pub devices: Vec<ClaimDevice>,
    /// Division of compute time, as in a submission: `fair`, `strict=0.25`, `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
}

/// One device of a claim. Exactly one of `memory_bytes`, `mig` and `whole` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimDevice {
    /// UUID of the GPU.
    pub gpu: String,
    /// Memory on a shared GPU in bytes, rounded up to 2 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// A MIG instance of a GPU in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<ClaimInstance>,
    /// The whole GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// A MIG instance at a fixed place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimInstance {
    /// `1g.10gb`.
    pub profile: String,
    /// First memory slice of the instance.
    pub start: u8,
}

impl ClaimDevice {
    /// Returns a device with this much memory of a shared GPU.
    pub fn part(gpu: impl Into<String>, memory_bytes: u64) -> Self {
        Self {
            memory_bytes: Some(memory_bytes),
            ..Self::of(gpu)
        }
    }

    /// Returns an instance of this profile at this memory slice.
    pub fn instance(gpu: impl Into<String>, profile: impl Into<String>, start: u8) -> Self {
        let profile = profile.into();
        Self {
            mig: Some(ClaimInstance { profile, start }),
            ..Self::of(gpu)
        }
    }

    /// Returns a whole GPU.
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

/// A claim that the daemon holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HeldClaim {
    pub uid: String,
    /// Number of the job that stands for the claim.
    pub job: String,
    /// `starting` while the daemon makes files or instances, `running` once they exist, `stopping` while processes
    /// remain after the release, `ended` once nothing is held.
    pub state: JobState,
    /// CDI device that brings a container into the slices: `divvy.dev/slice=…`, one for the whole claim.
    pub cdi_device: String,
    pub namespace: String,
    pub name: String,
    pub pods: Vec<String>,
    /// The devices as requested.
    pub devices: Vec<ClaimDevice>,
    /// The slices that the claim holds.
    pub slices: Vec<Slice>,
    /// Number of the claim's processes that use a GPU now.
    pub processes: u32,
    /// Problem with the claim, such as a lost GPU. The claim stays held.
    #[serde(default)]
    pub problem: Option<String>,
    pub since: Timestamp,
}

/// The claim that a job stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobClaim {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub pods: Vec<String>,
    pub cdi_device: String,
}

/// A slot on a GPU in MIG mode that can hold an instance, whether or not it is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigPlacement {
    /// `1g.10gb`.
    pub profile: String,
    /// Number of the profile in the driver.
    pub profile_id: u32,
    pub memory_bytes: u64,
    /// First memory slice of the slot.
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
