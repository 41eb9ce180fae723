//! Bindings of physical memory: to tiles of sparse and deferred arrays, and to multicast objects. It is charged where
//! it is created; what is bound keeps it alive, as a mapping does (documented for multicast objects, inferred for
//! arrays).

use std::ffi::{c_uint, c_ulonglong};
use std::slice;

use divvy_driver::sys::cuda::{
    CUarrayMapInfo, CUarraySparseSubresourceType, CUdevice, CUdeviceptr,
    CUmemGenericAllocationHandle, CUmemOperationType, CUmulticastObjectProp, CUresourcetype,
    CUresult, CUstream,
};

use crate::account::ProcessAccount;
use crate::charge::mappings::{BindingRegion, Bound};
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::pointers::key;
use crate::device::DeviceMembership;
use crate::process;
use crate::route::hook::Real;

/// Bindings that are about to end, removed from the table before the driver is called.
pub struct Unbinding {
    account: &'static ProcessAccount,
    bound: Bound,
}

impl Unbinding {
    /// Everything that is bound to a resource: an array's key, or a multicast object's handle.
    pub fn all(account: &'static ProcessAccount, resource: u64) -> Self {
        Self::part(account, resource, None)
    }

    fn part(account: &'static ProcessAccount, resource: u64, part: Option<BindingRegion>) -> Self {
        Unbinding {
            account,
            bound: account.mappings().take_bound(resource, part),
        }
    }

    /// The driver has answered.
    pub fn end(self, result: CUresult) {
        let mut mappings = self.account.mappings();
        if result == CUresult::SUCCESS {
            let dead = mappings.unbound(self.bound);
            drop(mappings);
            drop(dead);
        } else {
            mappings.undo_take(self.bound);
        }
    }
}

/// `cuMemMapArrayAsync`. What is unbound in the order of a stream counts as unbound at once.
pub fn map_arrays<F>(
    real: Real<'_, F>,
    list: *mut CUarrayMapInfo,
    count: c_uint,
    _stream: CUstream,
) -> CUresult {
    let Some(account) = process::account().filter(|_| !list.is_null()) else {
        return real.call();
    };
    // SAFETY: the program's list, of so many operations, which the driver would read too.
    let list = unsafe { slice::from_raw_parts(list, count as usize) };
    let of = |wanted| {
        list.iter()
            .filter(move |one| one.memOperationType == wanted)
    };
    let unbound: Vec<_> = of(CUmemOperationType::UNMAP)
        .map(|one| Unbinding::part(account, resource_of(one), Some(part_of(one))))
        .collect();
    let result = real.call();
    unbound.into_iter().for_each(|one| one.end(result));
    // Of several operations some may have been done before one was refused.
    if result == CUresult::SUCCESS || count > 1 {
        for one in of(CUmemOperationType::MAP) {
            bind(account, resource_of(one), part_of(one), one.memHandle);
        }
    }
    result
}

fn resource_of(one: &CUarrayMapInfo) -> u64 {
    match one.resourceType {
        CUresourcetype::MIPMAPPED_ARRAY => key::mipmapped_array(one.resource.cast()),
        _ => key::array(one.resource.cast()),
    }
}

fn part_of(one: &CUarrayMapInfo) -> BindingRegion {
    // The header's structures, two numbers of 32 bits in a word: level, layer, offsets and extents; or of a tail, layer,
    // offset and size.
    let [a, b, c, d] = one.subresource;
    let low = |word: u64| word & u64::from(u32::MAX);
    let high = |word: u64| word >> 32;
    let kind = u64::from(one.subresourceType.0);
    let (surface, from, size) = match one.subresourceType {
        CUarraySparseSubresourceType::MIPTAIL => ([kind, low(a)], [b, 0, 0], [c, 1, 1]),
        _ => {
            let from = [low(b), high(b), low(c)];
            ([kind, a], from, [high(c), low(d), high(d)])
        }
    };
    let to = std::array::from_fn(|axis| from[axis].saturating_add(size[axis]));
    BindingRegion { surface, from, to }
}

fn bind(
    account: &'static ProcessAccount,
    resource: u64,
    part: BindingRegion,
    handle: CUmemGenericAllocationHandle,
) {
    let dead = account.mappings().bind(resource, part, handle);
    drop(dead);
}

/// `cuMulticastCreate`: an object that has no memory of its own.
pub fn create_multicast<F>(
    real: Real<'_, F>,
    handle: *mut CUmemGenericAllocationHandle,
    _of: *const CUmulticastObjectProp,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
        && let Some(place) = account.first_place()
    {
        // SAFETY: the driver has just written the handle.
        let handle = unsafe { handle.read() };
        let old = account
            .mappings()
            .create(handle, MemoryCharge::nothing(place));
        drop(old);
    }
    result
}

pub fn bind_memory<F>(
    real: Real<'_, F>,
    to: CUmemGenericAllocationHandle,
    at: usize,
    handle: CUmemGenericAllocationHandle,
    _offset: usize,
    _size: usize,
    _flags: c_ulonglong,
) -> CUresult {
    bound(&real, to, at, |_| Some(handle))
}

#[expect(clippy::too_many_arguments, reason = "they are the driver's")]
pub fn bind_memory_on<F>(
    real: Real<'_, F>,
    to: CUmemGenericAllocationHandle,
    _device: CUdevice,
    at: usize,
    handle: CUmemGenericAllocationHandle,
    _offset: usize,
    _size: usize,
    _flags: c_ulonglong,
) -> CUresult {
    bound(&real, to, at, |_| Some(handle))
}

pub fn bind_address<F>(
    real: Real<'_, F>,
    to: CUmemGenericAllocationHandle,
    at: usize,
    address: CUdeviceptr,
    _size: usize,
    _flags: c_ulonglong,
) -> CUresult {
    bound(&real, to, at, |account| {
        account.mappings().mapped_at(address)
    })
}

pub fn bind_address_on<F>(
    real: Real<'_, F>,
    to: CUmemGenericAllocationHandle,
    _device: CUdevice,
    at: usize,
    address: CUdeviceptr,
    _size: usize,
    _flags: c_ulonglong,
) -> CUresult {
    bound(&real, to, at, |account| {
        account.mappings().mapped_at(address)
    })
}

fn bound<F>(
    real: &Real<'_, F>,
    to: CUmemGenericAllocationHandle,
    at: usize,
    handle: impl FnOnce(&'static ProcessAccount) -> Option<CUmemGenericAllocationHandle>,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
        && let Some(handle) = handle(account)
    {
        // A guard in the condition would live through the body, and `bind` takes the same lock.
        let backing = account.mappings().backing(handle);
        if let Some(backing) = backing {
            let part = on(backing.place().gpu, at);
            bind(account, key::multicast(to), part, handle);
        }
    }
    result
}

/// The part of a multicast object that a GPU has there.
fn on(gpu: usize, at: usize) -> BindingRegion {
    BindingRegion {
        surface: [gpu as u64, at as u64],
        from: [0; 3],
        to: [1; 3],
    }
}

pub fn unbind<F>(
    real: Real<'_, F>,
    from: CUmemGenericAllocationHandle,
    device: CUdevice,
    at: usize,
    _size: usize,
) -> CUresult {
    let unbinding = match process::account().map(|account| (account, account.belongs(device))) {
        Some((account, DeviceMembership::InSlice(place))) => {
            let part = on(place.gpu, at);
            Some(Unbinding::part(account, key::multicast(from), Some(part)))
        }
        _ => None,
    };
    let result = real.call();
    if let Some(unbinding) = unbinding {
        unbinding.end(result);
    }
    result
}
