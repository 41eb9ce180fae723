//! NVML's process lists, reduced to the slice's entries on every GPU.
//!
//! The driver's lists are filtered. A list of compute processes is also completed from the ledger: inside a container
//! the driver may list nothing, or pids of another namespace.
//!
//! Entries of compute, graphics and MPS processes are wider for some drivers, and the program expects its own driver's
//! width ([`divvy_driver::nvml::entries`]).

use std::ffi::c_uint;

use divvy_driver::nvml::entries::{Entries, WIDEST};
use divvy_driver::sys::nvml::{
    NO_INSTANCE, nvmlDevice_t, nvmlEncoderSessionInfo_t, nvmlFBCSessionInfo_t,
    nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_t, nvmlReturn_t, pfn, struct_version,
};

use super::members::Members;
use super::{gpu_of, limited};
use crate::account::ProcessAccount;
use crate::route::hook::Real;

/// Room for new entries between two calls. Processes that start between two calls, microseconds apart, are few; a list
/// that is still too short is asked again. So 64 are enough: more would only enlarge each copy.
const SPARE: usize = 64;
/// More processes than one GPU has.
const MOST: usize = 1 << 16;

/// One entry of a list, about one process: integers, so that any bytes are one.
///
/// # Safety
/// Every bit pattern is a valid value.
pub unsafe trait Entry: Copy {
    /// Whether some drivers write wider entries than the function's declaration says.
    const IS_WIDER_SOMEWHERE: bool = false;
    fn pid(&self) -> u32;
    /// Shows what the process uses, where the list has that.
    fn show(&mut self, _used: u64) {}
    /// An entry that the driver did not write, where the list can be completed.
    fn of(_pid: u32) -> Option<Self> {
        None
    }
}

// SAFETY: integers only.
unsafe impl Entry for nvmlProcessInfo_v1_t {
    fn pid(&self) -> u32 {
        self.pid
    }
    fn show(&mut self, used: u64) {
        self.usedGpuMemory = used;
    }
    fn of(pid: u32) -> Option<Self> {
        Some(nvmlProcessInfo_v1_t {
            pid,
            usedGpuMemory: 0,
        })
    }
}

// SAFETY: integers only.
unsafe impl Entry for nvmlProcessInfo_v2_t {
    const IS_WIDER_SOMEWHERE: bool = true;
    fn pid(&self) -> u32 {
        self.pid
    }
    fn show(&mut self, used: u64) {
        self.usedGpuMemory = used;
    }
    fn of(pid: u32) -> Option<Self> {
        Some(nvmlProcessInfo_v2_t {
            pid,
            usedGpuMemory: 0,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        })
    }
}

// SAFETY: integers only.
unsafe impl Entry for nvmlProcessDetail_v1_t {
    fn pid(&self) -> u32 {
        self.pid
    }
    fn show(&mut self, used: u64) {
        self.usedGpuMemory = used;
    }
    fn of(pid: u32) -> Option<Self> {
        Some(nvmlProcessDetail_v1_t {
            pid,
            usedGpuMemory: 0,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
            usedGpuCcProtectedMemory: 0,
        })
    }
}

/// Entries about a process that say nothing about its memory, and that only the driver can make.
macro_rules! filtered {
    ($($entry:ident)*) => {$(
        // SAFETY: integers only.
        unsafe impl Entry for $entry {
            fn pid(&self) -> u32 {
                self.pid
            }
        }
    )*};
}
filtered! {
    nvmlProcessUtilizationSample_t nvmlProcessUtilizationInfo_v1_t nvmlEncoderSessionInfo_t nvmlFBCSessionInfo_t
}

/// The signature of all lists by count and array; versions differ in their entries.
pub type List<E> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut E) -> nvmlReturn_t;

/// Lists of compute processes: the slice's, complete.
pub fn compute<E: Entry>(
    real: Real<'_, List<E>, nvmlReturn_t>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut E,
) -> nvmlReturn_t {
    list(&real, device, count, infos, true)
}

/// Other lists of processes: those of the slice that the driver lists.
pub fn others<E: Entry>(
    real: Real<'_, List<E>, nvmlReturn_t>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut E,
) -> nvmlReturn_t {
    list(&real, device, count, infos, false)
}

fn list<E: Entry>(
    real: &Real<'_, List<E>, nvmlReturn_t>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut E,
    complete: bool,
) -> nvmlReturn_t {
    let Some(account) = limited() else {
        return real.call();
    };
    let Some(mut room) = OutputList::of(count, infos) else {
        return real.call();
    };
    // SAFETY: room for `count` entries of any layout.
    let all = whole(|count, entries| unsafe { (real.function)(device, count, entries) });
    match all {
        Ok((stride, all)) => {
            let entries = all.iter().map(|(entry, _)| *entry).collect();
            let rest = |entry: &E| {
                let theirs = all.iter().find(|(theirs, _)| theirs.pid() == entry.pid());
                theirs.map_or([0; WIDEST], |(_, rest)| *rest)
            };
            room.answer_in(stride, rest, &ours(account, device, entries, complete))
        }
        Err(result) => result,
    }
}

