//! The MIG mode of a GPU, and its MIG devices.

use super::{MigDevice, dividable, partitionable, refused};
use crate::engine::machine::mig_mode::Activation;
use crate::engine::machine::opened::machine;
use crate::exports::nvml::{Device, Done, out, to_handle};
use crate::model::Architecture;
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceGetMigMode: (device, current, pending) => mode;
    nvmlDeviceSetMigMode: (device, mode, activation) => set_mode;
    nvmlDeviceIsMigDeviceHandle: (device, is) => is_mig;
    nvmlDeviceGetMaxMigDeviceCount: (device, count) => most;
    nvmlDeviceGetMigDeviceHandleByIndex: (device, index, mig) => by_index;
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle: (mig, device) => parent;
    nvmlDeviceGetGpuInstanceId: (device, id) => gpu_instance_id;
    nvmlDeviceGetComputeInstanceId: (device, id) => compute_instance_id;
    nvmlDeviceGetAttributes_v2: (device, attributes) => attributes;
} }

fn mode(device: nvmlDevice_t, current: *mut u32, pending: *mut u32) -> Done {
    let device = Device::answering(device)?;
    if device.model().mig.is_none() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    let number = |on| {
        if on {
            NVML_DEVICE_MIG_ENABLE
        } else {
            NVML_DEVICE_MIG_DISABLE
        }
    };
    let (mig, pending) = (&device.gpu().mig, out(pending)?);
    out(current)?.set(number(mig.is_on()))?;
    pending.set(number(mig.will_be_on()))
}

/// Ampere needs a reset for the mode (MIG user guide, "GPU Reset on Hopper+ GPUs"). That the call does not do it
/// itself, as in a virtual machine, can be set otherwise.
pub(super) fn needs_reset(device: &Device) -> bool {
    let config = machine().and_then(|machine| machine.config.mig.needs_reset);
    config.unwrap_or(device.model().architecture == Architecture::Ampere)
}

fn set_mode(device: nvmlDevice_t, mode: u32, activation: *mut nvmlReturn_t) -> Done {
    let activation = out(activation)?;
    let on = match mode {
        NVML_DEVICE_MIG_DISABLE => false,
        NVML_DEVICE_MIG_ENABLE => true,
        _ => return Err(nvmlReturn_t::INVALID_ARGUMENT),
    };
    let (device, _) = dividable(device)?;
    let locked = device.state.lock();
    let was = device.gpu().mig.is_on();
    let done = locked.set_mig_mode(device.index, on, needs_reset(&device));
    let rebinds = machine().is_some_and(|machine| machine.config.mig.rebinds);
    if rebinds && device.gpu().mig.is_on() != was {
        locked.bind_again(device.index);
    }
    activation.set(match done.map_err(refused)? {
        Activation::Done => nvmlReturn_t::SUCCESS,
        Activation::InUse => nvmlReturn_t::IN_USE,
        Activation::ResetRequired => nvmlReturn_t::RESET_REQUIRED,
    })
}

fn is_mig(device: nvmlDevice_t, is: *mut u32) -> Done {
    let mig = MigDevice::of(device)?.is_some();
    if !mig {
        Device::of(device)?;
    }
    out(is)?.set(u32::from(mig))
}

/// None where the mode is off.
fn most(device: nvmlDevice_t, count: *mut u32) -> Done {
    let device = Device::answering(device)?;
    let table = if device.gpu().mig.is_on() {
        device.state.mig_table(device.index)
    } else {
        None
    };
    out(count)?.set(table.map_or(0, |table| table.compute_slices))
}

fn by_index(device: nvmlDevice_t, index: u32, mig: *mut nvmlDevice_t) -> Done {
    let (device, table) = partitionable(device)?;
    let place = out(mig)?;
    if !device.gpu().mig.is_on() {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    if index >= table.compute_slices {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let _locked = device.state.lock();
    let found = device
        .gpu()
        .mig
        .compute_instances()
        .find(|instance| instance.index == index)
        .ok_or(nvmlReturn_t::NOT_FOUND)?;
    let mig = MigDevice {
        state: device.state,
        gpu: device.index,
        place: found.place,
    };
    place.set(mig.handle()?)
}

/// The MIG device, where only one will do.
fn mig(device: nvmlDevice_t) -> Done<MigDevice> {
    match MigDevice::of(device)? {
        Some(mig) => Ok(mig),
        None => {
            Device::answering(device)?;
            Err(nvmlReturn_t::NOT_SUPPORTED)
        }
    }
}

/// A GPU's own handle is that of no MIG device.
fn parent(device: nvmlDevice_t, place: *mut nvmlDevice_t) -> Done {
    let mig = MigDevice::of(device)?.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    out(place)?.set(to_handle(mig.gpu))
}

fn gpu_instance_id(device: nvmlDevice_t, id: *mut u32) -> Done {
    out(id)?.set(mig(device)?.place.gpu_instance)
}

fn compute_instance_id(device: nvmlDevice_t, id: *mut u32) -> Done {
    out(id)?.set(mig(device)?.place.compute_instance)
}

/// Of MIG devices only, as nvml.h says.
fn attributes(device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t) -> Done {
    let (mig, place) = (mig(device)?, out(attributes)?);
    let gone = nvmlReturn_t::INVALID_ARGUMENT;
    let (state, gpu) = (mig.state, mig.gpu);
    let _locked = state.lock();
    let profile = state.compute_profile(gpu, mig.place).ok_or(gone)?;
    let within = state.gpus()[gpu].mig.gpu_instance(mig.place.gpu_instance);
    let within = state
        .gpu_profile(gpu, within.ok_or(gone)?.profile)
        .ok_or(gone)?;
    place.set(nvmlDeviceAttributes_t {
        multiprocessorCount: profile.multiprocessors,
        sharedCopyEngineCount: profile.engines.copy,
        sharedDecoderCount: profile.engines.decoder,
        sharedEncoderCount: profile.engines.encoder,
        sharedJpegCount: profile.engines.jpeg,
        sharedOfaCount: profile.engines.ofa,
        gpuInstanceSliceCount: within.compute_slices,
        computeInstanceSliceCount: profile.compute_slices,
        memorySizeMB: state.mig_memory(gpu, mig.place.gpu_instance) >> 20,
    })
}
