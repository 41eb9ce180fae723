//! The table of functions by which nvidia-smi gets its process lists, past the exported names. Its slots are replaced where
//! the table lies, in the driver's own memory, so that whoever asks for the table gets the driver's own address.
//!
//! The table is in no documentation. An array of pointers, the first word its size in bytes; slots 213, 214 and 215 are
//! the compute, graphics and MPS processes, in entries of 4128 bytes. Observed in the calls of nvidia-smi 535.261.03 with
//! the table of libnvidia-ml 535.261.03 (245 words, all in RELRO), and described so for 580.65.06 by NVIDIA's own mock of
//! the library (k8s-test-infra). What is between is inferred; other drivers' tables are left alone, which is said.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError};

use divvy_driver::sys::nvml::{
    NO_INSTANCE, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, nvmlDevice_t, nvmlProcessInfo_t,
    nvmlReturn_t,
};

use super::lists::{self, Entry, List, everyone};
use super::{limited, text};
use crate::notice;
use crate::process;
use crate::route::elf;
use crate::route::function::driver;
use crate::route::hook::{Real, guarded};
use crate::table::real;

const ID: [u8; 16] = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];

/// Drivers whose table is known to be as described.
const BRANCHES: std::ops::RangeInclusive<u32> = 535..=580;

/// A row of nvidia-smi's process list.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Row {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    protected: u64,
    /// The program's path; a row without one is not printed.
    name: [c_char; 4096],
}

const _: () = assert!(size_of::<Row>() == 4128 && offset_of!(Row, name) == 32);

impl Entry for Row {
    const EMPTY: Self = Row {
        pid: 0,
        used: 0,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
        protected: 0,
        name: [0; 4096],
    };
    fn pid(&self) -> u32 {
        self.pid
    }
    fn show(&mut self, used: u64) {
        self.used = used;
    }
    fn of(pid: u32) -> Option<Self> {
        let mut row = Row { pid, ..Self::EMPTY };
        // Another user's program has no path for us, but a name.
        let path = std::fs::read_link(format!("/proc/{pid}/exe"))
            .map(std::path::PathBuf::into_os_string)
            .or_else(|_| std::fs::read_to_string(format!("/proc/{pid}/comm")).map(Into::into))
            .ok()?;
        let room = row.name.len() - 1;
        let bytes = path.as_encoded_bytes().trim_ascii_end();
        for (to, from) in row.name[..room].iter_mut().zip(bytes) {
            *to = *from as c_char;
        }
        Some(row)
    }
}

/// One slot that is replaced: where it is in the table, what is put there, and what was there before.
struct Slot {
    index: usize,
    replacement: List<Row>,
    original: AtomicPtr<c_void>,
}

static SLOTS: [Slot; 3] = [
    Slot::new(213, compute),
    Slot::new(214, graphics),
    Slot::new(215, mps),
];

