//! The undocumented export table through which nvidia-smi gets its process lists. Its slots are replaced in place, in
//! the driver's own memory, so that a caller of the table gets the driver's own address.
//!
//! The table is in no documentation. An array of pointers, the first word its size in bytes; slots 213, 214 and 215 list
//! compute, graphics and MPS processes, in entries of 4128 bytes, and slot 20 resets a GPU. Observed in the calls of
//! nvidia-smi 535.261.03 with the table of libnvidia-ml 535.261.03 (245 words, all in RELRO), and described so for 580.65.06
//! by NVIDIA's own mock of the library (k8s-test-infra); for other drivers it is inferred. So nothing is believed: a table
//! that does not look like this is left alone, a call whose arguments are not those of a list goes to the driver as it
//! came, and a list is changed only if it says of which processes it is what the public lists say.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError};

use divvy_driver::sys::nvml::{NO_INSTANCE, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_t};

use super::lists::{self, Entry, List, everyone};
use super::{limited, uuid_of};
use crate::log;
use crate::process;
use crate::route::elf;
use crate::route::hook::{Real, guarded};
use crate::table::real;

const ID: [u8; 16] = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];

/// More words than the table has. A larger answer would be of another layout, which is passed on unchanged.
const MOST_WORDS: usize = 4096;
/// How often lists are compared before they are found to differ: programs may start and end between two. Two lists
/// differ in a row only where processes start all the time; eight times in a row is a difference of layout. More than
/// once is enough on an idle machine; eight leave room for a busy one.
const TRIES: usize = 8;
/// More entries than nvidia-smi has room for; it offers 250 or 500.
const MOST_ROOM: c_uint = 1 << 16;

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

