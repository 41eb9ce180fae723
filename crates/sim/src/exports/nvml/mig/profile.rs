//! MIG profiles: what a GPU can be divided into, placements and remaining capacity.

use super::{GpuInstanceRef, dividable, divided, partitionable, refused, set_list};
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

/// What all versions of the structure say of a profile of GPU instances, and the fields that one version has beside them.
macro_rules! gpu_figures {
    ($version:ident, $table:ident, $profile:ident, { $($field:ident: $value:expr),* }) => {{
        let engines = $table.engines($profile);
        $version {
            id: $profile.id,
            sliceCount: $profile.compute_slices,
            instanceCount: $profile.most,
            multiprocessorCount: $table.multiprocessors($profile),
            copyEngineCount: engines.copy,
            decoderCount: engines.decoder,
            encoderCount: engines.encoder,
            jpegCount: engines.jpeg,
            ofaCount: engines.ofa,
            memorySizeMB: $profile.memory_mib,
            $($field: $value),*
        }
    }};
}

/// The same of compute instances.
macro_rules! compute_figures {
    ($version:ident, $profile:ident, { $($field:ident: $value:expr),* }) => {
        $version {
            id: $profile.id,
            sliceCount: $profile.compute_slices,
            instanceCount: $profile.most,
            multiprocessorCount: $profile.multiprocessors,
            sharedCopyEngineCount: $profile.engines.copy,
            sharedDecoderCount: $profile.engines.decoder,
            sharedEncoderCount: $profile.engines.encoder,
            sharedJpegCount: $profile.engines.jpeg,
            sharedOfaCount: $profile.engines.ofa,
            $($field: $value),*
        }
    };
}

/// The version of its structure that the caller asks for.
///
/// # Safety
/// `info` is not null, and the caller has set the version.
unsafe fn version_of<T>(info: *const T) -> u32 {
    // SAFETY: by contract; all versions begin with their number.
    unsafe { info.cast::<u32>().read() }
}

fn gpu_profile(device: nvmlDevice_t, number: u32, info: *mut nvmlGpuInstanceProfileInfo_t) -> Done {
    let place = out(info)?;
    let profile = numbered(partitionable(device)?.1, number)?;
    let (_, table) = listed(device)?;
    place.set(gpu_figures!(nvmlGpuInstanceProfileInfo_t, table, profile, { isP2pSupported: 0 }))
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
    let second = struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    let third = struct_version::<nvmlGpuInstanceProfileInfo_v3_t>(3);
    let name = name_of(&profile.name);
    // SAFETY: not null; the caller sets the version before the call.
    match unsafe { version_of(info) } {
        version if version == second => place.set(gpu_figures!(
            nvmlGpuInstanceProfileInfo_v2_t,
            table,
            profile,
            { version: version, isP2pSupported: 0, name: name }
        )),
        version if version == third => {
            let capabilities = if profile.has_graphics() {
                GPU_GRAPHICS
            } else {
                0
            };
            out(info.cast())?.set(gpu_figures!(
                nvmlGpuInstanceProfileInfo_v3_t,
                table,
                profile,
                { version: version, name: name, capabilities: capabilities }
            ))
        }
        _ => Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH),
    }
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
    unsafe { set_list(places, count, &list) }
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

fn compute_profile(
    handle: nvmlGpuInstance_t,
    number: u32,
    engines: u32,
    info: *mut nvmlComputeInstanceProfileInfo_t,
) -> Done {
    let place = out(info)?;
    let profile = compute_numbered(handle, number, engines)?;
    place.set(compute_figures!(
        nvmlComputeInstanceProfileInfo_t,
        profile,
        {}
    ))
}

unsafe fn compute_profile_by_number(
    handle: nvmlGpuInstance_t,
    number: u32,
    engines: u32,
    info: *mut nvmlComputeInstanceProfileInfo_v2_t,
) -> Done {
    let place = out(info)?;
    let profile = compute_numbered(handle, number, engines)?;
    let second = struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2);
    let third = struct_version::<nvmlComputeInstanceProfileInfo_v3_t>(3);
    let name = name_of(&profile.name);
    // SAFETY: not null; the caller sets the version before the call.
    match unsafe { version_of(info) } {
        version if version == second => place.set(compute_figures!(
            nvmlComputeInstanceProfileInfo_v2_t,
            profile,
            { version: version, name: name }
        )),
        version if version == third => {
            let capabilities = if profile.has_graphics {
                COMPUTE_GRAPHICS
            } else {
                0
            };
            out(info.cast())?.set(compute_figures!(
                nvmlComputeInstanceProfileInfo_v3_t,
                profile,
                { version: version, name: name, capabilities: capabilities }
            ))
        }
        _ => Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH),
    }
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
    unsafe { set_list(places, count, &list) }
}

fn compute_capacity(handle: nvmlGpuInstance_t, id: u32, count: *mut u32) -> Done {
    let (part, count) = (GpuInstanceRef::changeable(handle)?, out(count)?);
    let profile = compute_known(part, id)?;
    let locked = part.state.lock();
    count.set(locked.remaining_compute(part.gpu, part.id, &profile) as u32)
}