impl Slot {
    const fn new(index: usize, replacement: List<Row>) -> Self {
        Slot {
            index,
            replacement,
            original: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The driver's function. The replacement is in the table, so it is known.
    fn original(&self) -> List<Row> {
        // SAFETY: what the slot held before; all drivers of `BRANCHES` have a list of this kind there.
        unsafe { std::mem::transmute::<*mut c_void, List<Row>>(self.original.load(Acquire)) }
    }
}

pub fn export_table<F>(
    real: Real<'_, F, nvmlReturn_t>,
    table: *mut *const c_void,
    id: *const c_void,
) -> nvmlReturn_t {
    let result = real.call();
    if result == nvmlReturn_t::SUCCESS && !table.is_null() && !id.is_null() && limited().is_some() {
        // SAFETY: neither is null, and the driver has read sixteen bytes there and written an address here.
        let (id, table) = unsafe { (id.cast::<[u8; 16]>().read_unaligned(), table.read()) };
        if id == ID && !replace(table.cast_mut().cast()) {
            tell("has a table of another kind for nvidia-smi than is known");
        }
    }
    result
}

/// Puts our functions into the table; false when it is not as it is known to be, or cannot be written.
fn replace(table: *mut *mut c_void) -> bool {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let last = SLOTS[SLOTS.len() - 1].index;
    if table.is_null() || !branch().is_some_and(|branch| BRANCHES.contains(&branch)) {
        return false;
    }
    // SAFETY: the table's first word is its size in bytes, for drivers of these branches.
    let bytes = unsafe { table.cast::<usize>().read() };
    if !bytes.is_multiple_of(size_of::<usize>()) || bytes / size_of::<usize>() <= last {
        return false;
    }
    // SAFETY: the table is that long.
    let at = |slot: &Slot| unsafe { table.add(slot.index) };
    // SAFETY: inside the table.
    let found = |slot: &Slot| unsafe { at(slot).read() };
    let ours = |slot: &Slot| slot.replacement as *mut c_void;
    if SLOTS.iter().all(|slot| found(slot) == ours(slot)) {
        return true;
    }
    let are_functions = SLOTS.iter().all(|slot| is_neighbour(table, found(slot)));
    are_functions
        && while_writable(at(&SLOTS[0]), SLOTS.len(), || {
            for slot in &SLOTS {
                // SAFETY: inside the table, and writable now. Whoever reads the slot meanwhile finds one or the other.
                let place = unsafe { AtomicPtr::from_ptr(at(slot)) };
                slot.original.store(place.load(Acquire), Release);
                place.store(ours(slot), Release);
            }
        })
}

/// Whether `function` is code of the library in which the table lies.
fn is_neighbour(table: *const *mut c_void, function: *const c_void) -> bool {
    let both = |object: &elf::Object<'_>| {
        (object.contains(table.cast()) && object.protection(function)? & libc::PROT_EXEC != 0)
            .then_some(())
    };
    elf::find(both).is_some()
}

/// Does `act` while the pages of so many words are writable; false where that cannot be had. Code is never made writable.
fn while_writable(first: *mut *mut c_void, words: usize, act: impl FnOnce()) -> bool {
    let Some(protection) = elf::find(|object| object.protection(first.cast())) else {
        return false;
    };
    if protection & libc::PROT_WRITE != 0 {
        act();
        return true;
    }
    if protection & libc::PROT_EXEC != 0 {
        return false;
    }
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = first as usize & !(page - 1);
    let length = (first as usize + words * size_of::<usize>() - start).next_multiple_of(page);
    // SAFETY: pages of a loaded library's data, which stay readable throughout.
    let protect = |protection: c_int| unsafe {
        libc::mprotect(start as *mut c_void, length, protection) == 0
    };
    if !protect(protection | libc::PROT_WRITE) {
        return false;
    }
    act();
    // What cannot be protected again works all the same.
    protect(protection);
    true
}

/// The first number of the driver's version: 535 of 535.261.03.
fn branch() -> Option<u32> {
    let mut version = [0 as c_char; NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    // SAFETY: the driver's function, with room for its longest answer.
    let result = unsafe {
        driver::nvmlSystemGetDriverVersion.get()?(version.as_mut_ptr(), version.len() as c_uint)
    };
    let version = (result == nvmlReturn_t::SUCCESS).then(|| text(&version))?;
    version.split('.').next()?.parse().ok()
}

unsafe extern "C" fn compute(
    device: nvmlDevice_t,
    count: *mut c_uint,
    rows: *mut Row,
) -> nvmlReturn_t {
    let original = SLOTS[0].original();
    answer(original, device, count, rows, |real| {
        if limited().is_none() || rows_are_as_known(original, device) {
            return lists::compute(real, device, count, rows);
        }
        tell("lists nvidia-smi's processes in a way that is not known");
        real.call()
    })
}

unsafe extern "C" fn graphics(
    device: nvmlDevice_t,
    count: *mut c_uint,
    rows: *mut Row,
) -> nvmlReturn_t {
    let others = |real: Real<'_, _, _>| lists::others(real, device, count, rows);
    answer(SLOTS[1].original(), device, count, rows, others)
}

unsafe extern "C" fn mps(device: nvmlDevice_t, count: *mut c_uint, rows: *mut Row) -> nvmlReturn_t {
    let others = |real: Real<'_, _, _>| lists::others(real, device, count, rows);
    answer(SLOTS[2].original(), device, count, rows, others)
}

fn answer(
    original: List<Row>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    rows: *mut Row,
    handler: impl FnOnce(Real<'_, List<Row>, nvmlReturn_t>) -> nvmlReturn_t,
) -> nvmlReturn_t {
    // SAFETY: nvidia-smi's own arguments, passed on unchanged.
    let call = || unsafe { original(device, count, rows) };
    guarded(original, call, handler)
}

/// Whether the rows are laid out as described: read so, they are about the processes that the public list has as well.
/// That is asked for before and after, for processes come and go.
fn rows_are_as_known(original: List<Row>, device: nvmlDevice_t) -> bool {
    let public = || {
        let list = real::nvmlDeviceGetComputeRunningProcesses_v3.get()?;
        // SAFETY: room for `count` entries of the function's own version.
        let ask = |count: &mut _, entries| unsafe { list(device, count, entries) };
        let listed = everyone::<nvmlProcessInfo_t>(ask).unwrap_or_default();
        Some(listed.into_iter().map(|entry| entry.pid))
    };
    let Some(before) = public() else {
        return false;
    };
    // SAFETY: room for `count` rows of the known layout.
    let Ok(rows) = everyone(|count, rows| unsafe { original(device, count, rows) }) else {
        return true;
    };
    let known: Vec<u32> = before.chain(public().into_iter().flatten()).collect();
    rows.iter().all(|row: &Row| known.contains(&row.pid))
}

/// Says once that nvidia-smi shows more than the slice, and counts it.
fn tell(what: &str) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    process::alarm();
    if !TOLD.swap(true, Relaxed) {
        notice::say(&format!(
            "this driver {what}: its process list is left as it is, and shows other programs too"
        ));
    }
}