// SAFETY: integers only.
unsafe impl Entry for Row {
    fn pid(&self) -> u32 {
        self.pid
    }
    fn show(&mut self, used: u64) {
        self.used = used;
    }
    fn of(pid: u32) -> Option<Self> {
        let mut row = Row {
            pid,
            used: 0,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected: 0,
            name: [0; 4096],
        };
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

/// The signature of a slot of which nothing is known: as many arguments as there are in registers.
type Unknown = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> nvmlReturn_t;

/// One slot that is replaced: where it is in the table, what is put there, and what was there before.
struct PatchedEntry {
    index: usize,
    replacement: Unknown,
    original: AtomicPtr<c_void>,
}

static SLOTS: [PatchedEntry; 4] = [
    PatchedEntry::new(20, reset),
    PatchedEntry::new(213, compute),
    PatchedEntry::new(214, graphics),
    PatchedEntry::new(215, mps),
];

impl PatchedEntry {
    const fn new(index: usize, replacement: Unknown) -> Self {
        PatchedEntry {
            index,
            replacement,
            original: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The driver's function. The replacement was called, so it is in the table, and this is known.
    fn original(&self) -> Unknown {
        // SAFETY: the address of a function of the driver, which takes no more than was passed in registers.
        unsafe { std::mem::transmute::<*mut c_void, Unknown>(self.original.load(Acquire)) }
    }

    /// The same, where it lists processes.
    fn list(&self) -> List<Row> {
        // SAFETY: called only with a device, a count and room for rows, which a list takes; the real function was
        // called with the same.
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
            warn_unfiltered("has an unknown version of the table for nvidia-smi");
        }
    }
    result
}

/// Puts our functions into the table; false when it is not as it is known to be, or cannot be written.
fn replace(table: *mut *mut c_void) -> bool {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if table.is_null() {
        return false;
    }
    // SAFETY: the first word of the driver's table is readable, even if its meaning is unknown.
    let bytes = unsafe { table.cast::<usize>().read() };
    let words = bytes / size_of::<usize>();
    let last = SLOTS[SLOTS.len() - 1].index;
    if !bytes.is_multiple_of(size_of::<usize>()) || words <= last || words > MOST_WORDS {
        return false;
    }
    // SAFETY: the table is that long.
    let place = |slot: &PatchedEntry| unsafe { table.add(slot.index) };
    // SAFETY: inside the table.
    let found = |slot: &PatchedEntry| unsafe { place(slot).read() };
    let is_ours = |slot: &PatchedEntry| found(slot) == slot.replacement as *mut c_void;
    let replace = |slot: &PatchedEntry| {
        is_ours(slot)
            || while_writable(place(slot), || {
                slot.original.store(found(slot), Release);
                // SAFETY: inside the table, and writable now. A concurrent reader finds the old pointer or the new one.
                unsafe { AtomicPtr::from_ptr(place(slot)) }
                    .store(slot.replacement as *mut c_void, Release);
            })
    };
    let known = |slot: &PatchedEntry| is_ours(slot) || is_neighbour(table, found(slot));
    SLOTS.iter().all(known) && SLOTS.iter().all(replace)
}

/// Whether `function` is code of the library in which the table lies.
fn is_neighbour(table: *const *mut c_void, function: *const c_void) -> bool {
    let both = |object: &elf::Object<'_>| {
        (object.contains(table.cast()) && object.protection(function)? & libc::PROT_EXEC != 0)
            .then_some(())
    };
    elf::find(both).is_some()
}

/// Does `act` while the page of that word is writable; false where that cannot be had. Code is never made writable.
fn while_writable(place: *mut *mut c_void, act: impl FnOnce()) -> bool {
    let Some(protection) = elf::find(|object| object.protection(place.cast())) else {
        return false;
    };
    if protection & libc::PROT_WRITE != 0 {
        act();
        return true;
    }
    if protection & libc::PROT_EXEC != 0 {
        return false;
    }
    let (start, page) = page_of(place.cast());
    // SAFETY: a page of a loaded library's data, which stays readable throughout; a word does not reach into the next.
    let protect = |protection: c_int| unsafe { libc::mprotect(start, page, protection) == 0 };
    if !protect(protection | libc::PROT_WRITE) {
        return false;
    }
    act();
    // A page that cannot be protected again still works.
    protect(protection);
    true
}

/// The page in which `address` lies, and the size of pages.
fn page_of(address: *const c_void) -> (*mut c_void, usize) {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    (
        address.map_addr(|address| address & !(page - 1)).cast_mut(),
        page,
    )
}

/// Whether there is memory at that address.
fn is_mapped(address: *const c_void) -> bool {
    let (start, page) = page_of(address);
    let mut resident = 0;
    // SAFETY: asks about one page, with room for its answer; an address without memory is an error.
    !address.is_null() && unsafe { libc::mincore(start, page, &mut resident) } == 0
}

/// Resetting a GPU is not for a slice to do.
unsafe extern "C" fn reset(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> nvmlReturn_t {
    // SAFETY: the caller's own arguments, passed on unchanged.
    let call = || unsafe { SLOTS[0].original()(a, b, c, d, e, f) };
    guarded((), call, |real| match limited() {
        Some(_) if is_device(a as nvmlDevice_t) => nvmlReturn_t::NO_PERMISSION,
        _ => real.call(),
    })
}

/// The replacement of a list: `NAME = slot, handler`.
macro_rules! replacements {
    ($($name:ident = $slot:literal, $handler:path;)*) => {$(
        unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> nvmlReturn_t {
            // SAFETY: the caller's own arguments, passed on unchanged.
            let call = || unsafe { SLOTS[$slot].original()(a, b, c, d, e, f) };
            let (device, count, rows) = (a as nvmlDevice_t, b as *mut c_uint, c as *mut Row);
            guarded(SLOTS[$slot].list(), call, |real| {
                if limited().is_none() || !is_device(device) || !is_room(count, rows) {
                    real.call()
                } else if rows_are_as_known(real.function, device) {
                    $handler(real, device, count, rows)
                } else {
                    warn_unfiltered("reports processes to nvidia-smi in an unknown layout");
                    real.call()
                }
            })
        }
    )*};
}
replacements! {
    compute = 1, lists::compute;
    graphics = 2, lists::others;
    mps = 3, lists::others;
}

fn is_device(device: nvmlDevice_t) -> bool {
    uuid_of(device).is_some()
}

/// Whether these can be a count, and room for as many rows.
fn is_room(count: *const c_uint, rows: *const Row) -> bool {
    // SAFETY: mapped, and read as the driver's list would.
    let room = || unsafe { count.read() };
    count.is_aligned()
        && is_mapped(count.cast())
        && is_mapped(rows.cast())
        && (1..=MOST_ROOM).contains(&room())
}

/// Whether the rows are laid out as described: read so, they are about processes that the public lists have as well. Those
/// are asked for before and after, and all of it several times, for processes come and go.
fn rows_are_as_known(list: List<Row>, device: nvmlDevice_t) -> bool {
    let agree = || {
        let before = public(device);
        // SAFETY: room for `count` rows of the known layout.
        let Ok(rows) = everyone(|count, rows| unsafe { list(device, count, rows) }) else {
            return true;
        };
        let known: Vec<u32> = before.into_iter().chain(public(device)).collect();
        rows.iter().all(|row: &Row| known.contains(&row.pid))
    };
    (0..TRIES).any(|_| agree())
}

/// The processes on a GPU by the public lists of all kinds.
fn public(device: nvmlDevice_t) -> Vec<u32> {
    let lists = [
        real::nvmlDeviceGetComputeRunningProcesses_v3.get(),
        real::nvmlDeviceGetGraphicsRunningProcesses_v3.get(),
        real::nvmlDeviceGetMPSComputeRunningProcesses_v3.get(),
    ];
    let ask = |list: List<nvmlProcessInfo_t>| {
        // SAFETY: room for `count` entries of the function's own version.
        everyone(|count, entries| unsafe { list(device, count, entries) }).unwrap_or_default()
    };
    let listed = lists.into_iter().flatten().flat_map(ask);
    listed.map(|entry| entry.pid).collect()
}

/// Says once that nvidia-smi shows more than the slice, and counts it.
fn warn_unfiltered(what: &str) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    process::alarm();
    if !TOLD.swap(true, Relaxed) {
        log::write_line(&format!(
            "this driver {what}, so nvidia-smi also lists processes of other slices"
        ));
    }
}
