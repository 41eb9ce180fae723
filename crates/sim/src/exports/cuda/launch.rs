//! Launches and what can be asked about functions.

use super::module::function_handle;
use super::{out, set_if_wanted};
use crate::engine::graph::node::Operation;
use crate::engine::kernel::{self, Geometry, Parameters, Reader};
use crate::engine::launch::{self, Arguments, Launch, Shape};
use crate::engine::module::{Function, Home};
use crate::engine::process::{Done, process};
use crate::engine::stream::Place;
use divvy_driver::sys::cuda::{
    CUDA_LAUNCH_PARAMS, CUdevice, CUfunc_cache, CUfunction, CUfunction_attribute as Attribute,
    CUfunctionLoadingState, CUkernel, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig,
    CUmodule, CUoccupancyB2DSize, CUresult, CUsharedconfig, CUstream,
};
use std::ffi::{c_char, c_void};
use std::ptr::{null_mut, without_provenance_mut};

exports! { cuda {
    cuLaunchKernel, cuLaunchKernel_ptsz: (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra) => launch;
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz: (config, function, parameters, extra) => launch_with;
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz: (
        function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters
    ) => launch_cooperative;
    cuLaunchCooperativeKernelMultiDevice: (list, count, flags) => launch_on_devices;
    cuFuncSetBlockShape: (function, x, y, z) => set_block_shape;
    cuFuncSetSharedSize: (function, bytes) => set_shared_size;
    cuParamSetSize: (function, bytes) => set_parameter_size;
    cuParamSeti: (function, offset, value) => set_parameter_int;
    cuParamSetf: (function, offset, value) => set_parameter_float;
    cuParamSetv: (function, offset, from, bytes) => set_parameter_bytes;
    cuLaunch: (function) => launch_one;
    cuLaunchGrid: (function, width, height) => launch_grid;
    cuLaunchGridAsync: (function, width, height, stream) => launch_grid_async;
    cuFuncGetAttribute: (value, attribute, function) => attribute;
    cuFuncSetAttribute: (function, attribute, value) => set_attribute;
    cuFuncSetCacheConfig: (function, config) => set_cache_config;
    cuFuncSetSharedMemConfig: (function, config) => set_shared_config;
    cuFuncGetModule: (module, function) => module_of;
    cuFuncGetName: (text, function) => function_name;
    cuFuncGetParamInfo: (function, index, offset, size) => parameter;
    cuFuncGetParamCount: (function, count) => parameter_count;
    cuFuncIsLoaded: (state, function) => is_loaded;
    cuFuncLoad: (function) => load;
    cuKernelGetAttribute: (value, attribute, kernel, device) => kernel_attribute;
    cuKernelSetAttribute: (attribute, value, kernel, device) => set_kernel_attribute;
    cuKernelSetCacheConfig: (kernel, config, device) => set_kernel_cache_config;
    cuOccupancyMaxActiveBlocksPerMultiprocessor: (blocks, function, block_size, shared) => occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: (blocks, function, block_size, shared, flags) => occupancy_with_flags;
    cuOccupancyMaxPotentialBlockSize: (grid, block, function, shared_of, shared, limit) => potential_block;
    cuOccupancyMaxPotentialBlockSizeWithFlags: (grid, block, function, shared_of, shared, limit, flags) => potential_block_with_flags;
    cuOccupancyAvailableDynamicSMemPerBlock: (shared, function, blocks, block_size) => available_shared;
    cuOccupancyMaxActiveClusters: (clusters, function, config) => active_clusters;
} }

