//! Memory shared between processes: CUDA IPC handles, exported handles of physical memory, allocations of shared pools.
//!
//! Shared memory is counted once in a slice. An exporting process moves its charge to a shared line of the ledger
//! (`memory_charge`), under a key that both sides derive: from the driver's 64 bytes, or from a tag on the descriptor
//! (`descriptor_tag`). So it is counted until the last holder is gone, the exporter or an importer. Memory of another
//! slice, or of a process in none, is charged to its first importer in this one; so is memory without a key.
//!
//! The importer becomes a holder before it asks the driver (`ProcessAccount::hold_ahead`): another holder may free the memory at any time,
//! and the slice must count it for as long as the driver keeps it. Where no process of the slice shares the memory and no mark
//! tells how much it is, the limiter imports it first and charges it then; what does not fit is given up again before the program
//! hears of it.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUipcMemHandle, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemPoolPtrExportData, CUmemoryPool, CUpointer_attribute,
    CUresult,
};

use divvy_ledger::Denied;

use crate::account::{GpuAccount, ProcessAccount};
use crate::charge::descriptor_tag::{self, DescriptorTag};
use crate::charge::memory::granted;
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::pointers::{Allocation, AllocationBacking, NO_CONTEXT};
use crate::charge::pool::PoolLocation;
use crate::charge::{memory, vmm};
use crate::device::{self, Admission, DeviceMembership};
use crate::process::{self, LimiterState};
use crate::route::function::driver;
use crate::route::hook::Real;
use crate::table::real;

/// `CUmemFabricHandle` of cuda.h.
type FabricHandle = [u8; 64];

/// `cuIpcGetMemHandle`: the allocation may be opened by others from now on.
pub fn export_address<F>(
    real: Real<'_, F>,
    handle: *mut CUipcMemHandle,
    address: CUdeviceptr,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
    {
        // SAFETY: the driver has just written the handle.
        let key = key_of(unsafe { &*handle });
        let base = match account.pointers.get(address) {
            Some(_) => Some(address),
            None => around(address).map(|(base, _)| base),
        };
        if let Some(holding) = base.and_then(|base| account.holding_of(base)) {
            holding.export(key);
        }
    }
    result
}

impl ProcessAccount {
    /// The shared charge of the linear memory at an address; it is created if the memory was the process's own.
    fn holding_of(&'static self, address: CUdeviceptr) -> Option<Arc<MemoryCharge>> {
        let slot = self.joined()?;
        self.pointers.change(address, |allocation| {
            if matches!(allocation.backing, AllocationBacking::Linear) {
                let place = GpuAccount {
                    account: self,
                    slot,
                    gpu: allocation.gpu,
                };
                let own = std::mem::take(&mut allocation.bytes);
                allocation.backing = AllocationBacking::Held(MemoryCharge::new(place, own, 0));
            }
            match &allocation.backing {
                AllocationBacking::Held(holding) => Some(holding.clone()),
                _ => None,
            }
        })?
    }
}

/// The hash of a plain structure's bytes.
fn key_of<T>(handle: &T) -> u64 {
    let (at, length) = (std::ptr::from_ref(handle).cast::<u8>(), size_of::<T>());
    // SAFETY: the callers' structures are arrays of bytes, which the driver or the program has written.
    descriptor_tag::of_bytes(unsafe { std::slice::from_raw_parts(at, length) })
}

/// Beginning and size of the allocation around an address.
fn around(address: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
    let (mut base, mut size) = (0, 0);
    let ask = driver::cuMemGetAddressRange_v2.get()?;
    // SAFETY: the driver's function, with places for its answers.
    let result = unsafe { ask(&mut base, &mut size, address) };
    (result == CUresult::SUCCESS).then_some((base, size as u64))
}

/// The device that has the memory at an address.
fn device_at(address: CUdeviceptr) -> Option<CUdevice> {
    let mut device: c_int = 0;
    let ask = driver::cuPointerGetAttribute.get()?;
    let attribute = CUpointer_attribute::DEVICE_ORDINAL;
    // SAFETY: the driver's function, with a place of the type that the header gives for this attribute.
    let result = unsafe { ask((&raw mut device).cast(), attribute, address) };
    (result == CUresult::SUCCESS).then_some(device)
}

