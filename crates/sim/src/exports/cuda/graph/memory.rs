//! The memory of graphs, per device.

use crate::engine::objects::result::Done;
use crate::engine::process::process;
use crate::exports::cuda::out;
use divvy_driver::sys::cuda::{CUdevice, CUgraphMem_attribute as Attribute, CUresult};
use std::ffi::c_void;

exports! { cuda {
    cuDeviceGraphMemTrim: (device) => trim;
    cuDeviceGetGraphMemAttribute: (device, attribute, value) => attribute;
    cuDeviceSetGraphMemAttribute: (device, attribute, value) => set_attribute;
} }

fn trim(device: CUdevice) -> Done {
    let process = process()?;
    process.check_unsafe()?;
    process.trim_graph_memory(process.gpu(device)?);
    Ok(())
}

/// All values are 64 bits wide.
fn attribute(device: CUdevice, attribute: Attribute, value: *mut c_void) -> Done {
    let process = process()?;
    let (gpu, value) = (process.gpu(device)?, out(value.cast::<u64>())?);
    value.set(process.graph_memory(gpu, attribute)?)
}

unsafe fn set_attribute(device: CUdevice, attribute: Attribute, value: *mut c_void) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    // SAFETY: null or the caller's value.
    match unsafe { value.cast::<u64>().as_ref() } {
        Some(0) => process.reset_graph_memory(gpu, attribute),
        _ => Err(CUresult::INVALID_VALUE),
    }
}
