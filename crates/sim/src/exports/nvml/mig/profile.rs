//! MIG profiles: what a GPU can be divided into, placements and remaining capacity.

use super::{GpuInstanceRef, dividable, divided, partitionable, refused};
use crate::engine::machine::opened::machine;
use crate::engine::mig::placement::remaining;
use crate::exports::nvml::{Device, Done, out};
use crate::model::mig::{ComputeProfile, GpuProfile, Table};
use divvy_driver::sys::nvml::*;
use std::ffi::c_char;

exports! { nvml {
    nvmlDeviceGetGpuInstanceProfileInfo: (device, profile, info) => gpu_profile;
    nvmlDeviceGetGpuInstanceProfileInfoV: (device, profile, info) => gpu_profile_by_number;
    nvmlDeviceGetGpuInstanceProfileInfoByIdV: (device, profile, info) => gpu_profile_by_id;
    nvmlDeviceGetGpuInstancePossiblePlacements: (device, profile, placements, count) => placements;
    nvmlDeviceGetGpuInstancePossiblePlacements_v2: (device, profile, placements, count) => placements;
    nvmlDeviceGetGpuInstanceRemainingCapacity: (device, profile, count) => capacity;
    nvmlGpuInstanceGetComputeInstanceProfileInfo: (instance, profile, engines, info) => compute_profile;
    nvmlGpuInstanceGetComputeInstanceProfileInfoV: (instance, profile, engines, info) => compute_profile_by_number;
    nvmlGpuInstanceGetComputeInstancePossiblePlacements: (instance, profile, placements, count) => compute_placements;
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity: (instance, profile, count) => compute_capacity;
} }

/// `NVML_GPU_INSTANCE_PROFILE_CAPS_GFX`, and the same for compute instances.
const GPU_GRAPHICS: u32 = 2;
const COMPUTE_GRAPHICS: u32 = 1;

/// Profiles as the driver lists them: those of an old one only while the mode is on.
fn listed(device: nvmlDevice_t) -> Done<(Device, &'static Table)> {
    let (device, table) = partitionable(device)?;
    let old = machine().is_some_and(|machine| machine.config.mig.old_driver);
    if old && !device.gpu().mig.is_on() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    Ok((device, table))
}