pub fn open<F>(
    real: Real<'_, F>,
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    _flags: c_uint,
) -> CUresult {
    let context = device::current_context() as usize;
    let opened = Import {
        key: key_of(&handle),
        context,
        give_up: |address| {
            if let Some(close) = real::cuIpcCloseMemHandle.get() {
                // SAFETY: what was just opened, and the program has not seen.
                unsafe { close(address) };
            }
        },
        what: |holding| AllocationBacking::Opened(holding, 1),
    };
    opened.run(&real, address)
}

pub fn close<F>(real: Real<'_, F>, address: CUdeviceptr) -> CUresult {
    let Some(account) = process::account() else {
        return real.call();
    };
    // Opened several times it has to be closed as often.
    let once_less = account
        .pointers
        .change(address, |allocation| match &mut allocation.backing {
            AllocationBacking::Opened(_, times) if *times > 1 => {
                *times -= 1;
                true
            }
            _ => false,
        });
    match once_less {
        Some(true) => {
            let result = real.call();
            if result != CUresult::SUCCESS {
                account.pointers.change(address, |allocation| {
                    if let AllocationBacking::Opened(_, times) = &mut allocation.backing {
                        *times += 1;
                    }
                });
            }
            result
        }
        _ => memory::release(&real, address, ProcessAccount::release),
    }
}

/// `cuMemPoolExportPointer`: an allocation of a shared pool may be imported by others from now on.
pub fn export_pooled<F>(
    real: Real<'_, F>,
    data: *mut CUmemPoolPtrExportData,
    address: CUdeviceptr,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
        && let Some((base, size)) = around(address)
    {
        // SAFETY: the driver has just written it.
        let key = key_of(unsafe { &*data });
        let lent = account.pointers.change(base, |allocation| {
            if let AllocationBacking::Pooled(pool) = &allocation.backing
                && let Some(holding) = pool.lend(size)
            {
                allocation.backing = AllocationBacking::Lent(pool.clone(), holding);
            }
            match &allocation.backing {
                AllocationBacking::Lent(_, holding) => Some(holding.clone()),
                _ => None,
            }
        });
        if let Some(holding) = lent.flatten() {
            holding.export(key);
        }
    }
    result
}

/// `cuMemPoolImportPointer`: an allocation of another process's pool.
pub fn import_pooled<F>(
    real: Real<'_, F>,
    address: *mut CUdeviceptr,
    _pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    if data.is_null() {
        return real.call();
    }
    let imported = Import {
        // SAFETY: not null, and the driver would read it too.
        key: key_of(unsafe { &*data }),
        context: NO_CONTEXT,
        give_up: |address| {
            if let Some(free) = real::cuMemFree_v2.get() {
                // SAFETY: what was just imported, and the program has not seen.
                unsafe { free(address) };
            }
        },
        what: AllocationBacking::Held,
    };
    imported.run(&real, address)
}

/// Something that a call gives an address of.
struct Import<G, W> {
    key: u64,
    context: usize,
    give_up: G,
    what: W,
}

impl<G: Fn(CUdeviceptr), W: Fn(Arc<MemoryCharge>) -> AllocationBacking> Import<G, W> {
    fn run<F>(self, real: &Real<'_, F>, address: *mut CUdeviceptr) -> CUresult {
        if address.is_null() {
            return real.call();
        }
        let current = match device::admit_current() {
            Admission::Charge(place) => place,
            Admission::Pass => return real.call(),
            Admission::Refuse => return CUresult::OUT_OF_MEMORY,
        };
        let mark = DescriptorTag {
            key: self.key,
            bytes: 0,
        };
        let Ok(ahead) = current.account.hold_ahead(mark) else {
            return CUresult::OUT_OF_MEMORY;
        };
        // SAFETY: not null, and the driver would write there.
        let before = unsafe { address.read() };
        let result = real.call();
        if result != CUresult::SUCCESS {
            return result;
        }
        // SAFETY: as above; the driver has just written it.
        let at = unsafe { address.read() };
        if self.charge(&current, ahead, at) {
            return result;
        }
        (self.give_up)(at);
        // SAFETY: as above.
        unsafe { address.write(before) };
        CUresult::OUT_OF_MEMORY
    }

