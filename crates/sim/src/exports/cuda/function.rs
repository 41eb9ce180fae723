//! Attributes of functions and kernels, and occupancy: how many blocks fit a GPU.

use super::module::function_handle;
use super::{out, set_if_wanted};
use crate::engine::objects::module::Function;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use crate::engine::work::kernel;
use divvy_driver::sys::cuda::{
    CUdevice, CUfunc_cache, CUfunction, CUfunction_attribute as Attribute, CUfunctionLoadingState,
    CUkernel, CUlaunchConfig, CUoccupancyB2DSize, CUresult,
};
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuFuncGetAttribute: (value, attribute, function) => attribute;
    cuFuncSetAttribute: (function, attribute, value) => set_attribute;
    cuFuncSetCacheConfig: (function, config) => set_cache_config;
    cuFuncIsLoaded: (state, function) => is_loaded;
    cuFuncLoad: (function) => load;
    cuKernelGetAttribute: (value, attribute, kernel, device) => kernel_attribute;
    cuKernelSetAttribute: (attribute, value, kernel, device) => set_kernel_attribute;
    cuKernelSetCacheConfig: (kernel, config, device) => set_kernel_cache_config;
    cuOccupancyMaxActiveBlocksPerMultiprocessor: (blocks, function, block_size, shared) => occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: (blocks, function, block_size, shared, flags) => { occupancy(blocks, function, block_size, shared) };
    cuOccupancyMaxPotentialBlockSize: (grid, block, function, shared_of, shared, limit) => potential_block;
    cuOccupancyMaxPotentialBlockSizeWithFlags: (grid, block, function, shared_of, shared, limit, flags) => { potential_block(grid, block, function, shared_of, shared, limit) };
    cuOccupancyAvailableDynamicSMemPerBlock: (shared, function, blocks, block_size) => available_shared;
    cuOccupancyMaxActiveClusters: (clusters, function, config) => active_clusters;
} }

/// Reads or changes a function by its value.
pub(super) fn with_function<T>(
    function: usize,
    at: impl FnOnce(&mut Function) -> Done<T>,
) -> Done<T> {
    let process = process()?;
    let mut objects = process.objects();
    at(objects
        .functions
        .get_mut(function_handle(without_provenance_mut(function)))
        .ok_or(CUresult::INVALID_HANDLE)?)
}

fn attribute(value: *mut i32, attribute: Attribute, function: CUfunction) -> Done {
    let value = out(value)?;
    let dynamic_shared = with_function(function.addr(), |function| Ok(function.dynamic_shared))?;
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
    with_function(function.addr(), |function| match attribute {
        Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            function.dynamic_shared = value;
            Ok(())
        }
        Attribute(8..=17) => Ok(()),
        _ => Err(CUresult::INVALID_VALUE),
    })
}

fn set_cache_config(function: CUfunction, _config: CUfunc_cache) -> Done {
    with_function(function.addr(), |_| Ok(()))
}

/// Parameters are known for PTX; of machine code the simulator does not read them.
pub(super) fn parameter(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Done {
    let offset = out(offset)?;
    let known = with_function(function.addr(), |function| {
        Ok(function.kernel.parameters.clone())
    })?
    .ok_or(CUresult::NOT_SUPPORTED)?;
    let (at, bytes) = *known.get(index).ok_or(CUresult::INVALID_VALUE)?;
    set_if_wanted(size, bytes);
    offset.set(at)
}

pub(super) fn parameter_count(function: CUfunction, count: *mut usize) -> Done {
    let known = with_function(function.addr(), |function| {
        Ok(function.kernel.parameters.clone())
    })?
    .ok_or(CUresult::NOT_SUPPORTED)?;
    out(count)?.set(known.len())
}

fn is_loaded(state: *mut CUfunctionLoadingState, function: CUfunction) -> Done {
    with_function(function.addr(), |_| Ok(()))?;
    out(state)?.set(CUfunctionLoadingState::LOADED)
}

fn load(function: CUfunction) -> Done {
    with_function(function.addr(), |_| Ok(()))
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
    with_function(function.addr(), |_| Ok(()))?;
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
