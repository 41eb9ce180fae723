//! What contexts and plain allocations really take.

use divvy_driver::sys::cuda::*;
use serde_json::json;

use crate::Answer;
use crate::gpu::{Gpu, cu, grew};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Around every size at which rounding is believed to change.
const SIZES: [usize; 20] = [
    1,
    512,
    513,
    4 * KIB,
    64 * KIB,
    256 * KIB,
    512 * KIB,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB,
    2 * MIB + 1,
    3 * MIB,
    4 * MIB,
    10 * MIB,
    16 * MIB,
    20 * MIB,
    32 * MIB + 1,
    64 * MIB,
    100 * MIB,
];

/// Each size is taken so often, within these bounds, that about this much is taken.
const TAKE: usize = 256 * MIB;

pub fn context_bytes() -> Answer {
    let gpu = Gpu::open()?;
    let none = gpu.used()?;
    gpu.retain()?;
    let one = gpu.used()?;
    let free = gpu.free()?;
    let mut second = std::ptr::null_mut();
    cu!(gpu, cuCtxCreate_v2(&raw mut second, 0, gpu.device))?;
    let two = gpu.used()?;
    cu!(gpu, cuCtxDestroy_v2(second))?;
    let destroyed = gpu.used()?;
    gpu.retain()?;
    let kernel = gpu.kernel()?;
    let loaded = gpu.used()?;
    gpu.launch(kernel)?;
    gpu.synchronize()?;
    let launched = gpu.used()?;
    Ok(json!({
        "module_loading": std::env::var("CUDA_MODULE_LOADING").unwrap_or_else(|_| "default".into()),
        "first": grew(none, one),
        "second": grew(one, two),
        "second_destroyed": grew(two, destroyed),
        "module_loaded": grew(destroyed, loaded),
        "kernel_launched": grew(loaded, launched),
        "free_after_first": free,
    }))
}

pub fn alloc_sizes() -> Answer {
    let gpu = Gpu::with_context()?;
    // The first allocations of a process may bring something of the driver's own along.
    gpu.release(gpu.alloc(MIB)?)?;
    let mut rows = Vec::new();
    for size in SIZES {
        let count = (TAKE / size).clamp(4, 512);
        let (before, free_before) = (gpu.used()?, gpu.free()?);
        let mut held = vec![gpu.alloc(size)?];
        let (first, free_first) = (gpu.used()?, gpu.free()?);
        for _ in 1..count {
            held.push(gpu.alloc(size)?);
        }
        let (all, free_all) = (gpu.used()?, gpu.free()?);
        let alignment = held.iter().fold(0, |bits, address| bits | address);
        for address in &held {
            gpu.release(*address)?;
        }
        let (after, free_after) = (gpu.used()?, gpu.free()?);
        rows.push(json!({
            "asked": size,
            "count": count,
            "first": grew(before, first),
            "first_by_cuda": free_before - free_first,
            "all": grew(before, all),
            "all_by_cuda": free_before - free_all,
            "each_by_cuda": (free_before - free_all) as f64 / count as f64,
            "left_after_free": grew(before, after),
            "left_after_free_by_cuda": free_before - free_after,
            "addresses_are_multiples_of": 1u64 << alignment.trailing_zeros(),
        }));
    }
    Ok(json!({ "sizes": rows }))
}

pub fn managed_bytes() -> Answer {
    /// Larger than a context, so that the difference is the allocation, and small enough for every GPU.
    const SIZE: usize = 256 * MIB;
    let gpu = Gpu::with_context()?;
    let before = gpu.used()?;
    let mut address = 0;
    cu!(
        gpu,
        cuMemAllocManaged(&raw mut address, SIZE, CUmemAttach_flags::GLOBAL.0)
    )?;
    let allocated = gpu.used()?;
    cu!(gpu, cuMemsetD8_v2(address, 1, SIZE))?;
    gpu.synchronize()?;
    let touched = gpu.used()?;
    gpu.release(address)?;
    let freed = gpu.used()?;
    Ok(json!({
        "asked": SIZE,
        "allocated": grew(before, allocated),
        "touched_by_the_gpu": grew(before, touched),
        "freed": grew(before, freed),
    }))
}