    /// Counts what is at that address now. Returns whether it may stay.
    fn charge(
        &self,
        current: &GpuAccount,
        ahead: Option<Arc<MemoryCharge>>,
        at: CUdeviceptr,
    ) -> bool {
        let pointers = &current.account.pointers;
        if pointers.change(at, opened_again) == Some(true) {
            return true;
        }
        // A peer's memory is its own GPU's.
        let place = match device_at(at).map(|device| current.account.belongs(device)) {
            Some(DeviceMembership::InSlice(place)) => place,
            Some(DeviceMembership::OutsideSlice) => return false,
            Some(DeviceMembership::Unknown) | None => *current,
        };
        let size = around(at).map_or(0, |(_, size)| size);
        if size == 0 {
            process::alarm();
        }
        let mark = DescriptorTag {
            key: self.key,
            bytes: granted(size),
        };
        let Ok(holding) = held(ahead, place, Some(mark)) else {
            return false;
        };
        let allocation = Allocation {
            gpu: place.gpu,
            bytes: 0,
            context: self.context,
            era: pointers.era(),
            backing: (self.what)(holding),
        };
        // Another thread may have opened it meanwhile.
        let unneeded = pointers.insert_unless(at, allocation, opened_again);
        drop(unneeded);
        true
    }
}

/// The holder of newly imported memory: the one prepared before the call, if that was on the right GPU.
///
/// # Errors
/// It is to be charged and does not fit.
fn held(
    ahead: Option<Arc<MemoryCharge>>,
    place: GpuAccount,
    mark: Option<DescriptorTag>,
) -> Result<Arc<MemoryCharge>, Denied> {
    let bytes = mark.map_or(0, |mark| mark.bytes);
    match ahead.filter(|ahead| ahead.place().gpu == place.gpu) {
        Some(ahead) => ahead.grow(bytes).map(|()| ahead),
        None => MemoryCharge::import(place, mark.map(|mark| mark.key), bytes),
    }
}

/// One that is open already is opened once more. Returns whether it is one.
fn opened_again(allocation: &mut Allocation) -> bool {
    let AllocationBacking::Opened(_, times) = &mut allocation.backing else {
        return false;
    };
    *times += 1;
    true
}

