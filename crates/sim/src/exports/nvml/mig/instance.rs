//! MIG instances: creating, finding and destroying them. Each call stands alone, as in NVML; other processes may act in
//! between.

use super::{COMPUTE_INSTANCES, GpuInstanceRef, MigDevice, divided, refused, set_list};
use crate::engine::machine::opened::machine;
use crate::engine::mig::MigInstanceId;
use crate::exports::nvml::{Device, Done, out, to_handle};
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceCreateGpuInstance: (device, profile, instance) => create;
    nvmlDeviceCreateGpuInstanceWithPlacement: (device, profile, placement, instance) => create_at;
    nvmlGpuInstanceDestroy: (instance) => destroy;
    nvmlDeviceGetGpuInstances: (device, profile, instances, count) => list;
    nvmlDeviceGetGpuInstanceById: (device, id, instance) => by_id;
    nvmlGpuInstanceGetInfo: (instance, info) => info;
    nvmlGpuInstanceCreateComputeInstance: (instance, profile, compute) => create_compute;
    nvmlGpuInstanceCreateComputeInstanceWithPlacement: (instance, profile, placement, compute) => create_compute_at;
    nvmlComputeInstanceDestroy: (compute) => destroy_compute;
    nvmlGpuInstanceGetComputeInstances: (instance, profile, computes, count) => list_compute;
    nvmlGpuInstanceGetComputeInstanceById: (instance, id, compute) => compute_by_id;
    nvmlComputeInstanceGetInfo: (compute, info) => compute_info;
    nvmlComputeInstanceGetInfo_v2: (compute, info) => compute_info;
} }

fn part(device: &Device, id: u32) -> GpuInstanceRef {
    GpuInstanceRef {
        state: device.state,
        gpu: device.index,
        id,
    }
}

fn create(device: nvmlDevice_t, profile: u32, instance: *mut nvmlGpuInstance_t) -> Done {
    let (device, _) = divided(device)?;
    let (place, locked) = (out(instance)?, device.state.lock());
    let choice = machine().map_or_else(Default::default, |machine| machine.config.mig.placement);
    let made = locked.make_gpu_instance(device.index, profile, Err(choice));
    place.set(part(&device, made.map_err(refused)?.id).handle()?)
}

unsafe fn create_at(
    device: nvmlDevice_t,
    profile: u32,
    placement: *const nvmlGpuInstancePlacement_t,
    instance: *mut nvmlGpuInstance_t,
) -> Done {
    let (device, _) = divided(device)?;
    // SAFETY: null or the caller's structure.
    let at = unsafe { placement.as_ref() }.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    let (place, locked) = (out(instance)?, device.state.lock());
    let made = locked.make_gpu_instance(device.index, profile, Ok((at.start, at.size)));
    place.set(part(&device, made.map_err(refused)?.id).handle()?)
}

fn destroy(instance: nvmlGpuInstance_t) -> Done {
    let part = GpuInstanceRef::changeable(instance)?;
    let locked = part.state.lock();
    let done = locked.destroy_gpu_instance(part.gpu, part.id);
    done.map_err(refused)
}

unsafe fn list(
    device: nvmlDevice_t,
    profile: u32,
    instances: *mut nvmlGpuInstance_t,
    count: *mut u32,
) -> Done {
    let (device, table) = divided(device)?;
    table
        .profile(profile)
        .ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    let _locked = device.state.lock();
    let found: Vec<_> = device
        .gpu()
        .mig
        .gpu_instances()
        .filter(|instance| instance.profile == profile)
        .map(|instance| part(&device, instance.id).handle())
        .collect::<Done<_>>()?;
    out(instances)?;
    // SAFETY: the caller's array.
    unsafe { set_list(instances, count, &found) }
}

fn by_id(device: nvmlDevice_t, id: u32, instance: *mut nvmlGpuInstance_t) -> Done {
    let (device, _) = divided(device)?;
    let (place, _locked) = (out(instance)?, device.state.lock());
    let found = device.gpu().mig.gpu_instance(id);
    let found = found.ok_or(nvmlReturn_t::NOT_FOUND)?;
    place.set(part(&device, found.id).handle()?)
}

