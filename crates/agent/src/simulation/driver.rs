//! Simulated NVML: the MIG calls of a simulated machine, behind `crate::gpu::mig::driver`. Each may fail for a reason
//! of the driver's own, and between any two of them others may do something.

use std::path::Path;

use divvy_core::mig::Placement as Place;
use divvy_driver::Error;
use divvy_driver::nvml::memory_limits::MemoryLimits;
use divvy_driver::nvml::mig::{
    Activation, ComputeInstanceInfo, GpuInstanceInfo, GpuInstanceProfile, MigMode, Placement,
};
use divvy_driver::nvml::{Memory, Process};
use divvy_driver::sys::nvml::nvmlReturn_t;

use super::gpus::Health;
use super::mig::{BASELINE, SimGpuInstance, table};
use super::{World, with};
use crate::gpu::mig::driver::{self, Computes, Gpu, Instances};
use divvy_testkit::Rng;

/// A GPU, by its index.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedGpu(pub usize);

/// A handle of a GPU instance.
#[derive(Clone, Copy, Debug)]
struct Instance {
    gpu: usize,
    id: u32,
}

/// A handle of a compute instance: one that is made in its place has another.
#[derive(Clone, Copy, Debug)]
struct Compute {
    of: Instance,
    serial: u32,
}

/// Once in so many calls that change something the driver does not want to.
const UNWILLING: u64 = 24;

/// And once in so many that list something.
const UNREADABLE: u64 = 150;

/// Once in so many calls of a MIG worker another program acts first.
const MEDDLES: u64 = 60;

type Answer<T> = Result<T, nvmlReturn_t>;

/// A call: its function's name, and what it does to the machine.
fn call<T>(
    gpu: usize,
    function: &'static str,
    act: impl FnOnce(&mut World) -> Answer<T>,
) -> Result<T, Error> {
    let called = with(|world| {
        world.answers(gpu)?;
        if world.at_work && world.has_fault(MEDDLES) {
            let mut dice = Rng::new(world.luck.draw());
            world.meddles(gpu, &mut dice);
        }
        act(world)
    });
    called
        .expect("only a simulation asks")
        .map_err(|code| Error::Nvml {
            function,
            device: Some(format!("GPU {gpu}")),
            code,
            text: "simulated".to_owned(),
        })
}

fn info_of(id: u32, lies: &SimGpuInstance) -> GpuInstanceInfo {
    GpuInstanceInfo {
        id,
        profile: lies.placement.profile,
        placement: Placement {
            start: lies.placement.start.into(),
            size: lies.size.into(),
        },
    }
}

impl Gpu for SimulatedGpu {
    fn mig_mode(&self) -> Result<Option<MigMode>, Error> {
        let gpu = self.0;
        call(gpu, "nvmlDeviceGetMigMode", |world| {
            Ok(Some(world.divided[gpu].mode))
        })
    }

    fn set_mig_mode(&self, on: bool) -> Result<Activation, Error> {
        let gpu = self.0;
        call(gpu, "nvmlDeviceSetMigMode", |world| {
            let in_use = !world.holders(gpu).is_empty() || !world.divided[gpu].instances.is_empty();
            let needs_reset = world.has_fault(8);
            let mode = &mut world.divided[gpu].mode;
            mode.pending = on;
            if mode.current == on {
                return Ok(Activation::Done);
            }
            if in_use {
                return Ok(Activation::InUse);
            }
            if needs_reset {
                return Ok(Activation::ResetRequired);
            }
            mode.current = on;
            Ok(Activation::Done)
        })
    }

    fn profiles(&self) -> Result<Vec<(GpuInstanceProfile, Vec<Placement>)>, Error> {
        let gpu = self.0;
        call(gpu, "nvmlDeviceGetGpuInstanceProfileInfoV", |_| {
            let table = table();
            let profiles = (0..).zip(&table.profiles).map(|(number, profile)| {
                let info = GpuInstanceProfile {
                    number,
                    id: profile.id,
                    name: Some(profile.name.to_string()),
                    memory: profile.memory.get(),
                    slices: profile.compute_slices.into(),
                    multiprocessors: profile.multiprocessors,
                    most: profile.most.into(),
                    copy_engines: 1,
                    decoders: 0,
                    encoders: 0,
                    jpegs: 0,
                    ofas: 0,
                };
                let place = |start: &u8| Placement {
                    start: (*start).into(),
                    size: profile.memory_slices.into(),
                };
                (info, profile.starts.iter().map(place).collect())
            });
            Ok(profiles.collect())
        })
    }