/// What `extra` ends with, and what announces the buffer and the place of its size: `CU_LAUNCH_PARAM_*`.
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
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
unsafe fn carry_out(
    shape: &Shape,
    stream: CUstream,
    parameters: Parameters,
    attributes: &[CUlaunchAttribute],
) -> Done {
    let process = process()?;
    match process.place(stream.addr())? {
        Place::Issue(target, current) => {
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
        Place::Capture(captured) => {
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

#[expect(clippy::too_many_arguments, reason = "the C signature")]
unsafe fn launch(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    let shape = Shape {
        function: function_handle(function),
        geometry: Geometry {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
        },
        shared,
        cooperative: false,
    };
    // SAFETY: the caller's lists.
    unsafe { carry_out(&shape, stream, parameters_of(parameters, extra)?, &[]) }
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
    let shape = Shape {
        function: function_handle(function),
        geometry: Geometry {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        },
        shared: config.sharedMemBytes,
        cooperative: cooperative.any(|one| one.value[0] as u32 != 0),
    };
    // SAFETY: the caller's lists.
    unsafe {
        let parameters = parameters_of(parameters, extra)?;
        carry_out(&shape, config.hStream, parameters, attributes)
    }
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
unsafe fn launch_cooperative(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> Done {
    let launch = CUDA_LAUNCH_PARAMS {
        function,
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: shared,
        hStream: stream,
        kernelParams: parameters,
    };
    // SAFETY: the caller's list.
    unsafe { launch_together(&launch) }
}

unsafe fn launch_together(one: &CUDA_LAUNCH_PARAMS) -> Done {
    let shape = Shape {
        function: function_handle(one.function),
        geometry: Geometry {
            grid: [one.gridDimX, one.gridDimY, one.gridDimZ],
            block: [one.blockDimX, one.blockDimY, one.blockDimZ],
        },
        shared: one.sharedMemBytes,
        cooperative: true,
    };
    let attribute = CUlaunchAttribute {
        id: CUlaunchAttributeID::COOPERATIVE,
        value: [1, 0, 0, 0, 0, 0, 0, 0],
        ..CUlaunchAttribute::default()
    };
    // SAFETY: the caller's list.
    unsafe {
        let parameters = parameters_of(one.kernelParams, null_mut())?;
        carry_out(&shape, one.hStream, parameters, &[attribute])
    }
}

/// One launch of the same shape on each of several GPUs. They begin as each GPU comes to them: that none begins before all streams are ready, and
/// none goes on before all have ended, is not simulated.
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
    let shape = |one: &CUDA_LAUNCH_PARAMS| {
        let grid = [one.gridDimX, one.gridDimY, one.gridDimZ];
        (
            grid,
            [one.blockDimX, one.blockDimY, one.blockDimZ],
            one.sharedMemBytes,
        )
    };
    let is_uniform = list
        .windows(2)
        .all(|pair| shape(&pair[0]) == shape(&pair[1]));
    gpus.sort_unstable();
    gpus.dedup();
    if list.is_empty() || gpus.len() != list.len() || !is_uniform || flags > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    for one in list {
        // SAFETY: the caller's lists.
        unsafe { launch_together(one) }?;
    }
    Ok(())
}

fn set_block_shape(function: CUfunction, x: i32, y: i32, z: i32) -> Done {
    let positive = |size: i32| u32::try_from(size).ok().filter(|size| *size > 0);
    let block = [x, y, z].map(|size| positive(size).unwrap_or(0));
    if block.contains(&0) {
        return Err(CUresult::INVALID_VALUE);
    }
    look(function.addr(), |function| {
        function.state.block = block;
        Ok(())
    })
}

fn set_shared_size(function: CUfunction, bytes: u32) -> Done {
    look(function.addr(), |function| {
        function.state.shared = bytes;
        Ok(())
    })
}

/// Parameters beyond the hardware's 4 KiB do not exist in this old interface.
const MOST_PARAMETER_BYTES: usize = 4096;

fn set_parameter_size(function: CUfunction, bytes: u32) -> Done {
    if bytes as usize > MOST_PARAMETER_BYTES {
        return Err(CUresult::INVALID_VALUE);
    }
    look(function.addr(), |function| {
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
    look(function.addr(), |function| {
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
    let state = look(function.addr(), |function| Ok(function.state.clone()))?;
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

/// Looks at a function, by CUfunction or CUkernel.
fn look<T>(function: usize, at: impl FnOnce(&mut Function) -> Done<T>) -> Done<T> {
    let process = process()?;
    let mut objects = process.objects();
    at(objects
        .functions
        .get_mut(function_handle(without_provenance_mut(function)))
        .ok_or(CUresult::INVALID_HANDLE)?)
}

fn attribute(value: *mut i32, attribute: Attribute, function: CUfunction) -> Done {
    let value = out(value)?;
    let dynamic_shared = look(function.addr(), |function| Ok(function.dynamic_shared))?;
    // Plausible figures of a plain kernel; the code itself is never looked into.
    value.set(match attribute {
        Attribute::MAX_THREADS_PER_BLOCK => 1024,
        Attribute::NUM_REGS => 32,
        Attribute::PTX_VERSION | Attribute::BINARY_VERSION => capability()?,
        Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES if dynamic_shared == 0 => 48 * 1024,
        Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => dynamic_shared,
        Attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
        Attribute(..=17) => 0,
        _ => return Err(CUresult::INVALID_VALUE),
    })
}

/// Compute capability of the current GPU as `10 × major + minor`; of the first when there is no current context.
fn capability() -> Done<i32> {
    let process = process()?;
    let gpu = process
        .current(&process.objects())
        .map(|current| current.gpu)
        .or_else(|_| process.gpu(0))?;
    let (major, minor) = process.model(gpu).compute_capability;
    Ok(10 * major + minor)
}

fn set_attribute(function: CUfunction, attribute: Attribute, value: i32) -> Done {
    look(function.addr(), |function| match attribute {
        Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            function.dynamic_shared = value;
            Ok(())
        }
        Attribute(8..=17) => Ok(()),
        _ => Err(CUresult::INVALID_VALUE),
    })
}

fn set_cache_config(function: CUfunction, _config: CUfunc_cache) -> Done {
    look(function.addr(), |_| Ok(()))
}

fn set_shared_config(function: CUfunction, _config: CUsharedconfig) -> Done {
    look(function.addr(), |_| Ok(()))
}

fn module_of(module: *mut CUmodule, function: CUfunction) -> Done {
    let module = out(module)?;
    let found = match look(function.addr(), |function| Ok(function.home))? {
        Home::Module(module) => module,
        Home::Library(library) => process()?.module_of(library)?,
    };
    module.set(without_provenance_mut(found.value()))
}

fn function_name(text: *mut *const c_char, function: CUfunction) -> Done {
    out(text)?.set(look(function.addr(), |function| {
        Ok(function.c_name.as_ptr())
    })?)
}

/// Parameters are known for PTX; of machine code the simulator does not read them.
pub(super) fn parameter(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Done {
    let offset = out(offset)?;
    let known = look(function.addr(), |function| {
        Ok(function.kernel.parameters.clone())
    })?
    .ok_or(CUresult::NOT_SUPPORTED)?;
    let (at, bytes) = *known.get(index).ok_or(CUresult::INVALID_VALUE)?;
    set_if_wanted(size, bytes);
    offset.set(at)
}

pub(super) fn parameter_count(function: CUfunction, count: *mut usize) -> Done {
    let known = look(function.addr(), |function| {
        Ok(function.kernel.parameters.clone())
    })?
    .ok_or(CUresult::NOT_SUPPORTED)?;
    out(count)?.set(known.len())
}

fn is_loaded(state: *mut CUfunctionLoadingState, function: CUfunction) -> Done {
    look(function.addr(), |_| Ok(()))?;
    out(state)?.set(CUfunctionLoadingState::LOADED)
}

fn load(function: CUfunction) -> Done {
    look(function.addr(), |_| Ok(()))
}

fn kernel_attribute(value: *mut i32, which: Attribute, kernel: CUkernel, device: CUdevice) -> Done {
    process()?.gpu(device)?;
    attribute(value, which, kernel.cast())
}

fn set_kernel_attribute(
    attribute: Attribute,
    value: i32,
    kernel: CUkernel,
    device: CUdevice,
) -> Done {
    process()?.gpu(device)?;
    set_attribute(kernel.cast(), attribute, value)
}

fn set_kernel_cache_config(kernel: CUkernel, config: CUfunc_cache, device: CUdevice) -> Done {
    process()?.gpu(device)?;
    set_cache_config(kernel.cast(), config)
}

/// Blocks of so many threads and so much shared memory that fit one multiprocessor; registers are never the limit.
fn fitting_blocks(function: CUfunction, block_size: i32, shared: usize) -> Done<i32> {
    look(function.addr(), |_| Ok(()))?;
    let process = process()?;
    let model = process.model(process.current(&process.objects())?.gpu);
    if block_size <= 0 || block_size > 1024 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(kernel::blocks_at_once(model, block_size as u32, shared) as i32)
}

fn occupancy(blocks: *mut i32, function: CUfunction, block_size: i32, shared: usize) -> Done {
    let blocks = out(blocks)?;
    blocks.set(fitting_blocks(function, block_size, shared)?)
}

fn occupancy_with_flags(
    blocks: *mut i32,
    function: CUfunction,
    block_size: i32,
    shared: usize,
    _flags: u32,
) -> Done {
    occupancy(blocks, function, block_size, shared)
}

fn potential_block(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
) -> Done {
    let (grid, block) = (out(grid)?, out(block)?);
    let limit = if limit > 0 { limit.min(1024) } else { 1024 };
    let candidates = (1..=limit / 32)
        .rev()
        .map(|warps| warps * 32)
        .chain([limit]);
    let rated = candidates.map(|size| {
        // SAFETY: the caller's function, called as the API promises.
        let shared = shared_of.map_or(shared, |shared_of| unsafe { shared_of(size) });
        fitting_blocks(function, size, shared).map(|blocks| (blocks * size, size, blocks))
    });
    let (_, size, blocks) = rated
        .collect::<Done<Vec<_>>>()?
        .into_iter()
        .max()
        .ok_or(CUresult::INVALID_VALUE)?;
    let process = process()?;
    let multiprocessors = process
        .model(process.current(&process.objects())?.gpu)
        .multiprocessors;
    grid.set(blocks * multiprocessors)?;
    block.set(size)
}

fn potential_block_with_flags(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> Done {
    potential_block(grid, block, function, shared_of, shared, limit)
}

fn available_shared(
    shared: *mut usize,
    function: CUfunction,
    blocks: i32,
    block_size: i32,
) -> Done {
    let shared = out(shared)?;
    fitting_blocks(function, block_size, 0)?;
    let process = process()?;
    let all = process
        .model(process.current(&process.objects())?.gpu)
        .shared_per_multiprocessor_kib as usize
        * 1024;
    let blocks = usize::try_from(blocks)
        .ok()
        .filter(|blocks| *blocks > 0)
        .ok_or(CUresult::INVALID_VALUE)?;
    shared.set((all / blocks).saturating_sub(1024).min(48 * 1024))
}

unsafe fn active_clusters(
    clusters: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Done {
    let clusters = out(clusters)?;
    // SAFETY: null or the caller's structure.
    let config = unsafe { config.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    let block = config
        .blockDimX
        .saturating_mul(config.blockDimY)
        .saturating_mul(config.blockDimZ);
    let blocks = fitting_blocks(
        function,
        i32::try_from(block).unwrap_or(i32::MAX),
        config.sharedMemBytes as usize,
    )?;
    let process = process()?;
    let multiprocessors = process
        .model(process.current(&process.objects())?.gpu)
        .multiprocessors;
    clusters.set(blocks * multiprocessors)
}
