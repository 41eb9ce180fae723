//! A claim: devices that another scheduler has allocated here, as the journal has it, and the validation of its
//! request.

use std::num::NonZeroU32;

use divvy_api::v1::{self, ClaimDevice, Error, ErrorCode, JobClaim};
use divvy_core::mig::MigProfileError;
use divvy_core::pinned::{AllocationError, Device};
use divvy_core::units::IdError;
use divvy_core::{Amount, Bytes, GpuUuid, Request};
use serde::{Deserialize, Serialize};

use crate::model::validate::limits::{CheckLimits as _, LONGEST_UID};
use crate::model::validate::{self, usage};

/// A claim, in the terms of the job that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub pods: Vec<String>,
    /// As they were asked for.
    pub devices: Vec<ClaimDevice>,
    /// The kernel's id of the boot in which it was made: nothing that uses it outlives that.
    pub boot: String,
}

impl Claim {
    /// Whether another body asks for the same, regardless of the current users.
    pub fn is_same_request(&self, other: &Self) -> bool {
        let said = |claim: &Self| (claim.namespace.clone(), claim.name.clone());
        said(self) == said(other) && self.devices == other.devices
    }

    /// `team/train`, as a job is called.
    pub fn label(&self) -> String {
        let label = format!("{}/{}", self.namespace, self.name);
        validate::truncate_name(&label).to_owned()
    }

    /// In the API's words.
    pub fn to_api(&self, cdi_device: String) -> JobClaim {
        JobClaim {
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            pods: self.pods.clone(),
            cdi_device,
        }
    }
}

/// A claim that was asked for, checked.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub claim: Claim,
    pub devices: Vec<Device>,
    /// For people: what is held is what the devices say.
    pub request: Request,
}