    fn instances(&self, _: &[u32]) -> Result<Instances<'_>, Error> {
        let gpu = self.0;
        call(gpu, "nvmlDeviceGetGpuInstanceById", |world| {
            if world.has_fault(UNREADABLE) {
                return Err(nvmlReturn_t::UNKNOWN);
            }
            let all = world.divided[gpu].instances.iter();
            Ok(all
                .map(|(id, lies)| {
                    let instance: Box<dyn driver::Instance> = Box::new(Instance { gpu, id: *id });
                    (instance, info_of(*id, lies))
                })
                .collect())
        })
    }

    /// Nothing is made where there is no room, but for others' sake.
    fn create(&self, profile: u32, at: Placement) -> Result<Box<dyn driver::Instance + '_>, Error> {
        let gpu = self.0;
        call(gpu, "nvmlDeviceCreateGpuInstanceWithPlacement", |world| {
            if world.has_fault(UNWILLING) {
                return Err(nvmlReturn_t::IN_USE);
            }
            if !world.divided[gpu].mode.current {
                world.broken(format!(
                    "GPU {gpu} is to be divided, and is not in MIG mode"
                ));
                return Err(nvmlReturn_t::NOT_SUPPORTED);
            }
            let start = u8::try_from(at.start).map_err(|_| nvmlReturn_t::INVALID_ARGUMENT)?;
            let placement = Place { profile, start };
            if !world.divided[gpu].has_room(placement) {
                world.room_was_expected(gpu, placement);
                return Err(nvmlReturn_t::INSUFFICIENT_RESOURCES);
            }
            let made = world.divided[gpu].make(gpu, placement, true);
            let id = made.ok_or(nvmlReturn_t::NOT_SUPPORTED)?;
            Ok(Box::new(Instance { gpu, id }) as Box<dyn driver::Instance>)
        })
    }

    // A simulated machine has no control groups, and its driver is older than the limits of them.
    fn set_memory_limits(&self, _: &Path, _: MemoryLimits) -> Result<(), Error> {
        call(self.0, "nvmlDeviceSetMemoryLimits_v1", |_| {
            Err(nvmlReturn_t::NOT_SUPPORTED)
        })
    }

    fn memory_limits(&self, _: &Path) -> Result<MemoryLimits, Error> {
        call(self.0, "nvmlDeviceGetMemoryLimits_v1", |_| {
            Err(nvmlReturn_t::NOT_SUPPORTED)
        })
    }
}

impl driver::Instance for Instance {
    fn info(&self) -> Result<GpuInstanceInfo, Error> {
        let instance = *self;
        call(instance.gpu, "nvmlGpuInstanceGetInfo", |world| {
            Ok(info_of(instance.id, world.lies(instance)?))
        })
    }

    fn compute_instances(&self) -> Result<Computes<'_>, Error> {
        let instance = *self;
        let function = "nvmlGpuInstanceGetComputeInstanceById";
        call(instance.gpu, function, |world| {
            let lies = world.lies(instance)?;
            let serials = lies.computes.values().map(|part| part.serial);
            let all = serials.map(|serial| Compute {
                of: instance,
                serial,
            });
            all.map(|compute| {
                let info = world.compute(compute)?;
                Ok((Box::new(compute) as Box<dyn driver::Compute>, info))
            })
            .collect()
        })
    }

    fn create_compute_instance(&self) -> Result<Box<dyn driver::Compute + '_>, Error> {
        let instance = *self;
        let function = "nvmlGpuInstanceCreateComputeInstance";
        call(instance.gpu, function, |world| {
            if world.has_fault(UNWILLING) {
                return Err(nvmlReturn_t::INSUFFICIENT_RESOURCES);
            }
            world.lies(instance)?;
            let divided = &mut world.divided[instance.gpu];
            let serial = divided
                .fill(instance.id, 1)
                .ok_or(nvmlReturn_t::INSUFFICIENT_RESOURCES)?;
            Ok(Box::new(Compute {
                of: instance,
                serial,
            }) as Box<dyn driver::Compute>)
        })
    }

    fn destroy(&self) -> Result<(), Error> {
        let instance = *self;
        call(instance.gpu, "nvmlGpuInstanceDestroy", |world| {
            let lies = world.lies(instance)?;
            let (uuid, is_ours) = (lies.uuid.clone(), lies.is_ours || lies.is_made_by_us);
            if !lies.computes.is_empty() || lies.is_open || world.has_fault(UNWILLING) {
                return Err(nvmlReturn_t::IN_USE);
            }
            if !is_ours {
                world.broken(format!("{uuid} is somebody else's, and is destroyed"));
            }
            world.divided[instance.gpu].instances.remove(&instance.id);
            Ok(())
        })
    }
}