/// Numbers beyond nvml.h's are invalid whatever the mode, so that a loop ends; within, some are not this GPU's.
fn numbered(table: &'static Table, number: u32) -> Done<&'static GpuProfile> {
    let absent = if number < NVML_GPU_INSTANCE_PROFILE_COUNT {
        nvmlReturn_t::NOT_SUPPORTED
    } else {
        nvmlReturn_t::INVALID_ARGUMENT
    };
    table.numbered(number).ok_or(absent)
}

fn known(table: &'static Table, id: u32) -> Done<&'static GpuProfile> {
    table.profile(id).ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}

/// The driver's name for a profile, as nvidia-smi prints it.
fn name_of(profile: &str) -> [c_char; NVML_DEVICE_NAME_V2_BUFFER_SIZE] {
    let mut name = [0; NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    let text = format!("MIG {profile}");
    let room = name.len() - 1;
    for (place, byte) in name.iter_mut().zip(text.bytes().take(room)) {
        *place = byte as c_char;
    }
    name
}

fn gpu_figures(table: &Table, profile: &GpuProfile) -> nvmlGpuInstanceProfileInfo_v2_t {
    let engines = table.engines(profile);
    nvmlGpuInstanceProfileInfo_v2_t {
        version: struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2),
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices,
        instanceCount: profile.most,
        multiprocessorCount: table.multiprocessors(profile),
        copyEngineCount: engines.copy,
        decoderCount: engines.decoder,
        encoderCount: engines.encoder,
        jpegCount: engines.jpeg,
        ofaCount: engines.ofa,
        memorySizeMB: profile.memory_mib,
        name: name_of(&profile.name),
    }
}

fn gpu_profile(device: nvmlDevice_t, number: u32, info: *mut nvmlGpuInstanceProfileInfo_t) -> Done {
    let place = out(info)?;
    let profile = numbered(partitionable(device)?.1, number)?;
    let (_, table) = listed(device)?;
    let all = gpu_figures(table, profile);
    place.set(nvmlGpuInstanceProfileInfo_t {
        id: all.id,
        isP2pSupported: all.isP2pSupported,
        sliceCount: all.sliceCount,
        instanceCount: all.instanceCount,
        multiprocessorCount: all.multiprocessorCount,
        copyEngineCount: all.copyEngineCount,
        decoderCount: all.decoderCount,
        encoderCount: all.encoderCount,
        jpegCount: all.jpegCount,
        ofaCount: all.ofaCount,
        memorySizeMB: all.memorySizeMB,
    })
}

/// The forms with a version are documented to answer only while the mode is on.
fn listed_now(device: nvmlDevice_t) -> Done<&'static Table> {
    let (device, table) = partitionable(device)?;
    if device.gpu().mig.is_on() {
        Ok(table)
    } else {
        Err(nvmlReturn_t::NOT_SUPPORTED)
    }
}

unsafe fn gpu_profile_by_number(
    device: nvmlDevice_t,
    number: u32,
    info: *mut nvmlGpuInstanceProfileInfo_v2_t,
) -> Done {
    let profile = numbered(partitionable(device)?.1, number)?;
    let table = listed_now(device)?;
    // SAFETY: the caller's structure.
    unsafe { set_gpu_profile(table, profile, info) }
}

unsafe fn gpu_profile_by_id(
    device: nvmlDevice_t,
    id: u32,
    info: *mut nvmlGpuInstanceProfileInfo_v2_t,
) -> Done {
    let table = listed_now(device)?;
    // SAFETY: the caller's structure.
    unsafe { set_gpu_profile(table, known(table, id)?, info) }
}

/// # Safety
/// `info` is null or the structure that the version in it says.
unsafe fn set_gpu_profile(
    table: &Table,
    profile: &GpuProfile,
    info: *mut nvmlGpuInstanceProfileInfo_v2_t,
) -> Done {
    let place = out(info)?;
    let all = gpu_figures(table, profile);
    // SAFETY: not null; the caller sets the version before the call.
    let version = unsafe { (*info).version };
    if version == all.version {
        return place.set(all);
    }
    let third = struct_version::<nvmlGpuInstanceProfileInfo_v3_t>(3);
    if version != third {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    out(info.cast())?.set(nvmlGpuInstanceProfileInfo_v3_t {
        version: third,
        id: all.id,
        sliceCount: all.sliceCount,
        instanceCount: all.instanceCount,
        multiprocessorCount: all.multiprocessorCount,
        copyEngineCount: all.copyEngineCount,
        decoderCount: all.decoderCount,
        encoderCount: all.encoderCount,
        jpegCount: all.jpegCount,
        ofaCount: all.ofaCount,
        memorySizeMB: all.memorySizeMB,
        name: all.name,
        capabilities: if profile.has_graphics() {
            GPU_GRAPHICS
        } else {
            0
        },
    })
}

/// Without an array the count alone; with one, nothing says how large it is.
///
/// # Safety
/// `places` is null or has room for all of them.
unsafe fn set_places<T: Copy>(places: *mut T, count: *mut u32, list: &[T]) -> Done {
    let count = out(count)?;
    if !places.is_null() {
        // SAFETY: the caller's array is large enough for what the profile has, as nvml.h asks.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), places, list.len()) };
    }
    count.set(list.len() as u32)
}

/// Where a profile may lie, whatever lies there and whether the mode is on.
unsafe fn placements(
    device: nvmlDevice_t,
    id: u32,
    places: *mut nvmlGpuInstancePlacement_t,
    count: *mut u32,
) -> Done {
    listed(device)?;
    let (_, table) = dividable(device)?;
    let profile = known(table, id)?;
    let starts = profile.starts.iter();
    let list: Vec<_> = starts
        .map(|start| nvmlGpuInstancePlacement_t {
            start: *start,
            size: profile.size,
        })
        .collect();
    // SAFETY: the caller's array.
    unsafe { set_places(places, count, &list) }
}

fn capacity(device: nvmlDevice_t, id: u32, count: *mut u32) -> Done {
    let (device, table) = divided(device)?;
    let (profile, count) = (known(table, id)?, out(count)?);
    let _locked = device.state.lock();
    count.set(remaining(table, &device.gpu().mig.placed(), profile) as u32)
}

fn compute_profiles(part: GpuInstanceRef) -> Done<Vec<ComputeProfile>> {
    let locked = part.state.lock();
    let profiles = locked.compute_profiles_of(part.gpu, part.id);
    profiles.map_err(refused)
}

/// A compute profile by nvml.h's numbers.
fn compute_numbered(handle: nvmlGpuInstance_t, number: u32, engines: u32) -> Done<ComputeProfile> {
    let profiles = compute_profiles(GpuInstanceRef::of(handle)?)?;
    if number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        || engines != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let mut profiles = profiles.into_iter();
    let found = profiles.find(|profile| profile.number == number);
    found.ok_or(nvmlReturn_t::NOT_SUPPORTED)
}

fn compute_known(part: GpuInstanceRef, id: u32) -> Done<ComputeProfile> {
    let mut profiles = compute_profiles(part)?.into_iter();
    let found = profiles.find(|profile| profile.id == id);
    found.ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}

fn compute_figures(profile: &ComputeProfile) -> nvmlComputeInstanceProfileInfo_v2_t {
    nvmlComputeInstanceProfileInfo_v2_t {
        version: struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2),
        id: profile.id,
        sliceCount: profile.compute_slices,
        instanceCount: profile.most,
        multiprocessorCount: profile.multiprocessors,
        sharedCopyEngineCount: profile.engines.copy,
        sharedDecoderCount: profile.engines.decoder,
        sharedEncoderCount: profile.engines.encoder,
        sharedJpegCount: profile.engines.jpeg,
        sharedOfaCount: profile.engines.ofa,
        name: name_of(&profile.name),
    }
}

fn compute_profile(
    handle: nvmlGpuInstance_t,
    number: u32,
    engines: u32,
    info: *mut nvmlComputeInstanceProfileInfo_t,
) -> Done {
    let place = out(info)?;
    let all = compute_figures(&compute_numbered(handle, number, engines)?);
    place.set(nvmlComputeInstanceProfileInfo_t {
        id: all.id,
        sliceCount: all.sliceCount,
        instanceCount: all.instanceCount,
        multiprocessorCount: all.multiprocessorCount,
        sharedCopyEngineCount: all.sharedCopyEngineCount,
        sharedDecoderCount: all.sharedDecoderCount,
        sharedEncoderCount: all.sharedEncoderCount,
        sharedJpegCount: all.sharedJpegCount,
        sharedOfaCount: all.sharedOfaCount,
    })
}

unsafe fn compute_profile_by_number(
    handle: nvmlGpuInstance_t,
    number: u32,
    engines: u32,
    info: *mut nvmlComputeInstanceProfileInfo_v2_t,
) -> Done {
    let place = out(info)?;
    let profile = compute_numbered(handle, number, engines)?;
    let all = compute_figures(&profile);
    // SAFETY: not null; the caller sets the version before the call.
    let version = unsafe { (*info).version };
    if version == all.version {
        return place.set(all);
    }
    let third = struct_version::<nvmlComputeInstanceProfileInfo_v3_t>(3);
    if version != third {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    out(info.cast())?.set(nvmlComputeInstanceProfileInfo_v3_t {
        version: third,
        id: all.id,
        sliceCount: all.sliceCount,
        instanceCount: all.instanceCount,
        multiprocessorCount: all.multiprocessorCount,
        sharedCopyEngineCount: all.sharedCopyEngineCount,
        sharedDecoderCount: all.sharedDecoderCount,
        sharedEncoderCount: all.sharedEncoderCount,
        sharedJpegCount: all.sharedJpegCount,
        sharedOfaCount: all.sharedOfaCount,
        name: all.name,
        capabilities: if profile.has_graphics {
            COMPUTE_GRAPHICS
        } else {
            0
        },
    })
}

unsafe fn compute_placements(
    handle: nvmlGpuInstance_t,
    id: u32,
    places: *mut nvmlComputeInstancePlacement_t,
    count: *mut u32,
) -> Done {
    let profile = compute_known(GpuInstanceRef::changeable(handle)?, id)?;
    let starts = profile.starts.iter();
    let list: Vec<_> = starts
        .map(|start| nvmlComputeInstancePlacement_t {
            start: *start,
            size: profile.compute_slices,
        })
        .collect();
    // SAFETY: the caller's array.
    unsafe { set_places(places, count, &list) }
}

fn compute_capacity(handle: nvmlGpuInstance_t, id: u32, count: *mut u32) -> Done {
    let (part, count) = (GpuInstanceRef::changeable(handle)?, out(count)?);
    let profile = compute_known(part, id)?;
    let locked = part.state.lock();
    count.set(locked.remaining_compute(part.gpu, part.id, &profile) as u32)
}