/// `cuMemExportToShareableHandle`: others may import the memory from now on.
pub fn export_handle<F>(
    real: Real<'_, F>,
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> CUresult {
    let result = real.call();
    let backing = match result {
        CUresult::SUCCESS => {
            process::account().and_then(|account| account.mappings().backing(handle))
        }
        _ => None,
    };
    if let Some(backing) = backing {
        match kind {
            CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => {
                // SAFETY: the driver has just written a descriptor there.
                let descriptor = unsafe { shareable.cast::<c_int>().read() };
                let mark = DescriptorTag {
                    key: backing.key().unwrap_or_else(descriptor_tag::draw),
                    bytes: backing.bytes(),
                };
                // An importer that finds no mark holds what is shared, so it is shared without one, too.
                descriptor_tag::set(descriptor, mark);
                backing.export(mark.key);
            }
            CUmemAllocationHandleType::FABRIC => {
                // SAFETY: the driver has just written such a structure there.
                backing.export(key_of(unsafe { &*shareable.cast::<FabricHandle>() }));
            }
            _ => {}
        }
    }
    result
}

pub fn import_handle<F>(
    real: Real<'_, F>,
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    let account = match process::limiter_state() {
        LimiterState::Limited(account) if !handle.is_null() => account,
        // An import is of no device; a process has those of one kind.
        LimiterState::Refused(refusal) if refusal.spares(device::current().or(Some(0))) => {
            return real.call();
        }
        LimiterState::Refused(refusal) => {
            process::log_refusal(&refusal.cause);
            return CUresult::OUT_OF_MEMORY;
        }
        LimiterState::Off | LimiterState::Limited(_) => return real.call(),
    };
    let mark = match kind {
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => {
            descriptor_tag::get(shareable as usize as c_int)
        }
        CUmemAllocationHandleType::FABRIC if !shareable.is_null() => Some(DescriptorTag {
            // SAFETY: not null, and the driver would read it too.
            key: key_of(unsafe { &*shareable.cast::<FabricHandle>() }),
            bytes: 0,
        }),
        _ => None,
    };
    let Ok(ahead) = mark.map_or(Ok(None), |mark| account.hold_ahead(mark)) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let candidates = match mark {
        Some(_) => Vec::new(),
        None => account.hold_candidates(),
    };
    // SAFETY: not null, and the driver would write there.
    let before = unsafe { handle.read() };
    let result = real.call();
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: as above; the driver has just written it.
    let imported = unsafe { handle.read() };
    if account.hold_import(imported, ahead, mark, candidates) {
        return result;
    }
    if let Some(release) = real::cuMemRelease.get() {
        // SAFETY: the handle just imported, which the program has not seen.
        unsafe { release(imported) };
    }
    // SAFETY: as above.
    unsafe { handle.write(before) };
    CUresult::OUT_OF_MEMORY
}

impl ProcessAccount {
    /// Becomes a holder of memory that is to be imported: of the line under which the slice shares it, or else by a charge of
    /// this process's own, where the mark tells how much it is. `None`: neither is known.
    ///
    /// # Errors
    /// It is to be charged and does not fit.
    fn hold_ahead(&'static self, mark: DescriptorTag) -> Result<Option<Arc<MemoryCharge>>, Denied> {
        let Some(first) = self.first_place() else {
            return Ok(None);
        };
        let shared = first.slot.gpu_of_shared(mark.key);
        // The mark does not tell the GPU; where the guess is wrong the charge moves when the driver has answered.
        let current = || match device::current().map(|device| self.belongs(device)) {
            Some(DeviceMembership::InSlice(place)) => place,
            _ => first,
        };
        let place = match shared {
            Some(gpu) => GpuAccount { gpu, ..first },
            None if mark.bytes > 0 => current(),
            None => return Ok(None),
        };
        let holding = MemoryCharge::import(place, Some(mark.key), mark.bytes)?;
        Ok(Some(holding).filter(|holding| holding.is_counted()))
    }

    /// Becomes a holder of all that the slice shares by descriptor.
    fn hold_candidates(&'static self) -> Vec<Arc<MemoryCharge>> {
        let Some(first) = self.first_place() else {
            return Vec::new();
        };
        let keys = first.slot.shared_keys().into_iter();
        keys.filter(|(_, key)| descriptor_tag::is_drawn(*key))
            .filter_map(|(gpu, key)| MemoryCharge::candidate(GpuAccount { gpu, ..first }, key))
            .collect()
    }

    /// Counts what was imported under that handle, as far as it is known how much it is: where no process of the slice shares it
    /// and no mark tells, that is when it is mapped. Returns whether it may stay.
    fn hold_import(
        &'static self,
        handle: CUmemGenericAllocationHandle,
        ahead: Option<Arc<MemoryCharge>>,
        mark: Option<DescriptorTag>,
        mut candidates: Vec<Arc<MemoryCharge>>,
    ) -> bool {
        let device = location_of(handle).and_then(|at| vmm::device_of(&at.location));
        let place = match device.map(|device| self.belongs(device)) {
            Some(DeviceMembership::InSlice(place)) => place,
            Some(DeviceMembership::OutsideSlice) => return false,
            // Host memory, and multicast objects, which have none.
            Some(DeviceMembership::Unknown) | None => match self.first_place() {
                Some(place) => place,
                None => return false,
            },
        };
        let holding = match device {
            Some(_) => held(ahead, place, mark),
            None => Ok(MemoryCharge::nothing(place)),
        };
        let Ok(holding) = holding else {
            return false;
        };
        if device.is_some() {
            candidates.retain(|candidate| candidate.place().gpu == place.gpu);
            holding.may_be(candidates);
        }
        let unneeded = self.mappings().import(handle, holding);
        drop(unneeded);
        true
    }
}

fn location_of(handle: CUmemGenericAllocationHandle) -> Option<CUmemAllocationProp> {
    let mut properties = CUmemAllocationProp::default();
    let ask = driver::cuMemGetAllocationPropertiesFromHandle.get()?;
    // SAFETY: the driver's function, with a place for its answer.
    let result = unsafe { ask(&mut properties, handle) };
    (result == CUresult::SUCCESS).then_some(properties)
}

/// `cuMemPoolImportFromShareableHandle`: a pool from which nothing can be allocated here; what it is imported for are the
/// allocations in it.
pub fn import_pool<F>(
    real: Real<'_, F>,
    pool: *mut CUmemoryPool,
    _handle: *mut c_void,
    _kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
    {
        // SAFETY: the driver has just written the handle.
        let pool = unsafe { pool.read() };
        account.pools.take(pool);
        account.pools.insert(pool, PoolLocation::Imported);
    }
    result
}
