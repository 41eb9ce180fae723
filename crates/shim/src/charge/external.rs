//! External memory imported from other interfaces, such as Vulkan. The importer is charged the size that the program
//! states, until the import is destroyed and all its mappings are gone (inferred: a mapping keeps the memory alive, as
//! with physical memory). Memory that processes of the slice share by descriptor is recognised here and counted once.

use std::ffi::c_int;
use std::sync::Arc;

use divvy_driver::sys::cuda::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, CUdeviceptr, CUexternalMemory,
    CUexternalMemoryHandleType, CUmipmappedArray, CUresult,
};

use crate::account::ProcessAccount;
use crate::charge::descriptor_tag;
use crate::charge::memory;
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::pointers::{Allocation, AllocationBacking, key};
use crate::device::{self, Admission};
use crate::process;
use crate::route::hook::Real;

pub fn import<F>(
    real: Real<'_, F>,
    memory: *mut CUexternalMemory,
    of: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    // SAFETY: null, or the program's description, which the driver would read too.
    let Some(of) = unsafe { of.as_ref() }.filter(|_| !memory.is_null()) else {
        return real.call();
    };
    let place = match device::admit_current() {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let is_descriptor = of.type_ == CUexternalMemoryHandleType::OPAQUE_FD;
    // The descriptor is the low half of the union.
    let key = is_descriptor
        .then(|| descriptor_tag::get(of.handle[0] as c_int))
        .flatten()
        .map(|mark| mark.key);
    let Ok(holding) = MemoryCharge::import(place, key, of.size) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        // SAFETY: not null, and the driver has just written the handle.
        let key = key::external(unsafe { memory.read() });
        let context = device::current_context() as usize;
        track(
            place.account,
            key,
            place.gpu,
            context,
            AllocationBacking::Held(holding),
        );
    }
    result
}

pub fn map_buffer<F>(
    real: Real<'_, F>,
    address: *mut CUdeviceptr,
    memory: CUexternalMemory,
    _of: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> CUresult {
    // SAFETY: the driver has written the address when this is called.
    mapped(&real, memory, || unsafe { address.read() })
}

pub fn map_array<F>(
    real: Real<'_, F>,
    array: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    _of: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
) -> CUresult {
    mapped(&real, memory, || {
        // SAFETY: the driver has written the handle when this is called.
        key::mipmapped_array(unsafe { array.read() })
    })
}

fn mapped<F>(real: &Real<'_, F>, memory: CUexternalMemory, key: impl Fn() -> u64) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
        && let Some(whole) = account.pointers.get(key::external(memory))
        && let AllocationBacking::Held(holding) = whole.backing
    {
        let part = AllocationBacking::Part(Arc::clone(&holding));
        // Independent of the current context: a mapping is assumed to live as long as the context of the import.
        track(account, key(), whole.gpu, whole.context, part);
    }
    result
}

fn track(account: &ProcessAccount, key: u64, gpu: usize, context: usize, what: AllocationBacking) {
    let allocation = Allocation {
        gpu,
        bytes: 0,
        context,
        era: account.pointers.era(),
        backing: what,
    };
    account.pointers.insert(key, allocation);
}

pub fn destroy<F>(real: Real<'_, F>, memory: CUexternalMemory) -> CUresult {
    memory::release(&real, key::external(memory), ProcessAccount::release)
}
