//! Launches.

use super::module::function_handle;
use super::out;
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::kernel::{Geometry, Parameters, Reader};
use crate::engine::objects::launch::{Arguments, Launch, Shape};
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::Destination;
use crate::engine::process::process;
use crate::engine::work::kernel;
use crate::engine::work::launch;
use divvy_driver::sys::cuda::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig,
    CUresult, CUstream,
};
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

exports! { cuda {
    cuLaunchKernel, cuLaunchKernel_ptsz: (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra)
        => { launch(&shape(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, false), stream, parameters, extra) };
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz: (config, function, parameters, extra) => launch_with;
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz: (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters)
        => { launch(&shape(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, true), stream, parameters, null_mut()) };
    cuLaunchCooperativeKernelMultiDevice: (list, count, flags) => launch_on_devices;
} }

/// What `extra` ends with, and what announces the buffer and the place of its size: `CU_LAUNCH_PARAM_*`.
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
/// Numbers of cuda.h.
const BUFFER_SIZE: usize = 2;

/// # Safety
/// Both lists are as the API documents them for launches.
pub(super) unsafe fn parameters_of(
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done<Parameters> {
    if !parameters.is_null() {
        return Ok(Parameters::Pointers(parameters));
    }
    if extra.is_null() {
        return Ok(Parameters::None);
    }
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    let mut at = extra;
    // SAFETY: pairs of a mark and a value, up to the end mark.
    unsafe {
        while (*at).addr() != END {
            match (*at).addr() {
                BUFFER_POINTER => buffer = (*at.add(1)).cast_const().cast(),
                BUFFER_SIZE => size = (*at.add(1)).cast::<usize>().read(),
                _ => return Err(CUresult::INVALID_VALUE),
            }
            at = at.add(2);
        }
    }
    Ok(Parameters::Buffer(buffer, size))
}

/// Launches, or makes a node of it where the stream is captured.
///
/// # Safety
/// The parameters are those of the function.
pub(super) unsafe fn carry_out(
    shape: &Shape,
    stream: CUstream,
    parameters: Parameters,
    attributes: &[CUlaunchAttribute],
) -> Done {
    let process = process()?;
    match process.destination(stream.addr())? {
        Destination::Issue(target, current) => {
            let (work, has_effect) = {
                let objects = process.objects();
                let work = process.check_launch(&objects, current.gpu, shape)?;
                let function = objects.functions.get(shape.function);
                let effect = function.and_then(|known| kernel::effect(&known.kernel.name));
                (work, effect.is_some())
            };
            if has_effect {
                process.after_host_functions(current.gpu);
                // SAFETY: by contract.
                unsafe { process.run(shape, current.context, &mut Reader::new(parameters)) }?;
            }
            process.issue(current.gpu, target, work);
        }
        Destination::Capture(captured) => {
            let (_, current) = process.target(stream.addr())?;
            let mut objects = process.objects();
            process.check_launch(&objects, current.gpu, shape)?;
            let function = objects.functions.get(shape.function);
            let function = function.ok_or(CUresult::INVALID_HANDLE)?;
            let layout = launch::layout(function);
            let kept = Launch {
                shape: *shape,
                context: launch::home(&objects, function).unwrap_or(current.context),
                as_kernel: false,
                // SAFETY: by contract.
                arguments: unsafe { Arguments::copy_of(&parameters, layout.as_deref()) },
                attributes: attributes.iter().map(|one| (one.id.0, one.value)).collect(),
            };
            objects.capture(captured, Operation::Kernel(kept))?;
        }
    }
    for attribute in attributes.iter().filter(|one| records_event(one.id)) {
        // The union's members for these two begin with the event.
        let event = attribute.value[0] as usize;
        super::stream::record(without_provenance_mut(event), stream)?;
    }
    Ok(())
}

/// Attributes that name an event the launch records; here always at its end.
fn records_event(attribute: CUlaunchAttributeID) -> bool {
    attribute == CUlaunchAttributeID::PROGRAMMATIC_EVENT
        || attribute == CUlaunchAttributeID::LAUNCH_COMPLETION_EVENT
}

fn shape(
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    cooperative: bool,
) -> Shape {
    Shape {
        function: function_handle(function),
        geometry: Geometry { grid, block },
        shared,
        cooperative,
    }
}

unsafe fn launch(
    shape: &Shape,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    // SAFETY: the caller's lists.
    unsafe { carry_out(shape, stream, parameters_of(parameters, extra)?, &[]) }
}

unsafe fn launch_with(
    config: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    // SAFETY: null or the caller's structure.
    let config = unsafe { config.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    let attributes = match config.numAttrs {
        0 => &[],
        count => {
            out(config.attrs)?;
            // SAFETY: not null; the caller's list of so many.
            unsafe { std::slice::from_raw_parts(config.attrs, count as usize) }
        }
    };
    let mut cooperative = attributes
        .iter()
        .filter(|one| one.id == CUlaunchAttributeID::COOPERATIVE);
    let shape = shape(
        function,
        [config.gridDimX, config.gridDimY, config.gridDimZ],
        [config.blockDimX, config.blockDimY, config.blockDimZ],
        config.sharedMemBytes,
        cooperative.any(|one| one.value[0] as u32 != 0),
    );
    // SAFETY: the caller's lists.
    unsafe {
        let parameters = parameters_of(parameters, extra)?;
        carry_out(&shape, config.hStream, parameters, attributes)
    }
}

/// One launch of the same shape on each of several GPUs. They begin as each GPU comes to them: that none begins before
/// all streams are ready, and none goes on before all have ended, is not simulated.
unsafe fn launch_on_devices(list: *mut CUDA_LAUNCH_PARAMS, count: u32, flags: u32) -> Done {
    let process = process()?;
    out(list)?;
    // SAFETY: not null; the caller's list of so many.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let mut gpus = Vec::new();
    for one in list {
        if one.hStream.addr() <= 2 {
            return Err(CUresult::INVALID_VALUE);
        }
        gpus.push(process.uncaptured(one.hStream.addr())?.1.gpu);
    }
    let figures = |one: &CUDA_LAUNCH_PARAMS| {
        let grid = [one.gridDimX, one.gridDimY, one.gridDimZ];
        let block = [one.blockDimX, one.blockDimY, one.blockDimZ];
        (grid, block, one.sharedMemBytes)
    };
    let is_uniform = list
        .windows(2)
        .all(|pair| figures(&pair[0]) == figures(&pair[1]));
    gpus.sort_unstable();
    gpus.dedup();
    if list.is_empty() || gpus.len() != list.len() || !is_uniform || flags > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    for one in list {
        let (grid, block, shared) = figures(one);
        let shape = shape(one.function, grid, block, shared, true);
        // SAFETY: the caller's lists.
        unsafe { launch(&shape, one.hStream, one.kernelParams, null_mut()) }?;
    }
    Ok(())
}
