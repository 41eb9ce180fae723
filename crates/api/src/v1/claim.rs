//! Claims: exact parts of GPUs, MIG instances or whole GPUs that another scheduler has allocated, held here until
//! their release.
//!
//! A claim is a job that has no program: others start theirs in its slice, by the CDI device that the answer names, or
//! with `divvy slice enter`. A claim without a namespace is a slice of `divvy slice`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{JobState, Slice};

/// Body of `PUT /v1/claims/{uid}`. Repeating a call changes only the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Namespace in the other scheduler. A slice of `divvy slice` has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name in the other scheduler; without a namespace, the claim's uid if it is left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// UIDs of the pods that use the claim, for display.
    #[serde(default)]
    pub pods: Vec<String>,
    /// Devices, at least one. Parts of the same GPU are added up.
    pub devices: Vec<ClaimDevice>,
    /// Division of compute time, as in a submission: `fair`, `strict=0.25`, `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// The user that the claim counts for, by name or uid. Processes of this user are the claim's own, and this user may
    /// release it [default: the caller].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The event that releases the claim, besides a call; only without a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<ClaimEnd>,
}

/// The event that releases a claim. Exactly one of `pid` and `cgroup` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimEnd {
    /// The end of this process, by its pid where the daemon runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When that process started, in clock ticks since boot (field 22 of `/proc/PID/stat`)
    /// [default: as the daemon finds it].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
    /// Whether the claim counts as cancelled when the process ends before a call has released it. Only with `pid`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancels: bool,
    /// The removal of this control group, by its folder below `/sys/fs/cgroup`. It may appear up to 5 minutes later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

impl ClaimEnd {
    /// Returns the end with the process that has this pid now, or with this start time.
    pub fn with_process(pid: u32, start_time: Option<u64>) -> Self {
        Self {
            pid: Some(pid),
            start_time,
            ..Self::default()
        }
    }

    /// Returns an end that cancels the claim, in place of releasing it.
    #[must_use]
    pub fn cancelling(self, cancels: bool) -> Self {
        Self { cancels, ..self }
    }

    /// Returns the end with the removal of a control group.
    pub fn with_cgroup(folder: impl Into<String>) -> Self {
        Self {
            cgroup: Some(folder.into()),
            ..Self::default()
        }
    }
}

/// One device of a claim. Exactly one of `memory_bytes`, `share`, `mig` and `whole` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimDevice {
    /// UUID or index of the GPU; in answers the UUID.
    pub gpu: String,
    /// Memory on a shared GPU in bytes, rounded up to 2 MiB. Answers have it beside a share as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Part of a shared GPU in thousandths, 1 to 999, with that part of its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u16>,
    /// A MIG instance of a GPU in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<ClaimInstance>,
    /// The whole GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// A MIG instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimInstance {
    /// `1g.10gb`.
    pub profile: String,
    /// First memory slice of the instance [default: Divvy chooses].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u8>,
}

impl ClaimDevice {
    /// Returns a device with this much memory of a shared GPU.
    pub fn part(gpu: impl Into<String>, memory_bytes: u64) -> Self {
        Self {
            memory_bytes: Some(memory_bytes),
            ..Self::of(gpu)
        }
    }

    /// Returns this part of a shared GPU, in thousandths.
    pub fn share(gpu: impl Into<String>, thousandths: u16) -> Self {
        Self {
            share: Some(thousandths),
            ..Self::of(gpu)
        }
    }

    /// Returns an instance of this profile at this memory slice.
    pub fn instance(gpu: impl Into<String>, profile: impl Into<String>, start: u8) -> Self {
        Self {
            mig: Some(ClaimInstance {
                profile: profile.into(),
                start: Some(start),
            }),
            ..Self::of(gpu)
        }
    }

    /// Returns an instance of this profile, wherever it fits.
    pub fn profile(gpu: impl Into<String>, profile: impl Into<String>) -> Self {
        Self {
            mig: Some(ClaimInstance {
                profile: profile.into(),
                start: None,
            }),
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
            share: None,
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
    /// The user that the claim counts for.
    #[serde(default)]
    pub owner: String,
    pub pods: Vec<String>,
    /// The event that releases the claim, besides a call.
    #[serde(default)]
    pub ends: Option<ClaimEnd>,
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
    /// The event that releases the claim, besides a call.
    #[serde(default)]
    pub ends: Option<ClaimEnd>,
}

/// Bytes of a claim's uid, and so of a slice's name; a uid of Kubernetes has 36 (RFC 9562).
pub const LONGEST_UID: usize = 64;

/// Whether a text can be the uid of a claim. The name of a CDI device has these rules (CDI specification, "name").
pub fn is_uid(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.len() <= LONGEST_UID
        && text.bytes().all(is_plain)
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
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
    fn a_uid_is_short_plain_text_with_a_letter_or_digit_at_its_end() {
        for good in ["7", "slurm-123", "a.b_c-9", "-1", &"x".repeat(LONGEST_UID)] {
            assert!(is_uid(good), "{good}");
        }
        for bad in [
            "",
            "a/b",
            "a.",
            "..",
            "ü",
            "a b",
            "a\n",
            &"x".repeat(LONGEST_UID + 1),
        ] {
            assert!(!is_uid(bad), "{bad}");
        }
    }

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
            (ClaimDevice::share("0", 250), r#"{"gpu":"0","share":250}"#),
            (
                ClaimDevice::profile("GPU-1", "1g.10gb"),
                r#"{"gpu":"GPU-1","mig":{"profile":"1g.10gb"}}"#,
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
