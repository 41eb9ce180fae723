//! MIG operations on a GPU, step by step: creating an instance, checking whether one is clean, destroying one.
//!
//! The caller holds the GPU's lock, and has journaled the operation.

use std::time::Duration;

use divvy_core::Bytes;
use divvy_core::mig::recover::Anomaly;
use divvy_core::mig::{MigUuidError, Placement};
use divvy_driver::nvml::Memory;
use divvy_driver::nvml::mig::{self as nvml, ComputeInstanceInfo, MigRefusal};

use super::driver::{Compute, Gpu, Instance};
use crate::host::clock::sleep;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::model::mig_instance::InstanceInfo;

/// A GPU instance is in use for about a second after its compute instance was destroyed, as NVIDIA's DRA driver found,
/// which tries again as well: twice that, in short steps.
const MAX_ATTEMPTS: u32 = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Why an instance is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum MigOpError {
    /// Nothing of it is there.
    #[error("{what}: {hint}")]
    Refused {
        refusal: Option<MigRefusal>,
        what: String,
        hint: &'static str,
    },
    /// Something of it is there, and cannot be destroyed.
    #[error("{0}")]
    Stuck(String),
}

impl MigOpError {
    fn refused(error: &divvy_driver::Error) -> Self {
        let refusal = error.refusal();
        Self::Refused {
            refusal,
            what: error.to_string(),
            hint: refusal.map_or("the driver gives no further reason", MigRefusal::hint),
        }
    }

    fn stuck(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Stuck(error_chain(error))
    }

    /// It happened before anything was done.
    pub fn before_anything(self) -> Self {
        match self {
            Self::Stuck(what) => Self::Refused {
                refusal: None,
                what,
                hint: "nothing was changed",
            },
            refused => refused,
        }
    }

    /// Whether it would be refused again however often it is tried.
    pub fn is_final(&self) -> bool {
        let finals = [MigRefusal::NoPermission, MigRefusal::NotSupported];
        matches!(self, Self::Refused { refusal: Some(refusal), .. } if finals.contains(refusal))
    }

    /// Whether another process is in the way.
    pub fn is_in_use(&self) -> bool {
        let in_use = Some(MigRefusal::InUse);
        matches!(self, Self::Refused { refusal, .. } if *refusal == in_use)
    }
}

/// Makes an instance: `size` memory slices at the placement, and all of it as one device.
pub fn create_instance(
    gpu: &dyn Gpu,
    placement: Placement,
    size: u8,
) -> Result<InstanceInfo, MigOpError> {
    reach("mig.create.begin");
    let at = nvml::Placement {
        start: placement.start.into(),
        size: size.into(),
    };
    let instance = gpu
        .create(placement.profile, at)
        .map_err(|error| MigOpError::refused(&error))?;
    reach("mig.create.gi");
    let compute = match instance.create_compute_instance() {
        Ok(compute) => compute,
        Err(error) => return Err(roll_back(&*instance, None, MigOpError::refused(&error))),
    };
    reach("mig.create.ci");
    made_of(&*instance, &*compute).map_err(|error| roll_back(&*instance, Some(&*compute), error))
}

/// Removes half of an instance, which is of no use, with the compute instance made in it and no other. Returns the
/// result.
fn roll_back(
    instance: &dyn Instance,
    compute: Option<&dyn Compute>,
    error: MigOpError,
) -> MigOpError {
    let emptied = compute.map_or(Ok(()), |compute| retry_while_in_use(|| compute.destroy()));
    match emptied.and_then(|()| retry_while_in_use(|| instance.destroy())) {
        Ok(()) => error,
        Err(left) => MigOpError::Stuck(format!("{error}; {left}")),
    }
}

fn made_of(instance: &dyn Instance, compute: &dyn Compute) -> Result<InstanceInfo, MigOpError> {
    let refused = |error: divvy_driver::Error| MigOpError::refused(&error);
    let info = compute.info().map_err(refused)?;
    let memory = compute.memory();
    Ok(InstanceInfo {
        id: instance.info().map_err(refused)?.id,
        compute_id: info.id,
        uuid: info
            .uuid
            .parse()
            .map_err(|error: MigUuidError| MigOpError::stuck(&error))?,
        baseline: Bytes::new(memory.map_err(refused)?.used),
    })
}

/// Destroys the instance at the placement; false if nothing of it was there. `made`: its identity when it was made, if
/// it ever was: another instance is left alone, and so is one that was divided by hand.
pub fn destroy_instance(
    gpu: &dyn Gpu,
    placement: Placement,
    made: Option<&InstanceInfo>,
) -> Result<bool, MigOpError> {
    reach("mig.destroy.begin");
    let Some(there) = find(gpu, placement)? else {
        return Ok(false);
    };
    if made.is_some_and(|made| made.id != there.id) {
        return Ok(false);
    }
    let inside = own_compute_instance(&*there.instance, there.slices, made)?;
    clear(&*there.instance, inside).map(|()| true)
}

type OwnCompute<'a> = (Box<dyn Compute + 'a>, ComputeInstanceInfo);

/// The compute instance that we made in an instance, if it is there. `slices`: how many compute slices it has, where
/// that is known. Its UUID says where it begins, and not how long it is (inferred).
///
/// # Errors
/// [`MigOpError::Stuck`] if there is another one, or more than one: its content is foreign then.
fn own_compute_instance<'a>(
    instance: &'a dyn Instance,
    slices: Option<u32>,
    made: Option<&InstanceInfo>,
) -> Result<Option<OwnCompute<'a>>, MigOpError> {
    let mut computes = instance
        .compute_instances()
        .map_err(|error| MigOpError::stuck(&error))?;
    let last = computes.pop();
    let ours = last.as_ref().is_none_or(|(_, info)| {
        computes.is_empty()
            && slices.is_none_or(|slices| info.placement.size >= slices)
            && made.is_none_or(|made| info.uuid == made.uuid.as_str())
    });
    match ours {
        true => Ok(last),
        false => Err(MigOpError::Stuck(Anomaly::Divided.describe().to_owned())),
    }
}