fn info(instance: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t) -> Done {
    let part = GpuInstanceRef::of(instance)?;
    let found = part.instance()?;
    out(info)?.set(nvmlGpuInstanceInfo_t {
        device: to_handle(part.gpu),
        id: found.id,
        profileId: found.profile,
        placement: nvmlGpuInstancePlacement_t {
            start: found.start,
            size: found.size,
        },
    })
}

fn compute(part: GpuInstanceRef, compute_instance: u32) -> MigDevice {
    MigDevice {
        state: part.state,
        gpu: part.gpu,
        place: MigInstanceId {
            gpu_instance: part.id,
            compute_instance,
        },
    }
}

fn make_compute(
    part: GpuInstanceRef,
    profile: u32,
    at: Option<(u32, u32)>,
    place: *mut nvmlComputeInstance_t,
) -> Done {
    let (place, locked) = (out(place)?, part.state.lock());
    let made = locked.make_compute_instance(part.gpu, part.id, profile, at);
    let made = made.map_err(refused)?;
    place.set(compute(part, made.place.compute_instance).compute_handle()?)
}

fn create_compute(
    instance: nvmlGpuInstance_t,
    profile: u32,
    compute: *mut nvmlComputeInstance_t,
) -> Done {
    make_compute(
        GpuInstanceRef::changeable(instance)?,
        profile,
        None,
        compute,
    )
}

unsafe fn create_compute_at(
    instance: nvmlGpuInstance_t,
    profile: u32,
    placement: *const nvmlComputeInstancePlacement_t,
    compute: *mut nvmlComputeInstance_t,
) -> Done {
    let part = GpuInstanceRef::changeable(instance)?;
    // SAFETY: null or the caller's structure.
    let at = unsafe { placement.as_ref() }.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    make_compute(part, profile, Some((at.start, at.size)), compute)
}

fn compute_of(handle: nvmlComputeInstance_t) -> Done<MigDevice> {
    MigDevice::from_value(handle.addr(), COMPUTE_INSTANCES)
}

fn destroy_compute(handle: nvmlComputeInstance_t) -> Done {
    let compute = compute_of(handle)?;
    crate::exports::nvml::setting::permitted()?;
    let locked = compute.state.lock();
    let done = locked.destroy_compute_instance(compute.gpu, compute.place);
    done.map_err(refused)
}

unsafe fn list_compute(
    instance: nvmlGpuInstance_t,
    profile: u32,
    computes: *mut nvmlComputeInstance_t,
    count: *mut u32,
) -> Done {
    let part = GpuInstanceRef::changeable(instance)?;
    let locked = part.state.lock();
    let profiles = locked
        .compute_profiles_of(part.gpu, part.id)
        .map_err(refused)?;
    if profiles.iter().all(|known| known.id != profile) {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let found: Vec<_> = part.state.gpus()[part.gpu]
        .mig
        .compute_instances_of(part.id)
        .filter(|found| found.profile == profile)
        .map(|found| compute(part, found.place.compute_instance).compute_handle())
        .collect::<Done<_>>()?;
    out(computes)?;
    // SAFETY: the caller's array.
    unsafe { set_list(computes, count, &found) }
}

fn compute_by_id(instance: nvmlGpuInstance_t, id: u32, place: *mut nvmlComputeInstance_t) -> Done {
    let (part, place) = (GpuInstanceRef::changeable(instance)?, out(place)?);
    let handle = compute(part, id).compute_handle();
    place.set(handle.map_err(|_| nvmlReturn_t::NOT_FOUND)?)
}

/// The device is the parent (nvml.h; genuine nvidia-smi prints its index for the GPU's).
fn compute_info(handle: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t) -> Done {
    let compute = compute_of(handle)?;
    let found = compute.instance()?;
    let part = GpuInstanceRef {
        state: compute.state,
        gpu: compute.gpu,
        id: compute.place.gpu_instance,
    };
    let names_own = machine().is_some_and(|own| own.config.mig.info_names_mig_device);
    out(info)?.set(nvmlComputeInstanceInfo_t {
        device: if names_own {
            compute.handle()?
        } else {
            to_handle(compute.gpu)
        },
        gpuInstance: part.handle()?,
        id: compute.place.compute_instance,
        profileId: found.profile,
        placement: nvmlComputeInstancePlacement_t {
            start: found.start,
            size: found.size,
        },
    })
}