/// Reads the body of a claim that is asked for in this boot.
///
/// # Errors
/// [`ErrorCode::Usage`] if the body cannot be a claim.
pub fn parse(uid: &str, body: v1::Claim, boot: &str) -> Result<ClaimRequest, Error> {
    body.check_limits()?;
    let compute = match body.compute.as_deref() {
        None => divvy_core::Compute::default(),
        Some(text) => validate::compute(text)?,
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let ends_well = uid.ends_with(|last: char| last.is_ascii_alphanumeric());
    if uid.len() > LONGEST_UID || !uid.bytes().all(is_plain) || !ends_well {
        // A device's name of CDI has these rules.
        let rules = format!(
            "use 1 to {LONGEST_UID} letters, digits and `-._`, with a letter or digit at the end"
        );
        return Err(usage(format!("{uid:?}: not a valid UID of a claim")).hint(rules));
    }
    for (what, text) in [("namespace", &body.namespace), ("name", &body.name)] {
        if text.is_empty() || text.contains(char::is_control) {
            return Err(usage(format!("{text:?}: not a valid {what} of a claim")));
        }
    }
    let devices: Vec<Device> = body.devices.iter().map(device).collect::<Result<_, _>>()?;
    let amount = amount(&devices);
    if matches!(amount, Amount::Mig(_)) && compute != divvy_core::Compute::default() {
        return Err(usage(
            "MIG instances have their own compute units, so no compute mode applies",
        )
        .hint("leave `compute` out"));
    }
    Ok(ClaimRequest {
        request: Request {
            compute,
            ..amount.into()
        },
        devices,
        claim: Claim {
            uid: uid.to_owned(),
            namespace: body.namespace,
            name: body.name,
            pods: body.pods,
            devices: body.devices,
            boot: boot.to_owned(),
        },
    })
}

fn device(asked: &ClaimDevice) -> Result<Device, Error> {
    let wrong = |error: IdError| usage(error.to_string()).hint(error.hint());
    let gpu: GpuUuid = asked.gpu.parse().map_err(wrong)?;
    match (asked.memory_bytes, &asked.mig, asked.whole) {
        (Some(bytes), None, false) => Ok(Device::Part {
            gpu,
            memory: Bytes::new(bytes),
        }),
        (None, Some(instance), false) => Ok(Device::Instance {
            gpu,
            profile: instance
                .profile
                .parse()
                .map_err(|error: MigProfileError| usage(error.to_string()).hint(error.hint()))?,
            start: instance.start,
        }),
        (None, None, true) => Ok(Device::Whole { gpu }),
        _ => Err(usage(format!(
            "the device of {gpu} needs exactly one of memory_bytes, mig and whole"
        ))
        .hint("use several devices to claim several parts")),
    }
}

/// As near as an amount comes to it: of several, the first is told.
fn amount(devices: &[Device]) -> Amount {
    let count = u32::try_from(devices.len()).ok().and_then(NonZeroU32::new);
    match devices.first() {
        Some(Device::Part { memory, .. }) if *memory > Bytes::ZERO => Amount::Memory(*memory),
        Some(Device::Instance { profile, .. }) => Amount::Mig(*profile),
        _ => Amount::Whole(count.unwrap_or(NonZeroU32::MIN)),
    }
}

/// The error for devices that cannot be allocated.
pub fn refusal(misfit: &AllocationError) -> Error {
    let (code, hint) = match misfit {
        AllocationError::Nothing | AllocationError::Mixed | AllocationError::Conflict(_) => (
            ErrorCode::Usage,
            "request at least one device, all of one kind, that fit together",
        ),
        AllocationError::NoGpu(_) => (ErrorCode::NotFound, "list the GPUs: divvy gpus -o wide"),
        AllocationError::Never { .. } => (
            ErrorCode::NeverFits,
            "list what is available: GET /v1/gpus and GET /v1/gpus/{gpu}/placements",
        ),
        AllocationError::Unavailable { .. } => (
            ErrorCode::WouldWait,
            "nothing was allocated; try again when other jobs or claims have released their devices",
        ),
    };
    Error::new(code, misfit.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::validate::limits::MOST_DEVICES;

    const GPU: &str = "GPU-01010101-0101-0101-0101-010101010101";

    fn body(devices: Vec<ClaimDevice>) -> v1::Claim {
        v1::Claim {
            namespace: "team".into(),
            name: "train".into(),
            pods: Vec::new(),
            devices,
            compute: None,
        }
    }

    #[test]
    fn a_body_becomes_devices_and_an_amount_for_people() {
        let gpu: GpuUuid = GPU.parse().unwrap();
        for (device, exact, amount) in [
            (
                ClaimDevice::part(GPU, 1 << 30),
                Device::Part {
                    gpu: gpu.clone(),
                    memory: Bytes::gib(1),
                },
                "1GiB",
            ),
            (
                ClaimDevice::instance(GPU, "1g.5gb", 3),
                Device::Instance {
                    gpu: gpu.clone(),
                    profile: "1g.5gb".parse().unwrap(),
                    start: 3,
                },
                "1g.5gb",
            ),
            (
                ClaimDevice::whole(GPU),
                Device::Whole { gpu: gpu.clone() },
                "1",
            ),
        ] {
            let asked = parse("u-1", body(vec![device]), "boot").unwrap();
            assert_eq!(asked.devices, [exact]);
            assert_eq!(asked.request.amount.to_string(), amount);
            assert_eq!(asked.claim.label(), "team/train");
        }
    }

    #[test]
    fn what_no_claim_can_look_like_is_a_wrong_call() {
        let part = || ClaimDevice::part(GPU, 1 << 30);
        let both = ClaimDevice {
            whole: true,
            ..part()
        };
        let neither = ClaimDevice {
            memory_bytes: None,
            ..part()
        };
        let compute = |text: &str, device| v1::Claim {
            compute: Some(text.into()),
            ..body(vec![device])
        };
        let unnamed = v1::Claim {
            name: String::new(),
            ..body(vec![part()])
        };
        for (uid, body) in [
            ("", body(vec![part()])),
            ("a/b", body(vec![part()])),
            ("a.", body(vec![part()])),
            ("u", unnamed),
            ("u", body(vec![both])),
            ("u", body(vec![neither])),
            ("u", body(vec![ClaimDevice::part("0", 1)])),
            ("u", body(vec![ClaimDevice::instance(GPU, "1g", 0)])),
            ("u", body(vec![part(); MOST_DEVICES + 1])),
            ("u", compute("often", part())),
            (
                "u",
                compute("none", ClaimDevice::instance(GPU, "1g.5gb", 0)),
            ),
        ] {
            let error = parse(uid, body, "boot").unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{error}");
        }
    }

    #[test]
    fn the_users_of_a_claim_do_not_make_it_another() {
        let claim = |pods: &[&str], bytes| {
            let body = v1::Claim {
                pods: pods.iter().map(ToString::to_string).collect(),
                ..body(vec![ClaimDevice::part(GPU, bytes)])
            };
            parse("u", body, "boot").unwrap().claim
        };
        assert!(claim(&["a"], 1).is_same_request(&claim(&["a", "b"], 1)));
        assert!(!claim(&["a"], 1).is_same_request(&claim(&["a"], 2)));
    }
}