/// Destroys an instance and what of ours is in it, unless it is used.
fn clear(instance: &dyn Instance, inside: Option<OwnCompute<'_>>) -> Result<(), MigOpError> {
    if let Some((compute, info)) = inside {
        let pids = pids(&*compute)?;
        if !pids.is_empty() {
            let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>();
            let (uuid, pids) = (info.uuid, pids.join(", "));
            return Err(MigOpError::Stuck(format!("pid {pids} runs in {uuid}")));
        }
        retry_while_in_use(|| compute.destroy())?;
    }
    reach("mig.destroy.ci");
    retry_while_in_use(|| instance.destroy())?;
    reach("mig.destroy.gi");
    Ok(())
}

/// Tries again while it is in use. What is gone is as good as destroyed.
fn retry_while_in_use(
    destroy: impl Fn() -> Result<(), divvy_driver::Error>,
) -> Result<(), MigOpError> {
    for _ in 1..MAX_ATTEMPTS {
        match destroy() {
            Err(error) if error.refusal() == Some(MigRefusal::InUse) => sleep(RETRY_INTERVAL),
            Err(error) if error.refusal() == Some(MigRefusal::Gone) => return Ok(()),
            done => return done.map_err(|error| MigOpError::stuck(&error)),
        }
    }
    destroy().map_err(|error| match error.refusal() {
        Some(refusal) => MigOpError::Stuck(format!("{error}; {}", refusal.hint())),
        None => MigOpError::stuck(&error),
    })
}

/// Whether an instance is as it was when it was made: the same identity, no process, and nothing left in its memory.
///
/// # Errors
/// As `unmake`, where it is not for us to make it anew.
pub fn is_clean(
    gpu: &dyn Gpu,
    placement: Placement,
    made: &InstanceInfo,
) -> Result<bool, MigOpError> {
    let there = find(gpu, placement)?;
    let Some(there) = there.filter(|there| there.id == made.id) else {
        return Ok(false);
    };
    let Some((compute, _)) = own_compute_instance(&*there.instance, there.slices, Some(made))?
    else {
        return Ok(false);
    };
    if !pids(&*compute)?.is_empty() {
        return Ok(false);
    }
    let memory = compute.memory();
    Ok(is_empty(memory, made.baseline))
}

/// Whether the memory of an unused instance is empty. Unreadable memory counts as used.
fn is_empty<E>(memory: Result<Memory, E>, baseline: Bytes) -> bool {
    memory.is_ok_and(|memory| memory.used <= baseline.get())
}

fn pids(compute: &dyn Compute) -> Result<Vec<u32>, MigOpError> {
    let processes = compute.processes();
    let processes = processes.map_err(|error| MigOpError::stuck(&error))?;
    Ok(processes.iter().map(|process| process.pid).collect())
}

/// A GPU instance in its place.
struct FoundInstance<'a> {
    instance: Box<dyn Instance + 'a>,
    id: u32,
    /// Compute slices of its profile, where the driver describes that.
    slices: Option<u32>,
}

fn find<'a>(
    gpu: &'a dyn Gpu,
    placement: Placement,
) -> Result<Option<FoundInstance<'a>>, MigOpError> {
    let stuck = |error: divvy_driver::Error| MigOpError::stuck(&error);
    let profiles = gpu.profiles().map_err(stuck)?;
    let ids: Vec<u32> = profiles.iter().map(|(profile, _)| profile.id).collect();
    let instances = gpu.instances(&ids).map_err(stuck)?;
    let there = instances.into_iter().find(|(_, info)| {
        info.profile == placement.profile && info.placement.start == u32::from(placement.start)
    });
    let its = profiles
        .iter()
        .find(|(profile, _)| profile.id == placement.profile);
    Ok(there.map(|(instance, info)| FoundInstance {
        instance,
        id: info.id,
        slices: its.map(|(profile, _)| profile.slices),
    }))
}

/// Turns MIG on or off, and says how it is then: the driver may have accepted the call and not done it.
pub fn set_mode(
    gpu: &dyn Gpu,
    on: bool,
) -> Result<(nvml::Activation, Option<nvml::MigMode>), MigOpError> {
    let refused = |error: divvy_driver::Error| MigOpError::refused(&error);
    reach("mig.mode.begin");
    let mode = gpu.mig_mode().map_err(refused)?;
    if mode.is_some_and(|mode| mode.current == on && mode.pending == on) {
        return Ok((nvml::Activation::Done, mode));
    }
    let activation = gpu.set_mig_mode(on).map_err(refused)?;
    reach("mig.mode.set");
    if activation == nvml::Activation::InUse {
        // It would take effect at some later reset, long after the request.
        gpu.set_mig_mode(!on).map_err(refused)?;
    }
    Ok((activation, gpu.mig_mode().map_err(refused)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_left_or_cannot_be_read_makes_an_instance_unclean() {
        let used = |used: u64| {
            let total = 4864 << 20;
            Ok::<_, ()>(Memory {
                total,
                reserved: 0,
                used,
                free: total - used,
            })
        };
        let baseline = Bytes::mib(20);
        assert!(is_empty(used(20 << 20), baseline));
        assert!(is_empty(used(0), baseline));
        assert!(!is_empty(used((20 << 20) + 1), baseline));
        assert!(!is_empty(Err(()), baseline));
    }
}
