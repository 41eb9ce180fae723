//! Multicast objects.

use super::out;
use crate::engine::memory::multicast::Binding;
use crate::engine::objects::memory::LARGE;
use crate::engine::objects::result::Done;
use crate::engine::process::{Process, process};
use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUmemGenericAllocationHandle, CUmulticastGranularity_flags,
    CUmulticastObjectProp, CUresult,
};

exports! { cuda {
    cuMulticastCreate: (object, properties) => create;
    cuMulticastAddDevice: (object, device) => add_device;
    cuMulticastBindMem: (object, offset, memory, memory_offset, size, flags) => { bind(object, None, offset, memory, memory_offset, size, flags) };
    cuMulticastBindMem_v2: (object, device, offset, memory, memory_offset, size, flags) => { bind(object, Some(device), offset, memory, memory_offset, size, flags) };
    cuMulticastBindAddr: (object, offset, address, size, flags) => { bind_address(object, None, offset, address, size, flags) };
    cuMulticastBindAddr_v2: (object, device, offset, address, size, flags) => { bind_address(object, Some(device), offset, address, size, flags) };
    cuMulticastUnbind: (object, device, offset, size) => unbind;
    cuMulticastGetGranularity: (granularity, properties, option) => granularity;
} }

type Object = CUmemGenericAllocationHandle;

/// What is described. Objects that travel to other processes are not simulated.
///
/// # Safety
/// `properties` is null or the caller's structure.
unsafe fn described(properties: *const CUmulticastObjectProp) -> Done<CUmulticastObjectProp> {
    // SAFETY: by contract.
    let properties = unsafe { properties.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    match (properties.flags, properties.handleTypes) {
        (0, 0) => Ok(*properties),
        (0, 1..=15) => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

unsafe fn create(object: *mut Object, properties: *const CUmulticastObjectProp) -> Done {
    let (process, object) = (process()?, out(object)?);
    // SAFETY: the caller's structure.
    let properties = unsafe { described(properties) }?;
    object.set(process.create_multicast(properties.numDevices, properties.size as u64)?)
}

fn add_device(object: Object, device: CUdevice) -> Done {
    let process = process()?;
    process.add_to_multicast(object, process.gpu(device)?)
}

/// The GPU that the caller names, if it does. There are no flags.
fn bound_on(device: Option<CUdevice>, flags: u64) -> Done<(&'static Process, Option<usize>)> {
    let process = process()?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let gpu = device.map(|device| process.gpu(device)).transpose()?;
    Ok((process, gpu))
}

fn bind(
    object: Object,
    device: Option<CUdevice>,
    offset: usize,
    memory: Object,
    memory_offset: usize,
    size: usize,
    flags: u64,
) -> Done {
    let (process, gpu) = bound_on(device, flags)?;
    let binding = Binding {
        object,
        offset: offset as u64,
        memory,
        memory_offset: memory_offset as u64,
        size: size as u64,
    };
    process.bind_multicast(binding, gpu)
}

fn bind_address(
    object: Object,
    device: Option<CUdevice>,
    offset: usize,
    address: CUdeviceptr,
    size: usize,
    flags: u64,
) -> Done {
    let (process, gpu) = bound_on(device, flags)?;
    process.bind_multicast_address(object, offset as u64, address, size as u64, gpu)
}

fn unbind(object: Object, device: CUdevice, offset: usize, size: usize) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    process.unbind_multicast(object, gpu, offset as u64, size as u64)
}

unsafe fn granularity(
    granularity: *mut usize,
    properties: *const CUmulticastObjectProp,
    option: CUmulticastGranularity_flags,
) -> Done {
    process()?;
    let granularity = out(granularity)?;
    // SAFETY: the caller's structure.
    unsafe { described(properties) }?;
    if option > CUmulticastGranularity_flags::RECOMMENDED {
        return Err(CUresult::INVALID_VALUE);
    }
    granularity.set(LARGE as usize)
}
