//! What NVML tells about memory and processes: the slice's memory on its own GPUs, and the slice's processes everywhere.
//!
//! A GPU is recognised by asking the driver for its UUID, each time: handles come from several functions and change when
//! the library is started anew. A process that only looks (a monitor) takes no slot for it.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint};

use divvy_driver::sys::nvml::{
    NVML_DEVICE_UUID_V2_BUFFER_SIZE, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlReturn_t,
};
use divvy_ledger::{ProcessState, ProcessUsage};

use crate::account::Account;
use crate::process::{self, Standing};
use crate::route::function::driver;
use crate::route::hook::Real;
use crate::view::info::View;

pub fn memory<F>(
    real: Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    let result = real.call();
    if result == nvmlReturn_t::SUCCESS && !memory.is_null() {
        // SAFETY: not null, and the driver has just filled it.
        let memory = unsafe { &mut *memory };
        if let Some(view) = view(
            device,
            View {
                total: memory.total,
                free: memory.free,
            },
        ) {
            *memory = nvmlMemory_t {
                total: view.total,
                free: view.free,
                used: view.total - view.free,
            };
        }
    }
    result
}

pub fn memory_v2<F>(
    real: Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    let result = real.call();
    if result == nvmlReturn_t::SUCCESS && !memory.is_null() {
        // SAFETY: not null, and the driver has just filled it.
        let memory = unsafe { &mut *memory };
        if let Some(view) = view(
            device,
            View {
                total: memory.total,
                free: memory.free,
            },
        ) {
            (memory.total, memory.free) = (view.total, view.free);
            (memory.used, memory.reserved) = (view.total - view.free, 0);
        }
    }
    result
}

/// The slice's view of a GPU's memory; `None` for a GPU that is not the slice's, and in a process that is not limited.
fn view(device: nvmlDevice_t, real: View) -> Option<View> {
    let account = limited()?;
    let gpu = gpu_of(account, device)?;
    account.settle(gpu);
    let usage = account.usage(gpu)?;
    Some(View::of(usage.limit, usage.charged + usage.overhead, real))
}

/// One entry of a process list.
pub trait Entry: Copy + Default {
    fn pid(&self) -> u32;
    fn set_used(&mut self, bytes: u64);
}

impl Entry for nvmlProcessInfo_v1_t {
    fn pid(&self) -> u32 {
        self.pid
    }
    fn set_used(&mut self, bytes: u64) {
        self.usedGpuMemory = bytes;
    }
}

impl Entry for nvmlProcessInfo_v2_t {
    fn pid(&self) -> u32 {
        self.pid
    }
    fn set_used(&mut self, bytes: u64) {
        self.usedGpuMemory = bytes;
    }
}

/// The signature of all process lists; versions differ in their entries.
type List<E> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut E) -> nvmlReturn_t;

/// Room for new processes between two calls.
const SPARE: usize = 64;
/// More processes than one GPU has.
const MOST: usize = 1 << 16;

pub fn processes<E: Entry>(
    real: Real<'_, List<E>, nvmlReturn_t>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut E,
) -> nvmlReturn_t {
    let Some(account) = limited().filter(|_| !count.is_null()) else {
        return real.call();
    };
    // SAFETY: not null; the driver would read it too.
    let room = unsafe { count.read() } as usize;
    if room > 0 && infos.is_null() {
        return real.call();
    }
    let all = match everyone(real.function, device) {
        Ok(all) => all,
        Err(result) => return result,
    };
    let gpu = gpu_of(account, device);
    let members = members(account);
    let ours: Vec<E> = all
        .into_iter()
        .filter_map(|mut entry| {
            let member = members.get(&entry.pid())?;
            if let Some(gpu) = gpu {
                entry.set_used(member.gpus[gpu].charged + member.gpus[gpu].overhead);
            }
            Some(entry)
        })
        .collect();
    // SAFETY: not null.
    unsafe { count.write(ours.len() as c_uint) };
    if ours.len() > room {
        return nvmlReturn_t::INSUFFICIENT_SIZE;
    }
    if !ours.is_empty() {
        // SAFETY: the program says that there is room for so many entries.
        unsafe { infos.copy_from_nonoverlapping(ours.as_ptr(), ours.len()) };
    }
    nvmlReturn_t::SUCCESS
}