/// The mode of a detailed list that asks for compute processes.
const COMPUTE: c_uint = 0;

pub fn details(
    real: Real<'_, pfn::nvmlDeviceGetRunningProcessDetailList, nvmlReturn_t>,
    device: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_t,
) -> nvmlReturn_t {
    let version = struct_version::<nvmlProcessDetailList_t>(1);
    // SAFETY: null, or the program's structure, which the driver would read and write too.
    let list = unsafe { list.as_mut() }.filter(|list| list.version == version);
    let (Some(account), Some(list)) = (limited(), list) else {
        return real.call();
    };
    let Some(mut room) = OutputList::of(&raw mut list.numProcArrayEntries, list.procArray) else {
        return real.call();
    };
    let (mode, mut own) = (list.mode, *list);
    let all = everyone(|count, entries| {
        (own.numProcArrayEntries, own.procArray) = (*count, entries);
        // SAFETY: a structure of the version it says, with room for as many entries as it says.
        let result = unsafe { (real.function)(device, &mut own) };
        *count = own.numProcArrayEntries;
        result
    });
    match all {
        Ok(all) => room.answer(&ours(account, device, all, mode == COMPUTE)),
        Err(result) => result,
    }
}

pub fn utilization(
    real: Real<'_, pfn::nvmlDeviceGetProcessUtilization, nvmlReturn_t>,
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: u64,
) -> nvmlReturn_t {
    let Some(account) = limited() else {
        return real.call();
    };
    let Some(mut room) = OutputList::of(count, samples) else {
        return real.call();
    };
    // SAFETY: room for `count` samples.
    let ask =
        |count: &mut _, samples| unsafe { (real.function)(device, samples, count, last_seen) };
    match everyone(ask) {
        Ok(all) => room.answer_some(&ours(account, device, all, false)),
        Err(result) => result,
    }
}

pub fn utilization_info(
    real: Real<'_, pfn::nvmlDeviceGetProcessesUtilizationInfo, nvmlReturn_t>,
    device: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_t,
) -> nvmlReturn_t {
    let version = struct_version::<nvmlProcessesUtilizationInfo_t>(1);
    // SAFETY: null, or the program's structure, which the driver would read and write too.
    let info = unsafe { info.as_mut() }.filter(|info| info.version == version);
    let (Some(account), Some(info)) = (limited(), info) else {
        return real.call();
    };
    let Some(mut room) = OutputList::of(&raw mut info.processSamplesCount, info.procUtilArray)
    else {
        return real.call();
    };
    let mut own = *info;
    let all = everyone(|count, samples| {
        (own.processSamplesCount, own.procUtilArray) = (*count, samples);
        // SAFETY: a structure of the version it says, with room for as many samples as it says.
        let result = unsafe { (real.function)(device, &mut own) };
        *count = own.processSamplesCount;
        result
    });
    match all {
        Ok(all) => room.answer_some(&ours(account, device, all, false)),
        Err(result) => result,
    }
}

/// The entries of the driver's list that belong to the slice.
fn ours<E: Entry>(
    account: &ProcessAccount,
    device: nvmlDevice_t,
    mut all: Vec<E>,
    complete: bool,
) -> Vec<E> {
    let members = Members::of(account);
    all.retain(|entry| members.get(entry.pid()).is_some_and(|member| member.lives));
    if let Some(gpu) = gpu_of(account, device) {
        if complete {
            let listed = |pid| all.iter().any(|entry: &E| entry.pid() == pid);
            let missing = members.on(gpu).filter(|(pid, _)| !listed(*pid));
            let missing: Vec<E> = missing.filter_map(|(pid, _)| E::of(pid)).collect();
            all.extend(missing);
        }
        for entry in &mut all {
            let member = members.get(entry.pid());
            entry.show(member.map_or(0, |member| member.used(gpu)));
        }
    }
    all
}

/// The driver's whole list. `ask` is given how many entries there is room for, and where.
///
/// # Errors
/// The driver's.
pub fn everyone<E: Entry>(
    ask: impl FnMut(&mut c_uint, *mut E) -> nvmlReturn_t,
) -> Result<Vec<E>, nvmlReturn_t> {
    whole(ask).map(|(_, all)| all.into_iter().map(|(entry, _)| entry).collect())
}

/// An entry as declared, and what the driver wrote after it.
type WholeEntry<E> = (E, [u8; WIDEST]);

