//! Initialisation, versions, error texts, finding devices.

use super::mig::MigDevice;
use super::{Done, USERS, name, out, set_text, state, to_handle};
use crate::config::Config;
use crate::engine::machine::opened::machine;
use divvy_driver::sys::nvml::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::SeqCst;

exports! { nvml {
    nvmlInit: () => init;
    nvmlInit_v2: () => init;
    nvmlInitWithFlags: (flags) => init_with_flags;
    nvmlShutdown: () => shutdown;
    nvmlSystemGetDriverVersion: (text, length) => driver_version;
    nvmlSystemGetNVMLVersion: (text, length) => nvml_version;
    nvmlSystemGetCudaDriverVersion: (version) => cuda_version;
    nvmlSystemGetCudaDriverVersion_v2: (version) => cuda_version;
    nvmlSystemGetProcessName: (pid, text, length) => process_name;
    nvmlUnitGetCount: (count) => unit_count;
    nvmlDeviceGetCount: (count) => count;
    nvmlDeviceGetCount_v2: (count) => count;
    nvmlDeviceGetHandleByIndex: (index, device) => by_index;
    nvmlDeviceGetHandleByIndex_v2: (index, device) => by_index;
    nvmlDeviceGetHandleBySerial: (text, device) => by_serial;
    nvmlDeviceGetHandleByUUID: (text, device) => by_uuid;
    nvmlDeviceGetHandleByPciBusId: (text, device) => by_pci_bus_id;
    nvmlDeviceGetHandleByPciBusId_v2: (text, device) => by_pci_bus_id;
} }

fn init() -> Done {
    let machine = machine().ok_or(nvmlReturn_t::DRIVER_NOT_LOADED)?;
    machine.state.keep_capabilities();
    USERS.fetch_add(1, SeqCst);
    Ok(())
}

fn init_with_flags(_flags: u32) -> Done {
    init()
}

fn shutdown() -> Done {
    let fewer = |users: u32| users.checked_sub(1);
    USERS
        .fetch_update(SeqCst, SeqCst, fewer)
        .map(drop)
        .map_err(|_| nvmlReturn_t::UNINITIALIZED)
}

fn driver_version(text: *mut c_char, length: u32) -> Done {
    state()?;
    set_text(text, length, Config::versions().0)
}

fn nvml_version(text: *mut c_char, length: u32) -> Done {
    set_text(text, length, &format!("13.{}", Config::versions().0))
}

/// Works before initialisation too.
fn cuda_version(version: *mut i32) -> Done {
    out(version)?.set(Config::versions().1)
}

/// The path of a process's program.
pub(super) fn program_of(pid: u32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.to_string_lossy().into_owned())
}

fn process_name(pid: u32, text: *mut c_char, length: u32) -> Done {
    state()?;
    let path = program_of(pid).ok_or(nvmlReturn_t::NOT_FOUND)?;
    let room = (length as usize).saturating_sub(1).min(path.len());
    let cut = (0..=room).rev().find(|end| path.is_char_boundary(*end));
    set_text(text, length, &path[..cut.unwrap_or(0)])
}

fn unit_count(count: *mut u32) -> Done {
    state()?;
    out(count)?.set(0)
}

fn count(count: *mut u32) -> Done {
    let state = state()?;
    out(count)?.set(state.gpu_count() as u32)
}

fn by_index(index: u32, device: *mut nvmlDevice_t) -> Done {
    let (state, device) = (state()?, out(device)?);
    if index as usize >= state.gpu_count() {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    set_found(device, index as usize)
}

fn set_found(device: super::Out<nvmlDevice_t>, index: usize) -> Done {
    if state()?.gpus()[index].health.is_lost() {
        Err(nvmlReturn_t::GPU_IS_LOST)
    } else {
        device.set(to_handle(index))
    }
}

fn find(device: *mut nvmlDevice_t, wanted: impl Fn(usize) -> bool) -> Done {
    let (state, device) = (state()?, out(device)?);
    set_found(
        device,
        (0..state.gpu_count())
            .find(|index| wanted(*index))
            .ok_or(nvmlReturn_t::NOT_FOUND)?,
    )
}

fn by_uuid(text: *const c_char, device: *mut nvmlDevice_t) -> Done {
    let (state, text) = (state()?, name(text)?);
    if text.starts_with("MIG-") {
        let _locked = state.lock();
        return out(device)?.set(MigDevice::called(state, text)?.handle()?);
    }
    find(device, |index| state.gpus()[index].uuid_text() == text)
}

fn by_serial(text: *const c_char, device: *mut nvmlDevice_t) -> Done {
    let (state, text) = (state()?, name(text)?);
    find(device, |index| {
        super::device::serial_text(&state.gpus()[index]) == text
    })
}

/// `domain:bus:device.function`, the domain with four or eight digits, in either case.
fn by_pci_bus_id(text: *const c_char, device: *mut nvmlDevice_t) -> Done {
    let (state, text) = (state()?, name(text)?);
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let numbers: Option<Vec<u32>> = parts
        .iter()
        .map(|part| u32::from_str_radix(part, 16).ok())
        .collect();
    let [domain, bus, slot, rest @ ..] =
        numbers.as_deref().ok_or(nvmlReturn_t::INVALID_ARGUMENT)?
    else {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    };
    find(device, |index| {
        *domain == 0
            && *slot == 0
            && rest.iter().all(|function| *function == 0)
            && state.gpus()[index].pci_bus() == *bus
    })
}

/// Works before initialisation and never fails. The texts are NVML's.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text: &CStr = match result {
        nvmlReturn_t::SUCCESS => c"Success",
        nvmlReturn_t::UNINITIALIZED => c"Uninitialized",
        nvmlReturn_t::INVALID_ARGUMENT => c"Invalid Argument",
        nvmlReturn_t::NOT_SUPPORTED => c"Not Supported",
        nvmlReturn_t::NO_PERMISSION => c"Insufficient Permissions",
        nvmlReturn_t::ALREADY_INITIALIZED => c"Already Initialized",
        nvmlReturn_t::NOT_FOUND => c"Not Found",
        nvmlReturn_t::INSUFFICIENT_SIZE => c"Insufficient Size",
        nvmlReturn_t::INSUFFICIENT_POWER => c"Insufficient External Power",
        nvmlReturn_t::DRIVER_NOT_LOADED => c"Driver Not Loaded",
        nvmlReturn_t::TIMEOUT => c"Timeout",
        nvmlReturn_t::LIBRARY_NOT_FOUND => c"NVML Shared Library Not Found",
        nvmlReturn_t::FUNCTION_NOT_FOUND => c"Function Not Found",
        nvmlReturn_t::GPU_IS_LOST => c"GPU is lost",
        nvmlReturn_t::RESET_REQUIRED => c"GPU requires reset",
        nvmlReturn_t::IN_USE => c"In use by another client",
        nvmlReturn_t::MEMORY => c"Insufficient Memory",
        nvmlReturn_t::NO_DATA => c"No data",
        nvmlReturn_t::INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        nvmlReturn_t::ARGUMENT_VERSION_MISMATCH => c"Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
