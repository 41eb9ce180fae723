//! The launches of CUDA 3 and before, which take block, shared memory and parameters from the function.

use super::function::with_function;
use super::launch::carry_out;
use super::module::function_handle;
use crate::engine::objects::kernel::{Geometry, Parameters};
use crate::engine::objects::launch::Shape;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUfunction, CUresult, CUstream};
use std::ffi::c_void;
use std::ptr::null_mut;

exports! { cuda {
    cuFuncSetBlockShape: (function, x, y, z) => set_block_shape;
    cuFuncSetSharedSize: (function, bytes) => set_shared_size;
    cuParamSetSize: (function, bytes) => set_parameter_size;
    cuParamSeti: (function, offset, value) => set_parameter_int;
    cuParamSetf: (function, offset, value) => set_parameter_float;
    cuParamSetv: (function, offset, from, bytes) => set_parameter_bytes;
    cuLaunch: (function) => launch_one;
    cuLaunchGrid: (function, width, height) => launch_grid;
    cuLaunchGridAsync: (function, width, height, stream) => launch_grid_async;
} }

fn set_block_shape(function: CUfunction, x: i32, y: i32, z: i32) -> Done {
    let positive = |size: i32| u32::try_from(size).ok().filter(|size| *size > 0);
    let block = [x, y, z].map(|size| positive(size).unwrap_or(0));
    if block.contains(&0) {
        return Err(CUresult::INVALID_VALUE);
    }
    with_function(function.addr(), |function| {
        function.state.block = block;
        Ok(())
    })
}

fn set_shared_size(function: CUfunction, bytes: u32) -> Done {
    with_function(function.addr(), |function| {
        function.state.shared = bytes;
        Ok(())
    })
}

/// Parameters beyond the hardware's 4 KiB do not exist in this old interface. So CUDA refuses them.
const MOST_PARAMETER_BYTES: usize = 4096;

fn set_parameter_size(function: CUfunction, bytes: u32) -> Done {
    if bytes as usize > MOST_PARAMETER_BYTES {
        return Err(CUresult::INVALID_VALUE);
    }
    with_function(function.addr(), |function| {
        function.state.parameters.resize(bytes as usize, 0);
        Ok(())
    })
}

/// # Safety
/// `from` points to `bytes` bytes.
unsafe fn set_parameter(
    function: CUfunction,
    offset: i32,
    from: *const c_void,
    bytes: usize,
) -> Done {
    let start = usize::try_from(offset).map_err(|_| CUresult::INVALID_VALUE)?;
    let end = start.saturating_add(bytes);
    if end > MOST_PARAMETER_BYTES || from.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and as long by contract.
    let value = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    with_function(function.addr(), |function| {
        let parameters = &mut function.state.parameters;
        if parameters.len() < end {
            parameters.resize(end, 0);
        }
        parameters[start..end].copy_from_slice(value);
        Ok(())
    })
}

fn set_parameter_int(function: CUfunction, offset: i32, value: u32) -> Done {
    // SAFETY: a value of four bytes.
    unsafe { set_parameter(function, offset, (&raw const value).cast(), 4) }
}

fn set_parameter_float(function: CUfunction, offset: i32, value: f32) -> Done {
    set_parameter_int(function, offset, value.to_bits())
}

unsafe fn set_parameter_bytes(
    function: CUfunction,
    offset: i32,
    from: *mut c_void,
    bytes: u32,
) -> Done {
    // SAFETY: the caller's bytes.
    unsafe { set_parameter(function, offset, from, bytes as usize) }
}

fn launch_one(function: CUfunction) -> Done {
    launch_grid(function, 1, 1)
}

fn launch_grid(function: CUfunction, width: i32, height: i32) -> Done {
    launch_grid_async(function, width, height, null_mut())
}

/// The launch of CUDA 3 and before: block, shared memory and parameters were set at the function.
fn launch_grid_async(function: CUfunction, width: i32, height: i32, stream: CUstream) -> Done {
    let state = with_function(function.addr(), |function| Ok(function.state.clone()))?;
    let shape = Shape {
        function: function_handle(function),
        geometry: Geometry {
            grid: [width, height, 1].map(|size| u32::try_from(size).unwrap_or(0)),
            block: state.block,
        },
        shared: state.shared,
        cooperative: false,
    };
    let parameters = Parameters::Buffer(state.parameters.as_ptr(), state.parameters.len());
    // SAFETY: the buffer holds what the program has set.
    unsafe { carry_out(&shape, stream, parameters, &[]) }
}