/// The driver's whole list.
fn everyone<E: Entry>(list: List<E>, device: nvmlDevice_t) -> Result<Vec<E>, nvmlReturn_t> {
    let mut entries = vec![E::default(); SPARE];
    loop {
        let mut count = entries.len() as c_uint;
        // SAFETY: room for `count` entries of the function's own version.
        let result = unsafe { list(device, &mut count, entries.as_mut_ptr()) };
        let count = count as usize;
        match result {
            nvmlReturn_t::SUCCESS => {
                entries.truncate(count);
                return Ok(entries);
            }
            nvmlReturn_t::INSUFFICIENT_SIZE if entries.len() < MOST => {
                entries.resize(count.max(entries.len()) + SPARE, E::default());
            }
            result => return Err(result),
        }
    }
}

/// The slice's living processes in this process's PID namespace, which is the one NVML's numbers are taken to be of.
fn members(account: &Account) -> HashMap<u32, ProcessUsage> {
    let Ok(now) = account.slice().read() else {
        return HashMap::new();
    };
    let namespace = divvy_ledger::Owner::me().pid_namespace;
    let here = |process: &ProcessUsage| {
        process.state == ProcessState::Live && process.owner.pid_namespace == namespace
    };
    now.processes()
        .into_iter()
        .filter(here)
        .map(|process| (process.owner.pid, process))
        .collect()
}

fn limited() -> Option<&'static Account> {
    match process::standing() {
        Standing::Limited(account) => Some(account),
        Standing::Off | Standing::Refused(_) => None,
    }
}

/// The GPU's place in the slice.
fn gpu_of(account: &Account, device: nvmlDevice_t) -> Option<usize> {
    let mut text = [0 as c_char; NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    // SAFETY: the program's device, and room for the longest UUID.
    let result = unsafe {
        driver::nvmlDeviceGetUUID.get()?(device, text.as_mut_ptr(), text.len() as c_uint)
    };
    if result != nvmlReturn_t::SUCCESS {
        return None;
    }
    // SAFETY: the driver has written a NUL-terminated text.
    let uuid = parse_uuid(unsafe { CStr::from_ptr(text.as_ptr()) }.to_bytes())?;
    account.slice().gpu_by_uuid(&uuid)
}

/// `GPU-` or `MIG-`, then 32 hexadecimal digits with dashes between groups.
fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text
        .strip_prefix(b"GPU-")
        .or_else(|| text.strip_prefix(b"MIG-"))?;
    let mut values = digits
        .iter()
        .filter(|byte| **byte != b'-')
        .map(|byte| (*byte as char).to_digit(16));
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        *byte = (values.next()?? << 4 | values.next()??) as u8;
    }
    values.next().is_none().then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_nvml_writes_it() {
        let bytes = [
            0xb6, 0xe8, 0x4e, 0x58, 0xc6, 0x1f, 0x13, 0x99, 0x7a, 0xd6, 0x50, 0xf1, 0x81, 0xfc,
            0x44, 0xb6,
        ];
        assert_eq!(
            parse_uuid(b"GPU-b6e84e58-c61f-1399-7ad6-50f181fc44b6"),
            Some(bytes)
        );
        assert_eq!(
            parse_uuid(b"MIG-b6e84e58-c61f-1399-7ad6-50f181fc44b6"),
            Some(bytes)
        );
        assert_eq!(parse_uuid(b"GPU-b6e84e58-c61f-1399-7ad6-50f181fc44"), None);
        assert_eq!(
            parse_uuid(b"GPU-b6e84e58-c61f-1399-7ad6-50f181fc44b6aa"),
            None
        );
        assert_eq!(parse_uuid(b"b6e84e58-c61f-1399-7ad6-50f181fc44b6"), None);
        assert_eq!(parse_uuid(b""), None);
    }
}