impl driver::Compute for Compute {
    fn info(&self) -> Result<ComputeInstanceInfo, Error> {
        let compute = *self;
        call(compute.of.gpu, "nvmlComputeInstanceGetInfo_v2", |world| {
            world.compute(compute)
        })
    }

    fn memory(&self) -> Result<Memory, Error> {
        let compute = *self;
        call(compute.of.gpu, "nvmlDeviceGetMemoryInfo_v2", |world| {
            world.compute(compute)?;
            let lies = world.lies(compute.of)?;
            let uuids = lies.computes.values().map(|part| &part.uuid);
            let held = uuids.flat_map(|uuid| world.inside(uuid).into_values());
            let (total, used) = (lies.memory.get(), BASELINE.get() + held.sum::<u64>());
            Ok(Memory {
                total,
                reserved: 0,
                used,
                free: total.saturating_sub(used),
            })
        })
    }

    fn processes(&self) -> Result<Vec<Process>, Error> {
        let compute = *self;
        let function = "nvmlDeviceGetComputeRunningProcesses_v3";
        call(compute.of.gpu, function, |world| {
            let uuid = world.part(compute)?.uuid.clone();
            let inside = world.inside(&uuid).into_iter();
            let process = |(pid, used)| Process {
                pid,
                used: Some(used),
            };
            Ok(inside.map(process).collect())
        })
    }

    /// A compute instance is destroyed.
    fn destroy(&self) -> Result<(), Error> {
        let compute = *self;
        let gpu = compute.of.gpu;
        call(gpu, "nvmlComputeInstanceDestroy", |world| {
            let part = world.part(compute)?;
            let (id, uuid, is_ours) = (part.id, part.uuid.clone(), part.is_ours);
            let is_used = !world.inside(&uuid).is_empty() || world.lies(compute.of)?.is_open;
            if is_used || world.has_fault(UNWILLING) {
                return Err(nvmlReturn_t::IN_USE);
            }
            if !is_ours {
                world.broken(format!(
                    "{uuid} was made by somebody else, and is destroyed"
                ));
            }
            if let Some(lies) = world.divided[gpu].instances.get_mut(&compute.of.id) {
                lies.computes.remove(&id);
            }
            Ok(())
        })
    }
}

impl World {
    fn answers(&self, gpu: usize) -> Answer<()> {
        match self.gpus[gpu] {
            Health::Lost => Err(nvmlReturn_t::GPU_IS_LOST),
            Health::Well if !self.driver_is_ill => Ok(()),
            _ => Err(nvmlReturn_t::UNKNOWN),
        }
    }

    fn lies(&self, instance: Instance) -> Answer<&SimGpuInstance> {
        let divided = &self.divided[instance.gpu];
        divided
            .instances
            .get(&instance.id)
            .ok_or(nvmlReturn_t::NOT_FOUND)
    }

    fn part(&self, compute: Compute) -> Answer<&super::mig::SimComputeInstance> {
        let mut parts = self.lies(compute.of)?.computes.values();
        parts
            .find(|part| part.serial == compute.serial)
            .ok_or(nvmlReturn_t::NOT_FOUND)
    }

    fn compute(&self, compute: Compute) -> Answer<ComputeInstanceInfo> {
        let part = self.part(compute)?;
        Ok(ComputeInstanceInfo {
            id: part.id,
            profile: 0,
            placement: Placement {
                start: part.start.into(),
                size: part.size.into(),
            },
            uuid: part.uuid.to_string(),
        })
    }
}
