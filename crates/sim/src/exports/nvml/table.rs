//! The table of functions that nvidia-smi asks for beside the API: what driver 535's nvidia-smi needs to print its
//! tables.
//!
//! The shapes were observed in its calls (and the process lists' slots in 580's too). Each is an array of pointers; its
//! first word is its size in bytes. All slots that are not listed here answer success and do nothing.

use super::process::rows;
use super::scope::Scope;
use super::{Done, out, state, to_handle};
use crate::trace;
use divvy_driver::sys::nvml::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_char, c_void};

exports! { nvml {
    nvmlInternalGetExportTable: (table, id) => export_table;
} }

const ID: [u8; 16] = [
    0xC4, 0xFE, 0x3E, 0x6C, 0xC9, 0x8F, 0x6C, 0x4E, 0xA3, 0x27, 0xEE, 0x69, 0x6E, 0x12, 0xF7, 0xC4,
];

/// More than the places that nvidia-smi reads of NVIDIA's table.
const SLOTS: usize = 320;

/// The table: its size, then the functions.
#[repr(C)]
struct Table {
    bytes: usize,
    functions: [*const c_void; SLOTS],
}

// SAFETY: a size and the addresses of code.
unsafe impl Sync for Table {}

static TABLE: Table = {
    let mut functions = [nothing as *const c_void; SLOTS];
    // Slots are counted with the size word as number 0.
    functions[81 - 1] = handle_by_index as *const c_void;
    functions[213 - 1] = compute_processes as *const c_void;
    functions[214 - 1] = no_processes as *const c_void;
    functions[215 - 1] = no_processes as *const c_void;
    Table {
        bytes: size_of::<Table>(),
        functions,
    }
};

unsafe fn export_table(table: *mut *const c_void, id: *const c_void) -> Done {
    let table = out(table)?;
    out(id.cast_mut())?;
    // SAFETY: not null; the caller's sixteen bytes.
    if unsafe { id.cast::<[u8; 16]>().read_unaligned() } != ID {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    table.set((&raw const TABLE).cast())
}

extern "C" fn nothing() -> nvmlReturn_t {
    nvmlReturn_t::SUCCESS
}

extern "C" fn handle_by_index(index: u32, device: *mut nvmlDevice_t, _kind: u32) -> nvmlReturn_t {
    let handler = || {
        let (state, device) = (state()?, out(device)?);
        if index as usize >= state.gpu_count() {
            return Err(nvmlReturn_t::INVALID_ARGUMENT);
        }
        device.set(to_handle(index as usize))
    };
    trace::call("nvmlExportTable[81]", handler, |line| line.argument(index))
}

/// A row of nvidia-smi's process list.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
    protected: u64,
    name: [c_char; 4096],
}

unsafe extern "C" fn compute_processes(
    device: nvmlDevice_t,
    count: *mut u32,
    entries: *mut Entry,
) -> nvmlReturn_t {
    let handler = || {
        let rows = rows(device)?;
        out(count)?;
        // SAFETY: not null; the caller's room.
        let room = unsafe { count.replace(rows.len() as u32) } as usize;
        if rows.len() > room {
            return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
        }
        for (at, row) in rows.iter().enumerate() {
            out(entries)?;
            // SAFETY: `at` is below the room the caller gives; the name is cleared before it is filled.
            let entry = unsafe {
                entries.add(at).write_bytes(0, 1);
                &mut *entries.add(at)
            };
            (entry.pid, entry.used) = (row.pid, row.used);
            (entry.gpu_instance, entry.compute_instance) = (row.gpu_instance, row.compute_instance);
            let name = super::library::program_of(row.pid).unwrap_or_default();
            let room = entry.name.len() - 1;
            for (place, byte) in entry.name.iter_mut().zip(name.bytes().take(room)) {
                *place = byte as c_char;
            }
        }
        Ok(())
    };
    trace::call("nvmlExportTable[213]", handler, |line| {
        line.argument(device)
    })
}

/// Graphics and MPS processes: there are none.
unsafe extern "C" fn no_processes(
    device: nvmlDevice_t,
    count: *mut u32,
    _entries: *mut Entry,
) -> nvmlReturn_t {
    let handler = || {
        Scope::of(device)?;
        out(count)?.set(0)
    };
    trace::call("nvmlExportTable[214]", handler, |line| {
        line.argument(device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_observed_layout() {
        assert_eq!(size_of::<Entry>(), 4128);
        let offsets = [
            std::mem::offset_of!(Entry, used),
            std::mem::offset_of!(Entry, gpu_instance),
            std::mem::offset_of!(Entry, compute_instance),
            std::mem::offset_of!(Entry, protected),
            std::mem::offset_of!(Entry, name),
        ];
        assert_eq!(offsets, [8, 16, 20, 24, 32]);
    }
}
