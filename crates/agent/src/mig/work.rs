//! What is done to a GPU, step by step: making an instance, looking whether one is clean, destroying one.
//!
//! Whoever calls holds the GPU's lock, and has written down what it is about to do.

use std::time::Duration;

use divvy_core::Bytes;
use divvy_core::mig::{MigUuidError, Placement};
use divvy_driver::nvml::Device;
use divvy_driver::nvml::mig::{self as nvml, ComputeInstance, GpuInstance, Refusal};

use super::Made;
use crate::failpoint::reach;
use crate::supervise::chain;

/// A GPU instance is in use for about a second after its compute instance was destroyed, as NVIDIA's DRA driver found, which tries
/// again as well: twice that, in short steps.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Why an instance is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nothing of it is there.
    #[error("{what}: {hint}")]
    Refused {
        refusal: Option<Refusal>,
        what: String,
        hint: &'static str,
    },
    /// Something of it is there, and cannot be destroyed.
    #[error("{0}")]
    Stuck(String),
}

impl Failure {
    fn refused(error: &divvy_driver::Error) -> Self {
        let refusal = error.refusal();
        Self::Refused {
            refusal,
            what: error.to_string(),
            hint: refusal.map_or("the driver says no more", Refusal::hint),
        }
    }

    fn stuck(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Stuck(chain(error))
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
        let finals = [Refusal::NoPermission, Refusal::NotSupported];
        matches!(self, Self::Refused { refusal: Some(refusal), .. } if finals.contains(refusal))
    }

    /// Whether somebody else is in the way.
    pub fn is_in_use(&self) -> bool {
        let in_use = Some(Refusal::InUse);
        matches!(self, Self::Refused { refusal, .. } if *refusal == in_use)
    }
}

/// Makes an instance: `size` memory slices at the placement, and all of it as one device.
pub fn make(gpu: &Device<'_>, placement: Placement, size: u8) -> Result<Made, Failure> {
    reach("mig.create.begin");
    let at = nvml::Placement {
        start: placement.start.into(),
        size: size.into(),
    };
    let instance = gpu
        .create_gpu_instance(placement.profile, at)
        .map_err(|error| Failure::refused(&error))?;
    reach("mig.create.gi");
    let made = fill(&instance);
    match made {
        Ok(made) => Ok(made),
        // Half of it is of no use to anybody.
        Err(error) => match clear(&instance) {
            Ok(()) => Err(error),
            Err(left) => Err(Failure::Stuck(format!("{error}; {left}"))),
        },
    }
}

fn fill(instance: &GpuInstance<'_>) -> Result<Made, Failure> {
    let refused = |error: divvy_driver::Error| Failure::refused(&error);
    let compute = instance.create_full_compute_instance().map_err(refused)?;
    reach("mig.create.ci");
    let info = compute.info().map_err(refused)?;
    let memory = compute.device().and_then(|device| device.memory());
    Ok(Made {
        id: instance.info().map_err(refused)?.id,
        compute: info.id,
        uuid: info
            .uuid
            .parse()
            .map_err(|error: MigUuidError| Failure::stuck(&error))?,
        baseline: Bytes::new(memory.map_err(refused)?.used),
    })
}

/// Destroys what lies at the placement; what is not there need not be. `made`: what it was when it was made, if it ever was: what
/// is another is left alone.
pub fn unmake(gpu: &Device<'_>, placement: Placement, made: Option<&Made>) -> Result<(), Failure> {
    reach("mig.destroy.begin");
    let Some((instance, id)) = find(gpu, placement)? else {
        return Ok(());
    };
    if made.is_some_and(|made| made.id != id) {
        return Ok(());
    }
    clear(&instance)
}

/// Destroys an instance and what is in it, unless it is used.
fn clear(instance: &GpuInstance<'_>) -> Result<(), Failure> {
    let computes = instance
        .compute_instances()
        .map_err(|error| Failure::stuck(&error))?;
    for (compute, info) in computes {
        let pids = pids(&compute)?;
        if !pids.is_empty() {
            let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>();
            let (uuid, pids) = (info.uuid, pids.join(", "));
            return Err(Failure::Stuck(format!("pid {pids} is in {uuid}")));
        }
        patiently(|| compute.destroy())?;
    }
    reach("mig.destroy.ci");
    patiently(|| instance.destroy())?;
    reach("mig.destroy.gi");
    Ok(())
}

/// Tries again while it is in use. What is gone is as good as destroyed.
fn patiently(destroy: impl Fn() -> Result<(), divvy_driver::Error>) -> Result<(), Failure> {
    for _ in 1..TRIES {
        match destroy() {
            Err(error) if error.refusal() == Some(Refusal::InUse) => std::thread::sleep(PAUSE),
            Err(error) if error.refusal() == Some(Refusal::Gone) => return Ok(()),
            done => return done.map_err(|error| Failure::stuck(&error)),
        }
    }
    destroy().map_err(|error| match error.refusal() {
        Some(refusal) => Failure::Stuck(format!("{error}; {}", refusal.hint())),
        None => Failure::stuck(&error),
    })
}

/// Whether an instance is as it was when it was made: the same, nobody in it, and nothing left in its memory.
pub fn is_clean(gpu: &Device<'_>, placement: Placement, made: &Made) -> Result<bool, Failure> {
    let Some((instance, id)) = find(gpu, placement)? else {
        return Ok(false);
    };
    let computes = instance
        .compute_instances()
        .map_err(|error| Failure::stuck(&error))?;
    let [(compute, info)] = &computes[..] else {
        return Ok(false);
    };
    if id != made.id || info.uuid != made.uuid.as_str() || !pids(compute)?.is_empty() {
        return Ok(false);
    }
    let memory = compute.device().and_then(|device| device.memory());
    Ok(memory.is_ok_and(|memory| memory.used <= made.baseline.get()))
}

fn pids(compute: &ComputeInstance<'_>) -> Result<Vec<u32>, Failure> {
    let processes = compute.device().and_then(|device| device.processes());
    let processes = processes.map_err(|error| Failure::stuck(&error))?;
    Ok(processes.iter().map(|process| process.pid).collect())
}

fn find<'a>(
    gpu: &Device<'a>,
    placement: Placement,
) -> Result<Option<(GpuInstance<'a>, u32)>, Failure> {
    let instances = gpu
        .gpu_instances()
        .map_err(|error| Failure::stuck(&error))?;
    let there = instances.into_iter().find(|(_, info)| {
        info.profile == placement.profile && info.placement.start == u32::from(placement.start)
    });
    Ok(there.map(|(instance, info)| (instance, info.id)))
}

/// Turns MIG on or off, and says how it is then: the driver may have taken the order and not done it.
pub fn set_mode(
    gpu: &Device<'_>,
    on: bool,
) -> Result<(nvml::Activation, Option<nvml::MigMode>), Failure> {
    let refused = |error: divvy_driver::Error| Failure::refused(&error);
    reach("mig.mode.begin");
    let mode = gpu.mig_mode().map_err(refused)?;
    if mode.is_some_and(|mode| mode.current == on && mode.pending == on) {
        return Ok((nvml::Activation::Done, mode));
    }
    let activation = gpu.set_mig_mode(on).map_err(refused)?;
    reach("mig.mode.set");
    if activation == nvml::Activation::InUse {
        // It would come true at some later reset, when nobody thinks of it any more.
        gpu.set_mig_mode(!on).map_err(refused)?;
    }
    Ok((activation, gpu.mig_mode().map_err(refused)?))
}