/// The driver's whole list, and how many bytes apart its entries are.
fn whole<E: Entry>(
    mut ask: impl FnMut(&mut c_uint, *mut E) -> nvmlReturn_t,
) -> Result<(usize, Vec<WholeEntry<E>>), nvmlReturn_t> {
    let mut room = SPARE;
    loop {
        let mut entries = Entries::<E>::with_room(room);
        let mut count = room as c_uint;
        let result = ask(&mut count, entries.as_mut_ptr());
        let count = count as usize;
        match result {
            nvmlReturn_t::SUCCESS => {
                let stride = if E::IS_WIDER_SOMEWHERE {
                    entries.stride(count)
                } else {
                    size_of::<E>()
                };
                // SAFETY: any bytes are an entry.
                return Ok((stride, unsafe { entries.read(count, stride) }));
            }
            nvmlReturn_t::INSUFFICIENT_SIZE if room < MOST => room = count.max(room) + SPARE,
            result => return Err(result),
        }
    }
}

/// Where the program wants its list.
pub struct OutputList<E> {
    count: *mut c_uint,
    entries: *mut E,
    room: usize,
}

impl<E: Copy> OutputList<E> {
    /// `None` where the driver shall say itself that this is no place for a list.
    pub fn of(count: *mut c_uint, entries: *mut E) -> Option<Self> {
        if count.is_null() {
            return None;
        }
        // SAFETY: not null; the driver would read it too.
        let room = unsafe { count.read() } as usize;
        (room == 0 || !entries.is_null()).then_some(OutputList {
            count,
            entries,
            room,
        })
    }

    /// Answers as NVML does: how many there are, and as many if there is room.
    pub fn answer(&mut self, list: &[E]) -> nvmlReturn_t {
        self.answer_in(size_of::<E>(), |_| [0; WIDEST], list)
    }

    /// The same in entries of `stride` bytes, each with its `rest`.
    fn answer_in(
        &mut self,
        stride: usize,
        rest: impl Fn(&E) -> [u8; WIDEST],
        list: &[E],
    ) -> nvmlReturn_t {
        // SAFETY: not null, and the driver would write it too.
        unsafe { self.count.write(list.len() as c_uint) };
        if list.len() > self.room {
            return nvmlReturn_t::INSUFFICIENT_SIZE;
        }
        let start = self.entries.cast::<u8>();
        for (at, entry) in list.iter().enumerate() {
            let rest = &rest(entry)[..stride - size_of::<E>()];
            // SAFETY: the program says that there is room for so many entries, and they are as wide as its driver's.
            unsafe {
                let place = start.add(at * stride);
                place.cast::<E>().write_unaligned(*entry);
                place
                    .add(size_of::<E>())
                    .copy_from_nonoverlapping(rest.as_ptr(), rest.len());
            }
        }
        nvmlReturn_t::SUCCESS
    }

    /// The same for lists of samples, of which having none is an error.
    fn answer_some(&mut self, list: &[E]) -> nvmlReturn_t {
        match self.answer(list) {
            nvmlReturn_t::SUCCESS if list.is_empty() => nvmlReturn_t::NOT_FOUND,
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that writes `stride` bytes for each of its processes.
    fn driver(
        stride: usize,
        pids: Vec<u32>,
    ) -> impl FnMut(&mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t {
        move |count, entries| {
            let room = std::mem::replace(count, pids.len() as c_uint) as usize;
            if room < pids.len() {
                return nvmlReturn_t::INSUFFICIENT_SIZE;
            }
            for (at, pid) in pids.iter().enumerate() {
                let entry = nvmlProcessInfo_v2_t::of(*pid).expect("a process list is completed");
                // SAFETY: room for `count` entries of the widest layout.
                unsafe {
                    let place = entries.cast::<u8>().add(at * stride);
                    place.write_bytes(*pid as u8, stride);
                    place.cast::<nvmlProcessInfo_v2_t>().write_unaligned(entry);
                }
            }
            nvmlReturn_t::SUCCESS
        }
    }

    #[test]
    fn a_process_list_is_answered_in_the_drivers_own_stride() {
        const OWN: usize = size_of::<nvmlProcessInfo_v2_t>();
        for stride in [OWN, 32, 40] {
            for processes in [1u32, 3, 40, 49, 64, 65, 193, 400] {
                let pids: Vec<u32> = (1..=processes).collect();
                let (found, all) = whole(driver(stride, pids)).unwrap();
                assert_eq!((found, all.len()), (stride, processes as usize));
                // The last of the driver's, and one that only the ledger knows.
                let (last, rest) = *all.last().unwrap();
                let list = [last, nvmlProcessInfo_v2_t::of(7777).unwrap()];
                let mut room = vec![0u64; 2 * stride / 8];
                let mut count = 2;
                let mut output = OutputList::of(&raw mut count, room.as_mut_ptr().cast()).unwrap();
                let rest = |entry: &nvmlProcessInfo_v2_t| {
                    if entry.pid == last.pid {
                        rest
                    } else {
                        [0; WIDEST]
                    }
                };
                assert_eq!(output.answer_in(found, rest, &list), nvmlReturn_t::SUCCESS);
                let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let pid = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
                assert_eq!((pid(0), pid(stride)), (processes, 7777));
                assert!(
                    bytes[OWN..stride]
                        .iter()
                        .all(|byte| *byte == processes as u8)
                );
                assert!(bytes[stride + OWN..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
