//! A claim: devices that another scheduler has allocated here, as the journal has it, and the validation of its
//! request.

pub mod devices;
pub mod end;

use divvy_api::v1::claim::{LONGEST_UID, is_uid};
use divvy_api::v1::{self, ClaimDevice, Error, ErrorCode, JobClaim};
use divvy_core::pinned::{AllocationError, PinnedConstraint};
use divvy_core::{Amount, Compute, GpuUuid};
use serde::{Deserialize, Serialize};

use self::end::End;
use crate::model::validate::limits::CheckLimits as _;
use crate::model::validate::{self, usage};

/// A claim, in the terms of the job that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub pods: Vec<String>,
    /// As they were asked for, with UUIDs. Those that are held have their memory and their starts besides.
    pub devices: Vec<ClaimDevice>,
    /// What releases it besides a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<End>,
    /// Uid of the user that created it, where that is not the owner: another scheduler, which alone releases it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maker: Option<u32>,
    /// The kernel's id of the boot in which it was made: nothing that uses it outlives that.
    pub boot: String,
}

impl Claim {
    /// Whether another request asks for what is held, regardless of the current users.
    pub fn is_met_by(&self, held: &Self) -> bool {
        let named = |claim: &Self| (claim.namespace.clone(), claim.name.clone());
        named(self) == named(held)
            && devices::are_met_by(&self.devices, &held.devices)
            && match (&self.ends, &held.ends) {
                (None, None) => true,
                (Some(asked), Some(held)) => asked.is_same(held),
                _ => false,
            }
    }

    /// Whether it is a slice of `divvy slice`, and not a claim of a scheduler with namespaces.
    pub fn is_slice(&self) -> bool {
        self.namespace.is_empty()
    }

    /// `team/train`, as a job is called; a slice has its own name.
    pub fn label(&self) -> String {
        if self.is_slice() {
            return validate::truncate_name(&self.name).to_owned();
        }
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
            ends: self.ends.as_ref().map(End::to_api),
        }
    }
}

/// A claim that was asked for, checked. Shares and starts of instances are not resolved yet.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub claim: Claim,
    /// For users: what is held is what the devices say.
    pub amount: Amount,
    pub compute: Compute,
}

/// Reads the body of a claim that is asked for in this boot. `uuid_of` finds the GPU with an index.
///
/// # Errors
/// [`ErrorCode::Usage`] if the body cannot be a claim, [`ErrorCode::NotFound`] if it names an index without a GPU.
pub fn parse(
    uid: &str,
    mut body: v1::Claim,
    boot: &str,
    uuid_of: impl Fn(u32) -> Option<GpuUuid>,
) -> Result<ClaimRequest, Error> {
    body.check_limits()?;
    let compute = match body.compute.as_deref() {
        None => Compute::default(),
        Some(text) => validate::compute(text)?,
    };
    if !is_uid(uid) {
        let rules = format!(
            "use 1 to {LONGEST_UID} letters, digits and `-._`, with a letter or digit at the end"
        );
        let shown = validate::truncate_name(uid);
        return Err(usage(format!("{shown:?}: not a valid UID of a claim")).hint(rules));
    }
    let is_slice = body.namespace.is_empty();
    if is_slice && body.name.is_empty() {
        uid.clone_into(&mut body.name);
    }
    for (what, text) in [("namespace", &body.namespace), ("name", &body.name)] {
        let may_be_empty = what == "namespace";
        if text.is_empty() && !may_be_empty || text.contains(char::is_control) {
            return Err(usage(format!("{text:?}: not a valid {what} of a claim")));
        }
    }
    if !is_slice && (body.ends.is_some() || body.owner.is_some()) {
        let why = "a claim with a namespace belongs to its scheduler, so it has no owner and no end of its own";
        return Err(usage(why).hint("leave out `namespace`, or `owner` and `ends`"));
    }
    for device in &mut body.devices {
        devices::check(device, &uuid_of)?;
    }
    let amount = devices::amount(&body.devices)?;
    if matches!(amount, Amount::Mig(_)) && compute != Compute::default() {
        return Err(usage(
            "MIG instances have their own compute units, so no compute mode applies",
        )
        .hint("leave the compute mode out"));
    }
    Ok(ClaimRequest {
        amount,
        compute,
        claim: Claim {
            uid: uid.to_owned(),
            namespace: body.namespace,
            name: body.name,
            pods: body.pods,
            devices: body.devices,
            ends: body.ends.as_ref().map(End::parse).transpose()?,
            maker: None,
            boot: boot.to_owned(),
        },
    })
}

/// The error for devices that cannot be allocated.
pub fn refusal(misfit: &AllocationError) -> Error {
    let (code, hint) = match misfit {
        AllocationError::Nothing | AllocationError::Mixed | AllocationError::Conflict(_) => (
            ErrorCode::Usage,
            "request at least one device, all of one kind, that fit together",
        ),
        AllocationError::NoGpu(_) => (ErrorCode::NotFound, "list the GPUs: divvy gpus -o wide"),
        AllocationError::Never {
            constraint: PinnedConstraint::OnlyMigInstances,
            ..
        } => (
            ErrorCode::NeverFits,
            "name a MIG instance of it, as in --mig-profile 1g.10gb; `divvy admin mig ls` lists instances",
        ),
        AllocationError::Never { .. } => (
            ErrorCode::NeverFits,
            "list the GPUs and their memory: divvy gpus -o wide",
        ),
        AllocationError::Unavailable { .. } => (
            ErrorCode::WouldWait,
            "nothing was allocated; try again when other jobs or claims have released their devices",
        ),
    };
    Error::new(code, misfit.to_string()).hint(hint)
}

/// The detail of [`contended`], for the client too.
const CONTENDED: &str = "contended";

/// The refusal while another daemon allocates a part of the same GPU.
pub fn contended() -> Error {
    let why = "another daemon of this machine is taking a part of the GPU now";
    Error::new(ErrorCode::WouldWait, why)
        .hint("try again in a moment")
        .details(serde_json::json!({ CONTENDED: true }))
}

/// Whether this is the refusal of [`contended`], which may be over in a moment.
pub fn is_contended(error: &Error) -> bool {
    error.details[CONTENDED] == true
}

#[cfg(test)]
mod tests;
